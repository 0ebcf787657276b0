/*
 * What the kernels of rows of few columns share, forward and backward (rows_short.h, rows_step.h);
 * part of cpu/rows/rows.h, whose parameters and helpers it uses.
 */

/* The most columns: a step's x and y and the next one's x fit the first-level cache. */
enum { NAME(STEP_COLS) = NAME(FEW_COLS) };

INLINE void NAME(fold_step)(const VEC sums[], const int count, REAL out[]) {
    if (count == FOLD_ROWS)
        V(fold8)(sums, out);
    else
        NAME(fold_rows)(sums, count, out);
}

INLINE int NAME(short_left)(int k, const int vecs, int last) {
    return k + 1 < vecs ? VEC_LANES : last;
}

/* The lanes of a row of `vecs` vectors folded to one vector. */
INLINE VEC NAME(short_fold)(VEC part[], const int vecs) {
    UNROLL for (int half = NAME(PARTS) / 2; half; half /= 2)
        UNROLL for (int k = 0; k < half; k++) if (k + half < vecs) part[k] =
            V(add)(part[k], part[k + half]);
    return part[0];
}

/* Vector k of a row, or its square, added to its lanes; the first to come there is all of them. */
INLINE void NAME(short_add)(VEC part[], int k, VEC v) {
    part[k % NAME(PARTS)] = k < NAME(PARTS) ? v : V(add)(part[k % NAME(PARTS)], v);
}

/* Copies rows that were made one behind the other to where they belong. */
INLINE void NAME(place_rows)(char *y, int64_t y_pitch, const ELEMENT_T *piece, int64_t n,
                             int count) {
    const size_t bytes = (size_t)n * sizeof(ELEMENT_T);
    if (y_pitch == (int64_t)bytes)
        memcpy(y, piece, (size_t)count * bytes);
    else
        for (int r = 0; r < count; r++)
            memcpy(y + r * y_pitch, piece + r * n, bytes);
}

/* Prefetches the lines of `count` rows, `ahead` bytes on. */
INLINE void NAME(prefetch_rows)(const char *rows, int64_t ahead, int64_t pitch, int64_t n,
                                int count, bool wanted, const int to_write) {
    if (pitch == n * (int64_t)sizeof(ELEMENT_T)) {
        NAME(prefetch_row)((const ELEMENT_T *)rows, ahead, n * count, wanted, to_write);
        return;
    }
    for (int r = 0; r < count; r++)
        NAME(prefetch_row)((const ELEMENT_T *)rows, ahead + r * pitch, n, wanted, to_write);
}
