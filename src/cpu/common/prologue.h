/*
 * Where the forward kernels of rows get their rows from: the only text that makes pointers to them,
 * in the words of cpu/rows/rows.h. These are x itself, or the sum of x and a residual, which is
 * made row by row just before the norm reads it from a near cache. Whatever else is to come before
 * a norm belongs here. The kernels of rows of few columns take x alone.
 */

INLINE const char *NAME(x_at)(const forward_args *a, int64_t row) {
    return a->x + row * a->x_pitch;
}
INLINE void NAME(x_rows)(const forward_args *a, int64_t row, const int count,
                         const ELEMENT_T *x[]) {
    for (int r = 0; r < count; r++)
        x[r] = (const ELEMENT_T *)NAME(x_at)(a, row + r);
}

/* How far ahead of a sum its terms are prefetched. */
enum { RESIDUAL_AHEAD = 1024 };

/* A row of the sum, rounded once. It may be written over either term. */
OUTLINE void NAME(add_residual)(const forward_args *a, int64_t row) {
    const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + row * a->x_pitch);
    const ELEMENT_T *const residual = (const ELEMENT_T *)(a->residual + row * a->residual_pitch);
    ELEMENT_T *const sum = (ELEMENT_T *)(a->sum + row * a->sum_pitch);
    const int64_t n = a->cols;
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        if (i * (int64_t)sizeof(ELEMENT_T) % 64 == 0) {
            NAME(prefetch_vector)(x + i, RESIDUAL_AHEAD, TRAFFIC_AHEAD);
            NAME(prefetch_vector)(residual + i, RESIDUAL_AHEAD, TRAFFIC_AHEAD);
        }
        STORE_X(sum + i, V(add)(LOAD_X(x + i), LOAD_X(residual + i)));
    }
    if (i == n)
        return;
    const int left = (int)(n - i);
    STORE_X_PART(sum + i, V(add)(LOAD_X_PART(x + i, left), LOAD_X_PART(residual + i, left)), left);
}

/* Rows [row, row + count), each to be asked for once. */
INLINE void NAME(staged_rows)(const forward_args *a, int64_t row, const int count,
                              const ELEMENT_T *x[]) {
    if (__builtin_expect(!a->residual, 1)) {
        NAME(x_rows)(a, row, count, x);
        return;
    }
    for (int r = 0; r < count; r++) {
        NAME(add_residual)(a, row + r);
        x[r] = (const ELEMENT_T *)(a->sum + (row + r) * a->sum_pitch);
    }
}

/* For who takes rows again: with what they were staged to in the place of x. */
INLINE forward_args NAME(staged_args)(const forward_args *a) {
    forward_args staged = *a;
    if (a->residual) {
        staged.x = a->sum;
        staged.x_pitch = a->sum_pitch;
        staged.residual = NULL;
    }
    return staged;
}
