/*
 * Norms over groups of channels: image n has GROUPS groups of DEPTH channels of PIXELS pixels, a row
 * for each group of an image; weight and bias vary by channel. Everything is made of sums over one
 * channel of one image, which are what dweight and dbias need, too.
 *
 * VARIANT GROUPS_BY_ROW, backward in one read (pixels dense): a block, or a cluster of CLUSTER of them,
 * takes a row, x and dy, into shared memory; or COOPERATING_BLOCKS blocks anywhere on the device (a cooperative launch).
 * GROUPS_SUMS, GROUPS_MOMENTS, GROUPS_APPLY, each tensor read twice, for rows of any length: sums of every
 * channel over PIECE pixels at a time; what those of a group come to; the output. Forward (PASS 0) or
 * backward (1).
 * GROUPS_IN_TILES, in one read, too (pixels dense): several rows in a block, or one in a cluster, as they lie
 * in memory (group_tiles.cu).
 * LAST: channels are dense, pixels COLS apart; else pixels are dense.
 *
 * Pieces are cut by COLS, PIXELS and the dtypes alone, so that a row does not depend on the others.
 * Sums run along fixed trees. Forward sums are about pivots, and the mean stays a pair; rows whose
 * squares leave float's range are summed again, scaled by a power of two.
 *
 * Constants: VARIANT PASS KIND ACTIVATION GROUPS DEPTH PIXELS COLS (channels of an image) PIECE WIDTH LANES
 * THREADS_PER_CHANNEL (of tiles) PLANES WARPS CLUSTER COOPERATING_BLOCKS ROWS OUT_LIES_AS_X (of tiles) LAST CORRECT WEIGHT_OFFSET
 * MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS DY_ACCESS Y_ACCESS DX_ACCESS DSUM_ACCESS (alignments of
 * a row in bytes). DSUM_TYPE not NONE: dx is made of f32, dsum joins it, and what is written is dresidual's dtype.
 */
#include "group_words.cu"

constexpr int PIECES = ceil_div(PIXELS, PIECE);

/* The sums of COUNT values over the block, in every thread; `room` holds WARPS x COUNT. */
template <int COUNT, typename T>
__device__ __forceinline__ void sum_over_block(T *v, T (*room)[COUNT]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = sum_over_lanes<WARP>(v[j], lane);
    if (WARPS == 1)
        return;
    if (lane == 0)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            room[threadIdx.x / WARP][j] = v[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        v[j] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[j] += room[w][j];
    }
    __syncthreads();
}

#include "group_backward.cu"
#include "group_backward_anywhere.cu"
#include "group_pieces.cu"
#include "group_moments.cu"
#include "group_output.cu"
#include "group_tiles.cu"
#include "group_tile_forward.cu"
#include "group_tile_backward.cu"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_groups(const groups_args args) {
    const i64 rows = args.images * GROUPS;
    if constexpr (VARIANT == GROUPS_BY_ROW) {
        if constexpr (ANYWHERE)
            backward_rows_anywhere(args);
        else
            backward_rows(args);
        return;
    }
    if constexpr (VARIANT == GROUPS_IN_TILES) {
        if constexpr (FORWARD)
            forward_tiles(args);
        else
            backward_tiles(args);
        return;
    }
    wait_for_stream();
    release_stream();
    if constexpr (VARIANT == GROUPS_MOMENTS) {
        for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
            if constexpr (FORWARD)
                forward_moments(args, row);
            else
                backward_moments(args, row);
        }
    } else {
        const i64 units = args.images * PIECES * (LAST ? STRIPS : COLS);
        const i64 blocks = LAST ? units : (units + WARPS - 1) / WARPS;
        for (i64 turn = blockIdx.x; turn < blocks; turn += gridDim.x) {
            /* The output begins where the sums ended: that is still in the L2. */
            const i64 number = VARIANT == GROUPS_APPLY ? blocks - 1 - turn : turn;
            piece_place p = piece_of(number);
            if (!LAST && number * WARPS + threadIdx.x / WARP >= units)
                continue;
            if constexpr (VARIANT == GROUPS_APPLY) {
                apply_pieces(args, p);
            } else if constexpr (LAST) {
                sum_pixels(args, p);
                __syncthreads();
            } else {
                sum_channel(args, p);
            }
        }
    }
}
