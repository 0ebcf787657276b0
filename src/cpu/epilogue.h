/*
 * How an element becomes y: xhat = (x - mean) * rstd + shift, z = xhat * weight + bias, y = f(z),
 * in the words of cpu/unit.h; for rows, channels, groups and pixels alike. What else is to follow a
 * norm belongs into result. Whether y is in range is not asked here: that is known of a row's
 * moments before (cpu/wide.c).
 *
 * A further activation is a case in `activated` and `through`, and in two functions of cpu/wide.c.
 */

/* EXP(LIMIT) is EXP_LIMIT_f32 or EXP_LIMIT_f64. */
#define EXP__(name, real) EXP_##name##_##real
#define EXP_(name, real) EXP__(name, real)
#define EXP(name) EXP_(name, REAL_TOKEN)
/* exp(LIMIT) is in range, and 1 / exp(LIMIT) normal. */
#define EXP_LIMIT_f32 87
#define EXP_LIMIT_f64 708
#define EXP_SHIFTER_f32 0x1.8p23f
#define EXP_SHIFTER_f64 0x1.8p52
#define EXP_LN2_f32 0x1.62e43p-1f
#define EXP_LN2_f64 0x1.62e42fefa39efp-1
#define EXP_LN2_REST_f32 -0x1.05c61p-29f
#define EXP_LN2_REST_f64 0x1.abc9e3b39803fp-56
/* q of exp(r) = 1 + r + r^2 q(r), |r| <= ln(2) / 2, of least relative error, highest power first.
 */
#define EXP_TERMS_f32                                                                              \
    1.3814467059e-3f, 8.3687804112e-3f, 4.1668394211e-2f, 1.6666520108e-1f, 4.9999993413e-1f
#define EXP_TERMS_f64                                                                              \
    2.4999965343255922631e-8, 2.7630378620805180305e-7, 2.7557587342203818353e-6,                  \
        2.4801492762795647439e-5, 1.9841269504765356436e-4, 1.3888888943922639616e-3,              \
        8.3333333334956237916e-3, 4.1666666666529188594e-2, 1.6666666666666410235e-1,              \
        5.000000000000010721e-1

/* What normalises a vector: xhat = (x - mean) * rstd + shift, the shift being the rest of the mean.
 */
typedef struct NAME(scale) {
    VEC mean, rstd, shift;
} NAME(scale);

/* With rms a constant: mean and shift are not read. */
INLINE VEC NAME(normalize)(VEC x, NAME(scale) s, const bool rms) {
    return rms ? V(mul)(x, s.rstd) : V(fma)(V(sub)(x, s.mean), s.rstd, s.shift);
}

/* What makes y of xhat: the elements' weight and bias, and the activation. An absent weight is 1,
 * an absent bias -0, which changes no sum, not even a zero's sign. */
typedef struct NAME(epilogue) {
    planish_activation kind;
    VEC weight, bias;
} NAME(epilogue);

/* That of a channel, which has one weight and bias. */
INLINE NAME(epilogue) NAME(epilogue_at)(const REAL *weights, const REAL *biases, int weight_offset,
                                        int64_t c, const planish_activation f) {
    return (NAME(epilogue)){
        f,
        V(set1)(weights ? weights[c] + (REAL)weight_offset : 1),
        V(set1)(biases ? biases[c] : (REAL)-0.0),
    };
}

/* exp(-z), z between -LIMIT and 40: beyond 40 1 + exp(-z) is 1 in f64 too. A power of two, and
 * a polynomial in the rest that is off by 2^-28, in f64 2^-57. NaN stays. */
INLINE VEC NAME(exp_minus)(VEC z) {
    static const REAL terms[] = {EXP(TERMS)};
    enum { COUNT = sizeof terms / sizeof *terms };
    const VEC shifter = V(set1)(EXP(SHIFTER)), one = V(set1)(1);
    const VEC shifted = V(fma)(z, V(set1)((REAL)-1.4426950408889634), shifter);
    const VEC n = V(sub)(shifted, shifter), minus_z = V(sub)(V(set1)(0), z);
    const VEC high = V(fma)(n, V(set1)(-EXP(LN2)), minus_z);
    const VEC r = V(fma)(n, V(set1)(-EXP(LN2_REST)), high);
    VEC p = V(set1)(terms[0]);
    UNROLL for (int i = 1; i < COUNT; i++) p = V(fma)(p, r, V(set1)(terms[i]));
    return V(mul)(V(fma)(V(fma)(p, r, one), r, one), V(power)(shifted));
}

/* Near enough to 0 or to z from here on. */
INLINE VEC NAME(limited)(VEC z) {
    return V(least)(V(set1)(40), V(most)(V(set1)(-EXP(LIMIT)), z));
}

/* f(z) */
INLINE VEC NAME(activated)(const planish_activation f, VEC z) {
    if (f == PLANISH_RELU)
        return V(most)(V(set1)(0), z);
    if (f != PLANISH_SILU)
        return z;
    const VEC below = V(add)(V(set1)(1), NAME(exp_minus)(NAME(limited)(z)));
    return V(div)(V(most)(V(set1)(-EXP(LIMIT)), z), below);
}

/*
 * y of x: the only text that makes it, in every forward kernel. Where the activation is a constant
 * PLANISH_IDENTITY nothing is left of it.
 */
INLINE VEC NAME(result)(VEC x, NAME(scale) s, NAME(epilogue) e, const bool rms) {
    return NAME(activated)(e.kind, V(fma)(NAME(normalize)(x, s, rms), e.weight, e.bias));
}

/* d * f'(xhat * weight + bias). */
INLINE VEC NAME(through)(NAME(epilogue) of, VEC d, VEC xhat) {
    const VEC z = V(fma)(xhat, of.weight, of.bias);
    const planish_activation f = of.kind;
    if (f == PLANISH_RELU)
        return V(drop)(d, z, V(set1)(0));
    if (f != PLANISH_SILU)
        return d;
    const VEC one = V(set1)(1), near = NAME(limited)(z), e = NAME(exp_minus)(near);
    const VEC s = V(div)(one, V(add)(one, e));
    return V(mul)(d, V(mul)(s, V(fma)(V(mul)(e, s), near, one)));
}
