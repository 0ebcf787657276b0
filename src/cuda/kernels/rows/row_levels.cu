/*
 * A part of forward.cu and backward.cu: where rows begin that do not all lie one stride apart, such as the
 * heads of one part of packed queries, keys and values.
 *
 * LEVELS axes number the rows, the last of them fastest. Beside its stride along that one a tensor has a jump
 * for each of the others: what a step there adds to the rows that it passes. So row r begins at
 *
 *     r * stride + r / (rows of the last axis) * jump[0] + r / (rows of the last two) * jump[1]
 *
 * With LEVELS > 1 there are fewer than 2^31 rows, and a quotient is a multiplication. The saved statistics have
 * one stride.
 *
 * SLICED: the rows are those of one slice, which has weights of its own, such as a head. blockIdx.x is the
 * slice, and blockIdx.y what blockIdx.x is else.
 *
 * PAIRED, a macro of forward_pair.cu and backward_pair.cu: a launch has the blocks of two sets of rows along
 * blockIdx.x, each set's behind those before it, slice by slice: block b of a set is block b / slices of
 * slice b % slices.
 */
#include "../common/quotient.cu"

constexpr bool LEVELLED = LEVELS > 1;

/* Bytes from a tensor's first row to row `row`. */
__device__ __forceinline__ i64 row_begin(const row_levels &levels, i64 row, i64 stride, const i64 *jump) {
    if (!LEVELLED)
        return row * stride;
    i64 bytes = (i64)(u32)row * stride + quotient_of(levels.rows[0], row) * jump[0];
    if (LEVELS > 2)
        bytes += quotient_of(levels.rows[1], row) * jump[1];
    return bytes;
}

/* Where COUNT rows of a thread begin that no stride leads from one to the next. */
template <int COUNT> struct row_bases {
    char *at[COUNT];
};

/* Those from `row` on, each `apart` rows behind the one before it. */
template <int COUNT>
__device__ __forceinline__ row_bases<COUNT> bases_of_rows(const row_levels &levels, char *base, i64 row, int apart,
                                                          i64 stride, const i64 *jump) {
    row_bases<COUNT> rows;
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        rows.at[u] = base + row_begin(levels, row + u * apart, stride, jump);
    return rows;
}

/* The rows of a tile (row_tiles.cu), from row `first` on: what stands there for their stride. */
struct row_spacing {
    const row_levels &levels;
    const i64 *jump;
    i64 first, stride;
};

/* A tile's rows of a tensor: the first from which they are counted, and their distances. */
template <bool ALL_DENSE> struct tile_rows {
    static constexpr bool PLAIN = !LEVELLED || ALL_DENSE;

    __device__ __forceinline__ static i64 begin(i64 first, i64 stride) { return PLAIN ? first * stride : 0; }
    __device__ __forceinline__ static i64 turn(i64 bytes) { return PLAIN ? bytes : 0; }
    __device__ __forceinline__ static auto spacing(const row_levels &levels, i64 first, i64 stride,
                                                   const i64 *jump) {
        if constexpr (PLAIN)
            return stride;
        else
            return row_spacing{levels, jump, first, stride};
    }
};

/* The number of a lane's row, where it is wanted. */
template <bool WANTED> struct row_counter {
    __device__ __forceinline__ void go_on(i64) {}
    __device__ __forceinline__ i64 at() const { return 0; }
};
template <> struct row_counter<true> {
    i64 row = 0;
    __device__ __forceinline__ void go_on(i64 rows) { row += rows; }
    __device__ __forceinline__ i64 at() const { return row; }
};

/* The arguments of a block's slice; all of them, where rows are not cut. */
template <bool CUT, typename arguments> __device__ __forceinline__ decltype(auto) own_rows(const arguments &all) {
    if constexpr (CUT)
        return of_slice(all);
    else
        return (all);
}

/*
 * Of this block: the slice of its rows, and its number among the blocks that share these. Macros, for an
 * argument that a function does not look at changes machine code, too.
 */
#if PAIRED
__device__ __forceinline__ u32 block_of_set(const pair_place &place) { return blockIdx.x - place.first_block; }
#define ROW_SLICE(args) (block_of_set((args).place) % (args).place.slices)
#define ROW_BLOCK(args) (block_of_set((args).place) / (SLICED ? (args).place.slices : 1))
#else
__device__ __forceinline__ u32 row_block() { return SLICED ? blockIdx.y : blockIdx.x; }
#define ROW_SLICE(args) blockIdx.x
#define ROW_BLOCK(args) row_block()
#endif
