/*
 * A part of forward.cu, forward_pair.cu and ../around/modulated_forward.cu: the arguments of rows, and what a
 * block does with them. What the constants mean is in forward.cu.
 */
#include "row_levels.cu"

struct forward_args {
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    i64 rows, x_stride, y_stride, mean_stride, rstd_stride; /* bytes from row to row */
    i64 row_turn, x_turn, y_turn; /* from turn to turn of a team */
    double eps;
    float eps_rounded;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
    u32 zero;         /* 0, which the compiler cannot know */
    u64 *mail;        /* COOPERATING_BLOCKS > 1: two lines for each group */
    row_levels levels;
    i64 x_jump[2], y_jump[2];                                     /* bytes (row_levels.cu) */
    i64 x_slice, weight_slice, bias_slice, y_slice, mean_slice, rstd_slice; /* from slice to slice */
#if PAIRED
    pair_place place; /* row_levels.cu */
#endif
};

#include "forward_constants.cu"
#include "../common/fusion.cu"
#include "../common/early_parameters.cu"
#include "forward_place.cu"
#include "forward_chunks.cu"
#include "forward_sums.cu"
#include "forward_moments.cu"
#include "forward_output.cu"
#include "forward_cooperative.cu"
#include "forward_blocks.cu"
#include "centred_moments.cu"
#include "centred_words.cu"
#include "row_tiles.cu"
#include "tiled_words.cu"
#include "row_runs.cu"
#include "forward_runs.cu"

/* The rows of a block's slice. */
__device__ __forceinline__ forward_args of_slice(const forward_args &all) {
    const i64 slice = ROW_SLICE(all);
    forward_args own = all;
    own.x = (const char *)all.x + slice * all.x_slice;
    own.weight = (const char *)all.weight + slice * all.weight_slice;
    own.bias = (const char *)all.bias + slice * all.bias_slice;
    own.y = (char *)all.y + slice * all.y_slice;
    own.mean = (char *)all.mean + slice * all.mean_slice;
    own.rstd = (char *)all.rstd + slice * all.rstd_slice;
    return own;
}

/* All that a block of the launch does; its rows begin where args say. */
__device__ __forceinline__ void rows_of_block(const forward_args &all) {
    const auto &args = own_rows<(SLICED != 0)>(all);
    __shared__ entry slots[2][WITHIN_WARP ? 1 : WARPS], block_slots[2][CLUSTER];
    __shared__ u64 byte_barriers[2];
    place p;
    place_of_thread(p, (entry(*)[WARPS])slots, block_slots, byte_barriers);
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    if constexpr (COOPERATIVE)
        cooperative_rows(args, p);
    else if constexpr (RUNS)
        runs_of_rows(args, p);
    else if constexpr (TILED)
        tiled_rows(args, p);
    else if constexpr (CENTRED)
        centred_rows(args, p);
    else
        block_rows(args, p);
}
