/* The slope of silu, of gates: by the pieces of activation.cu, whatever ACTIVATION is. Included by what uses it. */

/* silu'(gate) */
template <typename T> __device__ __forceinline__ T gate_slope(T gate) {
    const T near = limited(gate), e = exp_minus(near), s = inverse(1 + e);
    return s * multiply_add(e * s, near, (T)1);
}
