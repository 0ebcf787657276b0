/*
 * x + residual of dense elements, rounded to s's dtype, in one go; part of
 * cpu/stages/kernels_stages.c. For the dtypes that are worth a text; other elements go through the
 * loops of stages one by one, and have the same bits.
 */

/* So many vectors at a time, and what is read so much later is prefetched. */
enum { NAME(JOINED) = 4, NAME(JOIN_AHEAD) = 2048 };

#define STORE_MADE(p, v, made) V__(store_vector, REAL_TOKEN)(p, v, made)

#if TOKEN(ELEMENT) == TOKEN_f64
INLINE VEC NAME(load_of)(const char *from, const dtype type) {
    (void)type;
    return f64v_load_f64((const double *)(const void *)from);
}
#else
INLINE VEC NAME(load_of)(const char *from, const dtype type) {
    if (type == DTYPE_F16)
        return f32v_load_f16((const uint16_t *)(const void *)from);
    if (type == DTYPE_BF16)
        return f32v_load_bf16((const uint16_t *)(const void *)from);
    return f32v_load_f32((const float *)(const void *)from);
}
#endif

/* Types are constants. s may be x or the residual. */
INLINE void NAME(join_as)(char *s, const char *x, const char *residual, const dtype x_type,
                          const dtype r_type, const dtype s_type, int64_t n) {
    enum { STEP = NAME(JOINED) * VEC_LANES };
    const int64_t x_bytes = dtype_bytes(x_type), r_bytes = dtype_bytes(r_type);
    const int64_t s_bytes = dtype_bytes(s_type);
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        VEC v[NAME(JOINED)];
        UNROLL for (int k = 0; k < NAME(JOINED); k++) {
            const int64_t at = i + k * VEC_LANES;
            v[k] = V(add)(NAME(load_of)(x + at * x_bytes, x_type),
                          NAME(load_of)(residual + at * r_bytes, r_type));
        }
        UNROLL for (int k = 0; k < NAME(JOINED); k++)
            STORE_MADE(s + (i + k * VEC_LANES) * s_bytes, v[k], s_type);
        for (int64_t at = 0; at < STEP * s_bytes; at += 64)
            __builtin_prefetch((const void *)((uintptr_t)(s + i * s_bytes + at) + NAME(JOIN_AHEAD)),
                               1, 3);
        for (int64_t at = 0; at < STEP * x_bytes; at += 64)
            __builtin_prefetch((const void *)((uintptr_t)(x + i * x_bytes + at) + NAME(JOIN_AHEAD)),
                               0, 3);
        for (int64_t at = 0; at < STEP * r_bytes; at += 64)
            __builtin_prefetch(
                (const void *)((uintptr_t)(residual + i * r_bytes + at) + NAME(JOIN_AHEAD)), 0, 3);
    }
    for (; i < n; i++) {
        const REAL sum = (REAL)element_load(x + i * x_bytes, x_type) +
                         (REAL)element_load(residual + i * r_bytes, r_type);
        element_store(s + i * s_bytes, s_type, (double)sum);
    }
}

static bool NAME(join)(void *s, const void *x, const void *residual, dtype x_type, dtype r_type,
                       dtype s_type, int64_t n) {
#define JOIN(xt, rt, st)                                                                           \
    if (x_type == (xt) && r_type == (rt) && s_type == (st)) {                                      \
        NAME(join_as)(s, x, residual, xt, rt, st, n);                                              \
        return true;                                                                               \
    }
    JOIN(DTYPE_OF(ELEMENT), DTYPE_OF(ELEMENT), DTYPE_OF(ELEMENT))
#if TOKEN(ELEMENT) == TOKEN_f32
    JOIN(DTYPE_BF16, DTYPE_BF16, DTYPE_BF16)
    JOIN(DTYPE_F16, DTYPE_F16, DTYPE_F16)
    JOIN(DTYPE_BF16, DTYPE_F32, DTYPE_F32)
    JOIN(DTYPE_F16, DTYPE_F32, DTYPE_F32)
#endif
#undef JOIN
    return false;
}
