/*
 * Between tensors whose channels are neighbours and planes, one channel's pixels side by side in
 * the compute type; part of cpu/channels/channels.h, whose parameters it uses.
 */

INLINE int64_t NAME(smaller)(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Prefetches the lines of what is read later. */
INLINE void NAME(prefetch_row)(const char *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)((uintptr_t)row + (uintptr_t)i), 0, 2);
}

/* to[j * to_pitch + i] = from[i * from_pitch + j] for i < rows, j < cols. */
OUTLINE void NAME(transpose)(REAL *to, int64_t to_pitch, const REAL *from, int64_t from_pitch,
                             int64_t rows, int64_t cols) {
    const int64_t whole_rows = rows / BLOCK * BLOCK, whole_cols = cols / BLOCK * BLOCK;
    for (int64_t j = 0; j < whole_cols; j += BLOCK)
        for (int64_t i = 0; i < whole_rows; i += BLOCK)
            V(transpose)(to + j * to_pitch + i, to_pitch, from + i * from_pitch + j, from_pitch);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            to[j * to_pitch + i] = from[i * from_pitch + j];
}

/* What is converted at a time on the way: a part of some pixels. */
enum { NAME(PLANE_PIXELS) = 16, NAME(PLANE_CHANNELS) = 64 };

/* Plane c is at planes + c * to_pitch. Pixels are from_pitch bytes apart. */
static void NAME(gather_planes)(void *planes, int64_t to_pitch, const char *from,
                                int64_t from_pitch, dtype type, int64_t pixels, int64_t channels) {
    REAL *to = planes;
    _Alignas(64) REAL block[NAME(PLANE_PIXELS) * NAME(PLANE_CHANNELS)];
    const int64_t bytes = dtype_bytes(type);
    for (int64_t p = 0; p < pixels; p += NAME(PLANE_PIXELS))
        for (int64_t c = 0; c < channels; c += NAME(PLANE_CHANNELS)) {
            const int64_t rows = NAME(smaller)(NAME(PLANE_PIXELS), pixels - p);
            const int64_t cols = NAME(smaller)(NAME(PLANE_CHANNELS), channels - c);
            const char *at = from + p * from_pitch + c * bytes;
            for (int64_t i = 0; i < rows; i++)
                NAME(prefetch_row)(at + (i + NAME(PLANE_PIXELS)) * from_pitch, cols * bytes);
            if (type == REAL_DTYPE) {
                NAME(transpose)(to + c * to_pitch + p, to_pitch, (const REAL *)at,
                                from_pitch / bytes, rows, cols);
                continue;
            }
            for (int64_t i = 0; i < rows; i++)
                SPAN(widen, REAL_TOKEN)(block + i * NAME(PLANE_CHANNELS), at + i * from_pitch, type,
                                        cols);
            NAME(transpose)(to + c * to_pitch + p, to_pitch, block, NAME(PLANE_CHANNELS), rows,
                            cols);
        }
}

/* The other way. */
static void NAME(scatter_planes)(char *to, int64_t to_pitch, const void *from, int64_t from_pitch,
                                 dtype type, int64_t pixels, int64_t channels) {
    _Alignas(64) REAL block[NAME(PLANE_PIXELS) * NAME(PLANE_CHANNELS)];
    const int64_t bytes = dtype_bytes(type);
    for (int64_t p = 0; p < pixels; p += NAME(PLANE_PIXELS))
        for (int64_t c = 0; c < channels; c += NAME(PLANE_CHANNELS)) {
            const int64_t rows = NAME(smaller)(NAME(PLANE_PIXELS), pixels - p);
            const int64_t cols = NAME(smaller)(NAME(PLANE_CHANNELS), channels - c);
            const REAL *planes = (const REAL *)from + c * from_pitch + p;
            char *at = to + p * to_pitch + c * bytes;
            if (type == REAL_DTYPE) {
                NAME(transpose)((REAL *)at, to_pitch / bytes, planes, from_pitch, cols, rows);
                continue;
            }
            NAME(transpose)(block, NAME(PLANE_CHANNELS), planes, from_pitch, cols, rows);
            for (int64_t i = 0; i < rows; i++)
                SPAN(narrow, REAL_TOKEN)(at + i * to_pitch, block + i * NAME(PLANE_CHANNELS), type,
                                         cols);
        }
}
