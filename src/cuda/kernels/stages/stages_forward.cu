/*
 * Forward of dense rows with what stands around the norm (planish.h): x is scaled, dropped and added to a
 * residual, the sum is normalized, and what comes of that is modulated, activated, gated and quantised.
 * Each input is read once and each output written once.
 *
 * What the norm reads, s, takes the place of x in the texts that this one shares with forward.cu: X_TYPE is
 * the dtype that s is rounded to, and rows are cut, held and summed as forward.cu does with rows of that
 * dtype. So the result has the bits of an addition followed by a norm. The input itself is ROLE_BRANCH,
 * as in the backward. HOLD, which also says how a thread finds its pivot, keeps s; where rows are not held, s
 * is read from the sum or, without one, made again. Rows in tiles and in runs of words (VARIANT) are held in
 * registers, as all short ones are; in runs, they pass through shared memory for their sums.
 *
 * TWO_LEVELS: rows are counted by two axes. VARIES says of which tensors the address depends on the row, ALIKE
 * which have one element for all of it: sets of roles. Q's scale is one that is read, one for SCALE_BLOCK columns
 * (COLS: for the row) or, 0, none.
 *
 * Constants: those of forward.cu but RING_SLOTS DELAY GROUPS COOPERATING_BLOCKS, which are 0 or 1, and GATE_BEFORE
 * GATE_IN_SHARED ROUND_XHAT DROPOUT WANT_Y (else Y_TYPE stands for what y would be) TWO_LEVELS VARIES ALIKE
 * INDEX_ALIGNED (of the number of a row's first element, up to 4) SCALE_BLOCK POWER_OF_TWO.
 */
#include "../arguments/stages_args.h"

/* As the parts of forward.cu know them that this one shares. */
typedef stages_forward_args row_args;

#include "../rows/forward_constants.cu"

#include "../common/fusion.cu"
#include "../common/early_parameters.cu"
#include "../rows/forward_place.cu"
#include "philox.cu"
#include "quantize.cu"
#include "stages_rows.cu"
#include "../rows/forward_sums.cu"
#include "../rows/forward_moments.cu"
#include "../rows/centred_moments.cu"
#include "../rows/row_tiles.cu"
#include "../rows/row_runs.cu"
#include "stages_moments.cu"
#include "stages_output.cu"
#include "stages_scales.cu"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_stages_forward(const row_args args) {
    __shared__ entry slots[2][WITHIN_WARP ? 1 : WARPS], block_slots[2][CLUSTER];
    __shared__ u64 byte_barriers[2];
    place p;
    place_of_thread(p, (entry(*)[WARPS])slots, block_slots, byte_barriers);
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    const i64 team = WITHIN_WARP ? (i64)blockIdx.x * WARPS + p.warp : blockIdx.x / CLUSTER;
    float amax = 0;
    wait_for_stream();
    release_stream();
    if constexpr (EARLY == EARLY_TO_L1) {
        constexpr int WEIGHTS = WEIGHT_TYPE == NONE ? 0 : COLS * bytes_of(WEIGHT_TYPE);
        constexpr int BIASES = BIAS_TYPE == NONE ? 0 : COLS * bytes_of(BIAS_TYPE);
        bring_parameters<WEIGHTS, BIASES, THREADS>(args.tensor[ROLE_WEIGHT].data, args.tensor[ROLE_BIAS].data);
    }
    philox_key key = {};
    if (DROPOUT)
        key = load_philox_key(args.tensor[ROLE_RNG].data);
    if (CLUSTER > 1)
        cluster_wait();
    for (i64 first = team * STEP; first < args.rows; first += args.row_turn) {
        const i64 row = first + (WITHIN_WARP ? p.lane / WARP_LANES : 0);
        row_reader reader[ROWS];
        row_moments moments[ROWS];
        output_columns early[EARLY == EARLY_IN_REGISTERS && ROWS == 1 ? CHUNKS_PER_THREAD : 1];
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            begin_row(args, p, key, reader[u], row + u * PER_WARP, u);
        bring_rows(args, p, key, reader);
        if constexpr (EARLY == EARLY_IN_REGISTERS && ROWS == 1)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                if (reader[0].there && p.has(k))
                    early[k].load(args, p, reader[0], k);
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            moments[u] = moments_of_row(args, p, reader[u]);
            if (reader[u].there && p.rank == 0)
                save_statistics(args, reader[u], moments[u]);
        }
        if constexpr (GATE_WAITS)
            copy_async_wait<0>();
        put(args, p, early, reader, moments, amax);
    }
    if constexpr (TYPES[ROLE_AMAX] != NONE)
        raise_amax(args, p, amax);
    if constexpr (EARLY == EARLY_TO_L1)
        copy_async_wait<0>();
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

/* Before the other: what is to become a maximum. */
extern "C" __global__ void __launch_bounds__(WARP) planish_stages_clear(const row_args args) {
    wait_for_stream();
    release_stream();
    if (threadIdx.x == 0)
        store_element<F32>(args.tensor[ROLE_AMAX].data, 0, 0);
}
