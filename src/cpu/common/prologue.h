/*
 * Where the forward kernels of rows get their rows from: the only text that makes pointers to them,
 * in the words of cpu/rows/rows.h. What is to come before a norm is done to a block of rows before
 * the kernels take it (cpu/rows/rows_sum_forward.h), so that these take x alone.
 */

INLINE const char *NAME(x_at)(const forward_args *a, int64_t row) {
    return a->x + row * a->x_pitch;
}
INLINE void NAME(x_rows)(const forward_args *a, int64_t row, const int count,
                         const ELEMENT_T *x[]) {
    for (int r = 0; r < count; r++)
        x[r] = (const ELEMENT_T *)NAME(x_at)(a, row + r);
}
