/*
 * The end of every forward: y = f(xhat * scale + offset), packed and put. What stands behind a norm is
 * written here once, for rows, channels, groups and strips; where an element's xhat comes from, what it
 * is scaled by and where its y goes is each family's. Knows no layout. Included by what makes y.
 *
 * Sources and places are types whose functions are static and are handed their state: an object that
 * points to a thread's arrays would have the compiler put these into registers later, in another order.
 *
 * Constants: ACTIVATION Y_TYPE WEIGHT_TYPE BIAS_TYPE, and those of activation.cu.
 */
#include "activation.cu"

/* y of an element. */
template <bool SCALES = WEIGHT_TYPE != NONE, bool OFFSETS = BIAS_TYPE != NONE, bool TWICE = false, typename T>
__device__ __forceinline__ T epilogue(T xhat, T scale, T offset) {
    return activated(affine_of_xhat<SCALES, OFFSETS, TWICE>(xhat, scale, offset));
}

/*
 * y of chunk k, of COUNT elements, of a thread's ROWS_AT_ONCE rows. `w` and `y` are what weight_source and
 * y_place need, `rows` what row_source does:
 *
 *     y_place::has(p, k)                             whether the thread has a chunk k
 *     y_place::put(args, p, y, u, k, out)            packs and stores that of row u
 *     weight_source::take(args, p, w, k, scale, offset)             of chunk k, for every row
 *     weight_source::take_in(args, p, u, k, scale, offset, rows...) of row u, or what waits for its chunk
 *     row_source::there(u, rows...)                  whether the thread has row u
 *     row_source::take(p, u, k, rows...)             its chunk k
 *     row_source::xhat(chunk, i, u, k, rows...)      element i of that chunk, normalized
 */
template <typename row_source, typename weight_source, typename y_place, int ROWS_AT_ONCE, int COUNT,
          typename arguments, typename thread_place, typename weight_state, typename y_state,
          typename... row_state>
__device__ __forceinline__ void chunk_output(const arguments &args, const thread_place &p,
                                             const weight_state &w, y_state y, int k,
                                             const row_state *...rows) {
    real scale[COUNT], offset[COUNT];
    if (!y_place::has(p, k))
        return;
    weight_source::take(args, p, w, k, scale, offset);
#pragma unroll
    for (int u = 0; u < ROWS_AT_ONCE; u++) {
        if (!row_source::there(u, rows...))
            continue;
        const auto c = row_source::take(p, u, k, rows...);
        real out[COUNT];
        weight_source::take_in(args, p, u, k, scale, offset, rows...);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            out[i] = epilogue(row_source::xhat(c, i, u, k, rows...), scale[i], offset[i]);
        y_place::put(args, p, y, u, k, out);
    }
}

/* The same of the thread's CHUNK_COUNT chunks, UNROLLED of them at a time (0: all). */
template <typename row_source, typename weight_source, typename y_place, int ROWS_AT_ONCE, int CHUNK_COUNT,
          int COUNT, int UNROLLED, typename arguments, typename thread_place, typename weight_state,
          typename y_state, typename... row_state>
__device__ __forceinline__ void row_output(const arguments &args, const thread_place &p,
                                           const weight_state &w, y_state y, const row_state *...rows) {
    if constexpr (UNROLLED == 0) {
#pragma unroll
        for (int k = 0; k < CHUNK_COUNT; k++)
            chunk_output<row_source, weight_source, y_place, ROWS_AT_ONCE, COUNT>(args, p, w, y, k, rows...);
    } else {
#pragma unroll UNROLLED
        for (int k = 0; k < CHUNK_COUNT; k++)
            chunk_output<row_source, weight_source, y_place, ROWS_AT_ONCE, COUNT>(args, p, w, y, k, rows...);
    }
}
