/*
 * A part of forward.cu, forward_pair.cu and ../stages/modulated_forward.cu: the arguments of rows, and what a
 * block does with them. What the constants mean is in forward.cu.
 */
#include "../arguments/row_args.h"
#include "row_levels.cu"

/* As the parts below know them: those that stages_forward.cu shares have other arguments there. */
typedef row_forward_args row_args;

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
__device__ __forceinline__ row_args of_slice(const row_args &all) {
    const i64 slice = ROW_SLICE(all);
    row_args own = all;
    own.x = (const char *)all.x + slice * all.x_slice;
    own.weight = (const char *)all.weight + slice * all.weight_slice;
    own.bias = (const char *)all.bias + slice * all.bias_slice;
    own.y = (char *)all.y + slice * all.y_slice;
    own.mean = (char *)all.mean + slice * all.mean_slice;
    own.rstd = (char *)all.rstd + slice * all.rstd_slice;
    return own;
}

/* All that a block of the launch does; its rows begin where args say. */
__device__ __forceinline__ void rows_of_block(const row_args &all) {
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
