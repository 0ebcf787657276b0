/*
 * What may follow a norm: y = f(z), with z what the norm alone would return. Included by what uses it.
 * A further activation is a case in each of the two functions at the end.
 *
 * Constants: ACTIVATION (a planish_activation), and the dtypes of what is written.
 */
enum { IDENTITY, SILU, RELU, GELU, GELU_TANH, RELU6, HARDSWISH };

constexpr bool ACTIVE = ACTIVATION != IDENTITY;
/* Results of 16 bits do not show the last digits of f32, nor those of a mean. */
constexpr bool SHORT_RESULTS = bytes_of(X_TYPE) == 2 && bytes_of(Y_TYPE) == 2 && bytes_of(DX_TYPE) == 2 &&
                               bytes_of(DWEIGHT_TYPE) == 2;
/* Nor does z, but where the slope jumps. */
constexpr bool JUMPS = ACTIVATION == RELU || ACTIVATION == RELU6 || ACTIVATION == HARDSWISH;
constexpr bool SHORT_Z = SHORT_RESULTS && !JUMPS;

/* exp(-z), -87 <= z <= 40, f64 from -708 on (NaN: NaN, or any number); any z of SHORT_RESULTS. */
__device__ __forceinline__ float exp_minus(float z) {
    constexpr float LOG2_E = 0x1.715476p+0f, LN_2 = 0x1.62e43p-1f, LN_2_REST = -0x1.05c61p-29f;
    if (SHORT_RESULTS)
        return estimate_power(z * -LOG2_E);
    /* A power of two, and that of a rest of at most a half, which the estimate knows to its last bits. */
    const float shifted = multiply_add(z, -LOG2_E, 0x1.8p23f), n = shifted - 0x1.8p23f;
    const float rest = multiply_add(n, -LN_2_REST, multiply_add(n, -LN_2, -z));
    const float power = estimate_power(rest * LOG2_E);
    return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
}
__device__ __forceinline__ double exp_minus(double z) { return exp(-z); }

/* 1 / v, 1 <= v < 2^126; beyond that 0 in SHORT_RESULTS. */
__device__ __forceinline__ float inverse(float v) {
    const float r = estimate_inverse(v);
    return SHORT_RESULTS ? r : multiply_add(r, multiply_add(-v, r, 1.f), r);
}
__device__ __forceinline__ double inverse(double v) { return 1 / v; }

/* n / v, 1 <= v < 2^126: the step that would mend the inverse mends the quotient. */
__device__ __forceinline__ float quotient(float n, float v) {
    const float r = estimate_inverse(v), q = n * r;
    return multiply_add(multiply_add(-v, q, n), r, q);
}
__device__ __forceinline__ double quotient(double n, double v) { return n / v; }

/* Near enough to 0 from here on; NaN stays. */
template <typename T> __device__ __forceinline__ T not_below(T z) {
    constexpr T LEAST = sizeof(T) == 8 ? -708 : -87;
    return z < LEAST ? LEAST : z;
}
/* Beyond 40 1 + exp(-z) is 1 in f64, too. */
template <typename T> __device__ __forceinline__ T limited(T z) { return z > 40 ? 40 : not_below(z); }

/* z of an element. What is not there costs no rounding; with TWICE the product is rounded before the sum, as in the
 * general kernels. */
template <bool SCALES = WEIGHT_TYPE != NONE, bool OFFSETS = BIAS_TYPE != NONE, bool TWICE = false, typename T>
__device__ __forceinline__ T affine_of_xhat(T xhat, T scale, T offset) {
    if (SCALES && OFFSETS)
        return TWICE ? xhat * scale + offset : multiply_add(xhat, scale, offset);
    return SCALES ? xhat * scale : OFFSETS ? xhat + offset : xhat;
}

/* z / (1 + exp(-z)), also what a gate multiplies by. */
template <typename T> __device__ __forceinline__ T silu_of(T z) {
    if (SHORT_RESULTS)
        return z * inverse(1 + exp_minus(z));
    const T low = not_below(z);
    return quotient(low, 1 + exp_minus(limited(low)));
}

/* What GELU is of the logistic function: z / (1 + exp(-logit)). Beyond where its result is next to nothing z is
 * taken as what it is there. */
template <typename T> __device__ __forceinline__ T gelu_logit(T z) {
    constexpr T A = (T)1.5957691216057307117597842397375, B = (T)(1.5957691216057307117597842397375 * .044715);
    return z * multiply_add(B * z, z, A);
}
template <typename T> __device__ __forceinline__ T gelu_tanh_floor(T z) {
    constexpr T LEAST = sizeof(T) == 8 ? -21.1 : -9.97f;
    return z < LEAST ? LEAST : z;
}

/* The normal distribution: the share of it below z, and its density. */
__device__ __forceinline__ float normal_below(float z) { return normcdff(z < -13 ? -13.f : z); }
__device__ __forceinline__ double normal_below(double z) { return normcdf(z < -37 ? -37. : z); }
__device__ __forceinline__ float normal_density(float z) { return .39894228f * expf(-.5f * z * z); }
__device__ __forceinline__ double normal_density(double z) {
    return .39894228040143267793994605993438 * exp(-.5 * z * z);
}
template <typename T> __device__ __forceinline__ T gelu_floor(T z) {
    constexpr T LEAST = sizeof(T) == 8 ? -37 : -13;
    return z < LEAST ? LEAST : z;
}

/* f(z) */
template <typename T> __device__ __forceinline__ T activated(T z) {
    if (ACTIVATION == SILU)
        return silu_of(z);
    if (ACTIVATION == RELU)
        return z < 0 ? 0 : z;
    if (ACTIVATION == RELU6)
        return z < 0 ? 0 : z > 6 ? 6 : z;
    if (ACTIVATION == HARDSWISH) {
        const T near = z < -3 ? -3 : z, share = near > 3 ? 6 : near + 3;
        return near * (share * (T).16666666666666666666666666666667);
    }
    if constexpr (ACTIVATION == GELU)
        return gelu_floor(z) * normal_below(z);
    if constexpr (ACTIVATION == GELU_TANH) {
        const T low = gelu_tanh_floor(z);
        return quotient(low, 1 + exp_minus(limited(gelu_logit(low))));
    }
    return z;
}

/* dy * f'(z) */
template <typename T> __device__ __forceinline__ T through_activation(T dy, T z) {
    if (ACTIVATION == SILU && SHORT_RESULTS) {
        const T s = inverse(1 + exp_minus(z));
        return dy * multiply_add(s, multiply_add(-z, s, z), s);
    }
    if (ACTIVATION == SILU) {
        const T near = limited(z), e = exp_minus(near), s = inverse(1 + e);
        return dy * (s * multiply_add(e * s, near, (T)1));
    }
    if (ACTIVATION == RELU)
        return z <= 0 ? 0 : dy;
    if (ACTIVATION == RELU6)
        return z <= 0 || z >= 6 ? 0 : dy;
    if (ACTIVATION == HARDSWISH)
        return z <= -3 ? 0 : z >= 3 ? dy : dy * multiply_add(z, (T).33333333333333333333333333333333, (T).5);
    if constexpr (ACTIVATION == GELU)
        return dy * multiply_add(gelu_floor(z), normal_density(z), normal_below(z));
    if constexpr (ACTIVATION == GELU_TANH) {
        constexpr T A = (T)1.5957691216057307117597842397375, C = (T)(1.5957691216057307117597842397375 * .134145);
        const T low = gelu_tanh_floor(z), near = low > 40 ? (T)40 : low, e = exp_minus(limited(gelu_logit(low)));
        const T s = inverse(1 + e);
        return dy * (s * multiply_add(e * s * near, multiply_add(C * near, near, A), (T)1));
    }
    return dy;
}
