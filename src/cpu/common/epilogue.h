/*
 * How an element becomes y: xhat = (x - mean) * rstd - delta, z = xhat * weight + bias, y = f(z),
 * in the words of cpu/common/unit.h; for rows, channels, groups and pixels alike. What else is to
 * follow a norm belongs into result. Whether y is in range is not asked here: that is known of a
 * row's moments before (cpu/common/overflow.c).
 *
 * A further activation is a case in `activated` and `through`, and in two functions of
 * cpu/common/overflow.c.
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

/*
 * R of P(X > a) = exp(-a^2 / 2) t R(v), X of the standard normal distribution, t = 1 / (1 + .3 a),
 * v = t in f32 and 2 t - 1 in f64; of least relative error for 0 <= a <= TAIL, highest power first
 * (Remez; off by 2^-28, in f64 2^-58). Beyond TAIL it is taken as what it is there.
 */
#define EXP_TAIL_f32 13.125f
#define EXP_TAIL_f64 37.5
#define EXP_NORMAL_f32                                                                             \
    -.020578989778f, .11218519454f, -.22760141867f, .19093325323f, -.078682926333f,                \
        .095739754945f, .078541382265f, .11020111626f, .1195761798f, .11968645203f
#define EXP_NORMAL_f64                                                                             \
    3.2106417885124929738e-10, -1.0664191775245867659e-9, -6.9363456941067457941e-10,              \
        7.4038130659407806245e-9, -7.2444698895968528126e-9, -2.0762277029189873403e-8,            \
        5.864551008740512684e-8, -4.3640280327068352904e-9, -2.3066125052194807373e-7,             \
        3.5053759905514200176e-7, 5.1818581184120996466e-7, -2.2483181291200598379e-6,             \
        2.4464474272395094657e-7, 1.0730859739274736207e-5, -1.1125591962861594961e-5,             \
        -4.9746270319967717134e-5, 9.0139922708708698163e-5, 2.8363690709670193808e-4,             \
        -5.7564251646052562266e-4, -2.4238965474038257804e-3, 1.8171357955089891114e-3,            \
        2.7760365473703533754e-2, 8.6549637418461610544e-2, 1.6457948408616296038e-1,              \
        2.2197061383443279004e-1
/* The logistic function's argument in GELU's tanh form is z (SLOPE + CUBE z^2): 2 sqrt(2 / pi), and
 * that times .044715. At -CUBIC it is above -LIMIT, at CUBIC 1 + exp(-it) is 1. */
#define GELU_SLOPE 1.5957691216057307117597842397375274
#define GELU_CUBE .071354816272600248756838752279863538
#define EXP_CUBIC_f32 9.97f
#define EXP_CUBIC_f64 21.1

/* What normalises a vector: xhat = (x - mean) * rstd + minus_delta. delta is what the mean in the
 * compute type lacks of the row's own, times rstd. */
typedef struct NAME(normalizer) {
    VEC mean, rstd, minus_delta;
} NAME(normalizer);

/* With rms a constant: mean and minus_delta are not read. */
INLINE VEC NAME(normalize)(VEC x, NAME(normalizer) s, const bool rms) {
    return rms ? V(mul)(x, s.rstd) : V(fma)(V(sub)(x, s.mean), s.rstd, s.minus_delta);
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

/* exp(-z), z between -LIMIT and LIMIT. A power of two, and
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

/* Near enough to 0 or to z from here on: beyond 40 1 + exp(-z) is 1 in f64 too. */
INLINE VEC NAME(limited)(VEC z) {
    return V(least)(V(set1)(40), V(most)(V(set1)(-EXP(LIMIT)), z));
}

/* |z|, not beyond TAIL; NaN stays. And exp(-a^2 / 2) of that, with the factor that makes it the
 * tail of the normal distribution. */
INLINE VEC NAME(tail_place)(VEC z) {
    return V(least)(V(set1)(EXP(TAIL)), V(most)(V(sub)(V(set1)(0), z), z));
}
INLINE VEC NAME(bell)(VEC a) {
    return NAME(exp_minus)(V(mul)(V(mul)(a, a), V(set1)((REAL).5)));
}
INLINE VEC NAME(tail_factor)(VEC a) {
    static const REAL terms[] = {EXP(NORMAL)};
    enum { COUNT = sizeof terms / sizeof *terms };
    const VEC one = V(set1)(1), t = V(div)(one, V(fma)(a, V(set1)((REAL).3), one));
    const VEC v = sizeof(REAL) == 8 ? V(sub)(V(add)(t, t), one) : t;
    VEC p = V(set1)(terms[0]);
    UNROLL for (int i = 1; i < COUNT; i++) p = V(fma)(p, v, V(set1)(terms[i]));
    return V(mul)(p, t);
}

/* z P(X <= z) is max(z, 0) - |z| P(X > |z|): no digits are lost where it is small. */
INLINE VEC NAME(gelu)(VEC z) {
    const VEC a = NAME(tail_place)(z), zero = V(set1)(0);
    const VEC tail = V(mul)(NAME(bell)(a), NAME(tail_factor)(a));
    return V(fma)(V(sub)(zero, a), tail, V(drop)(z, z, zero));
}
/* P(X <= z) + z exp(-z^2 / 2) / sqrt(2 pi) */
INLINE VEC NAME(gelu_slope)(VEC z) {
    const VEC a = NAME(tail_place)(z), one = V(set1)(1);
    const VEC density = V(set1)((REAL)-.39894228040143267793994605993438187);
    const VEC below = V(mul)(NAME(bell)(a), V(fma)(a, density, NAME(tail_factor)(a)));
    return V(add)(below, V(drop)(V(sub)(one, V(add)(below, below)), z, V(set1)(0)));
}

/* g(z) of z / (1 + exp(-g(z))), which is tanh's form of GELU; z where it is SiLU. */
INLINE VEC NAME(gelu_argument)(VEC z) {
    const VEC slope = V(set1)((REAL)GELU_SLOPE), cube = V(set1)((REAL)GELU_CUBE);
    return V(mul)(z, V(fma)(V(mul)(z, z), cube, slope));
}
/*
 * z / (1 + e). In f64, whose last digits nothing wider holds, that is z - e z / (1 + e) where z is
 * above 0: the roundings on the way are of what is taken off, which is little where y is large.
 */
INLINE VEC NAME(logistic_part)(VEC z, VEC argument) {
    const VEC one = V(set1)(1), e = NAME(exp_minus)(NAME(limited)(argument));
    const VEC part = V(div)(z, V(add)(one, e));
    if (sizeof(REAL) == 4)
        return part;
    /* Of an infinity nothing is taken off; e is next to nothing long before. */
    const VEC taken = V(drop)(V(least)(part, V(set1)((REAL)1e30)), z, V(set1)(0));
    return V(fma)(V(sub)(V(set1)((REAL)-0.0), taken), e, V(most)(z, part));
}
/* The derivative of that, with the derivative of g. */
INLINE VEC NAME(logistic_slope)(VEC z, VEC argument, VEC slope) {
    const VEC one = V(set1)(1), e = NAME(exp_minus)(argument), s = V(div)(one, V(add)(one, e));
    return V(mul)(s, V(fma)(V(mul)(e, s), V(mul)(z, slope), one));
}
INLINE VEC NAME(gelu_tanh)(VEC z) {
    const VEC near = V(most)(V(set1)(-EXP(CUBIC)), z);
    return NAME(logistic_part)(near, NAME(gelu_argument)(near));
}
INLINE VEC NAME(gelu_tanh_slope)(VEC z) {
    const VEC near = V(least)(V(set1)(EXP(CUBIC)), V(most)(V(set1)(-EXP(CUBIC)), z));
    const VEC slope =
        V(fma)(V(mul)(near, near), V(set1)((REAL)(3 * GELU_CUBE)), V(set1)((REAL)GELU_SLOPE));
    return NAME(logistic_slope)(near, NAME(limited)(NAME(gelu_argument)(near)), slope);
}

/* z min(max(z + 3, 0), 6) / 6: z itself from 3 on. */
INLINE VEC NAME(hardswish)(VEC z) {
    const VEC three = V(set1)(3), near = V(most)(V(sub)(V(set1)(0), three), z);
    const VEC share = V(least)(V(set1)(6), V(add)(near, three));
    return V(mul)(near, V(mul)(share, V(set1)((REAL)(1. / 6))));
}
/* z / 3 + 1 / 2 between -3 and 3, 0 from there down and 1 from there up. */
INLINE VEC NAME(hardswish_slope)(VEC z) {
    const VEC zero = V(set1)(0), one = V(set1)(1), three = V(set1)(3);
    const VEC s = V(fma)(z, V(set1)((REAL)(1. / 3)), V(set1)((REAL)-.5));
    return V(drop)(V(add)(V(drop)(s, V(sub)(three, z), zero), one), V(add)(z, three), zero);
}

/* f(z) */
INLINE VEC NAME(activated)(const planish_activation f, VEC z) {
    if (f == PLANISH_RELU)
        return V(most)(V(set1)(0), z);
    if (f == PLANISH_SILU)
        return NAME(logistic_part)(V(most)(V(set1)(-EXP(LIMIT)), z), z);
    if (f == PLANISH_GELU)
        return NAME(gelu)(z);
    if (f == PLANISH_RELU6)
        return V(least)(V(set1)(6), V(most)(V(set1)(0), z));
    if (f == PLANISH_HARDSWISH)
        return NAME(hardswish)(z);
    return f == PLANISH_GELU_TANH ? NAME(gelu_tanh)(z) : z;
}

/*
 * y of x: the only text that makes it, in every forward kernel. Where the activation is a constant
 * PLANISH_IDENTITY nothing is left of it.
 */
INLINE VEC NAME(result)(VEC x, NAME(normalizer) s, NAME(epilogue) e, const bool rms) {
    return NAME(activated)(e.kind, V(fma)(NAME(normalize)(x, s, rms), e.weight, e.bias));
}

/* d * f'(xhat * weight + bias). */
INLINE VEC NAME(through)(NAME(epilogue) of, VEC d, VEC xhat) {
    const VEC z = V(fma)(xhat, of.weight, of.bias);
    const planish_activation f = of.kind;
    if (f == PLANISH_RELU)
        return V(drop)(d, z, V(set1)(0));
    if (f == PLANISH_SILU) {
        const VEC one = V(set1)(1), near = NAME(limited)(z), e = NAME(exp_minus)(near);
        const VEC s = V(div)(one, V(add)(one, e));
        return V(mul)(d, V(mul)(s, V(fma)(V(mul)(e, s), near, one)));
    }
    if (f == PLANISH_GELU)
        return V(mul)(d, NAME(gelu_slope)(z));
    if (f == PLANISH_RELU6)
        return V(drop)(V(drop)(d, z, V(set1)(0)), V(sub)(V(set1)(6), z), V(set1)(0));
    if (f == PLANISH_HARDSWISH)
        return V(mul)(d, NAME(hardswish_slope)(z));
    return f == PLANISH_GELU_TANH ? V(mul)(d, NAME(gelu_tanh_slope)(z)) : d;
}
