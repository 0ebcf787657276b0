/* silu and its slope, of gates: by the pieces of activation.cu, whatever ACTIVATION is. Included by what uses it. */

/* silu'(gate) */
template <typename T> __device__ __forceinline__ T gate_slope(T gate) {
    const T near = limited(gate), e = exp_minus(near), s = inverse(1 + e);
    return s * multiply_add(e * s, near, (T)1);
}

/* silu(gate) and, where it is WANTED, silu'(gate): in results of 16 bits of one exponential and one reciprocal, as
 * through_activation() has them. */
template <bool WANTED, typename T> __device__ __forceinline__ void gate_factors(T gate, T &silu, T &slope) {
    if constexpr (SHORT_RESULTS && sizeof(T) == 4) {
        const T s = inverse(1 + exp_minus(gate));
        silu = gate * s;
        slope = WANTED ? multiply_add(s, multiply_add(-gate, s, gate), s) : 0;
    } else {
        silu = silu_of(gate);
        slope = WANTED ? gate_slope(gate) : 0;
    }
}
