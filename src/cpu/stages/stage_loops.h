/* Stages that are a formula of elements beside each other; part of cpu/stages/kernels_stages.c. */

/* us = `made` of u and v, vectors of us and vs; or of u alone. */
#define EACH_OF_TWO(made)                                                                          \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VEC_LANES <= n; i += VEC_LANES) {                                               \
            const VEC u = LOAD_REAL(us + i), v = LOAD_REAL(vs + i);                                \
            STORE_REAL(us + i, made);                                                              \
        }                                                                                          \
        if (i < n) {                                                                               \
            const int left = (int)(n - i);                                                         \
            const VEC u = LOAD_REAL_PART(us + i, left), v = LOAD_REAL_PART(vs + i, left);          \
            STORE_REAL_PART(us + i, made, left);                                                   \
        }                                                                                          \
    } while (0)
#define EACH_OF_ONE(made)                                                                          \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VEC_LANES <= n; i += VEC_LANES) {                                               \
            const VEC u = LOAD_REAL(us + i);                                                       \
            STORE_REAL(us + i, made);                                                              \
        }                                                                                          \
        if (i < n) {                                                                               \
            const VEC u = LOAD_REAL_PART(us + i, (int)(n - i));                                    \
            STORE_REAL_PART(us + i, made, (int)(n - i));                                           \
        }                                                                                          \
    } while (0)

static void NAME(multiply)(void *elements, const void *factors, int64_t n) {
    REAL *const us = elements;
    const REAL *const vs = factors;
    EACH_OF_TWO(V(mul)(u, v));
}

static void NAME(multiply_by)(void *elements, double factor, int64_t n) {
    REAL *const us = elements;
    const VEC by = V(set1)((REAL)factor);
    EACH_OF_ONE(V(mul)(u, by));
}

static void NAME(add)(void *elements, const void *terms, int64_t n) {
    REAL *const us = elements;
    const REAL *const vs = terms;
    EACH_OF_TWO(V(add)(u, v));
}

static void NAME(gate)(void *elements, const void *gates, int64_t n) {
    REAL *const us = elements;
    const REAL *const vs = gates;
    EACH_OF_TWO(V(mul)(u, NAME(activated)(PLANISH_SILU, v)));
}

static void NAME(weigh)(void *elements, const void *weights, int weight_offset, int64_t n) {
    REAL *const us = elements;
    const REAL *const vs = weights;
    const VEC offset = V(set1)((REAL)weight_offset);
    EACH_OF_TWO(V(mul)(u, V(add)(v, offset)));
}

/* z * (1 + scale) + shift, where 1 + scale is rounded and the rest rounded once. */
static void NAME(modulate)(void *elements, const void *scales, const void *shifts, int64_t n) {
    REAL *const us = elements;
    const REAL *const vs = scales ? scales : shifts, *const ws = shifts;
    const VEC one = V(set1)(1);
    if (!scales) {
        EACH_OF_TWO(V(add)(u, v));
    } else if (!shifts) {
        EACH_OF_TWO(V(mul)(u, V(add)(v, one)));
    } else {
        int64_t i = 0;
        for (; i + VEC_LANES <= n; i += VEC_LANES)
            STORE_REAL(us + i, V(fma)(LOAD_REAL(us + i), V(add)(LOAD_REAL(vs + i), one),
                                      LOAD_REAL(ws + i)));
        if (i < n) {
            const int left = (int)(n - i);
            const VEC u = LOAD_REAL_PART(us + i, left), v = LOAD_REAL_PART(vs + i, left);
            const VEC w = LOAD_REAL_PART(ws + i, left);
            STORE_REAL_PART(us + i, V(fma)(u, V(add)(v, one), w), left);
        }
    }
}

static void NAME(activate)(void *elements, planish_activation f, int64_t n) {
    REAL *const us = elements;
    if (f == PLANISH_RELU)
        EACH_OF_ONE(NAME(activated)(PLANISH_RELU, u));
    else if (f == PLANISH_SILU)
        EACH_OF_ONE(NAME(activated)(PLANISH_SILU, u));
    else if (f == PLANISH_GELU)
        EACH_OF_ONE(NAME(activated)(PLANISH_GELU, u));
    else if (f == PLANISH_GELU_TANH)
        EACH_OF_ONE(NAME(activated)(PLANISH_GELU_TANH, u));
    else if (f == PLANISH_RELU6)
        EACH_OF_ONE(NAME(activated)(PLANISH_RELU6, u));
    else if (f == PLANISH_HARDSWISH)
        EACH_OF_ONE(NAME(activated)(PLANISH_HARDSWISH, u));
}
