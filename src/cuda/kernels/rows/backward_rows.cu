/*
 * A part of backward.cu, backward_pair.cu and ../stages/modulated_backward.cu: the arguments of rows, what follows
 * from the constants, and what a block does. What the constants mean is in backward.cu.
 */
#include "../arguments/row_args.h"
#include "row_levels.cu"

/* As the parts below know them: those that stages_backward.cu shares have other arguments there. */
typedef row_backward_args row_args;

#include "../common/rule.cu"
constexpr bool WANT_DX = DX_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int WEIGHT_BYTES = WIDTH * bytes_of(WEIGHT_TYPE);
constexpr bool HAS_DSUM = DSUM_TYPE != NONE;
constexpr int DSUM_BYTES = WIDTH * bytes_of(DSUM_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SHARERS = CLUSTER * COOPERATING_BLOCKS; /* blocks of a row */
constexpr int SPREAD = THREADS_PER_ROW * SHARERS;
constexpr bool COOPERATIVE = COOPERATING_BLOCKS > 1;
constexpr bool RAGGED = CHUNKS_PER_THREAD * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = THREADS_PER_ROW <= WARP;
constexpr int WARP_LANES = least(THREADS_PER_ROW, WARP);
constexpr int PER_WARP = WITHIN_WARP ? WARP / WARP_LANES : 1;
constexpr int THREADS = WARPS * WARP; /* that hold rows */
constexpr int ALL_THREADS = THREADS + (COOPERATIVE ? WARP : 0);
constexpr int TEAM_WARPS = WITHIN_WARP ? 1 : THREADS_PER_ROW / WARP;
constexpr int STEP = PER_WARP * ROWS; /* rows a team takes at a time */
constexpr int TEAM_COLS = THREADS_PER_ROW * CHUNKS_PER_THREAD * WIDTH;
constexpr bool RINGED = RING_SLOTS > 0;
/* Elements that asynchronous copies cannot move go through registers, if there is a ring at all. */
constexpr bool COPIES = RINGED && X_ACCESS >= 4 && DY_ACCESS >= 4 && X_BYTES >= 4 && DY_BYTES >= 4 &&
                        (!HAS_DSUM || (DSUM_ACCESS >= 4 && DSUM_BYTES >= 4));
/* Half a backward of rows of which each device has a part: c1 and c2 are wanted, or given (backward_halves.cu). */
constexpr bool MAKES_C = PASS == 5, TAKES_C = !MAKES_C && TYPES[ROLE_C2] != NONE, IN_HALVES = MAKES_C || TAKES_C;
constexpr bool SUMS = (LAYER || WANT_DX || MAKES_C) && !TAKES_C;
constexpr bool AGAIN = HOLD == HOLD_IN_RING && RINGED && !WITHIN_WARP && !COOPERATIVE; /* read twice */
constexpr bool SHORT_RANGE = X_TYPE == F16 && sizeof(real) == 4;
/* Where the gradient of the residual stream waits for its row's output. */
constexpr bool RING_HAS_DSUM = HAS_DSUM && DSUM_IN_RING && COPIES && !COOPERATIVE;
/* Converted weights stay in registers where there is room. */
constexpr bool KEEP_WEIGHTS = sizeof(real) == 4 && ROWS * CHUNKS_PER_THREAD * WIDTH <= 16 &&
                              (SHORT_RANGE || (COOPERATIVE && !TIGHT));

/* On a line of 128 bytes, whatever other shared variables a kernel has: copies of whole sectors to the
 * middle of others are slower. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

#include "../common/activation.cu"
#include "../common/saved_mean.cu"
#include "backward_chunks.cu"
#include "backward_sums.cu"
#include "backward_columns.cu"
#include "backward_output.cu"
#include "backward_cooperative.cu"
#include "backward_activation.cu"
#include "backward_halves.cu"
#include "backward_teams.cu"
#include "row_tiles.cu"
#include "row_runs.cu"
#include "backward_tiles.cu"
#include "backward_runs.cu"

/* The rows of a block's slice. */
__device__ __forceinline__ row_args of_slice(const row_args &all) {
    const i64 slice = ROW_SLICE(all);
    row_args own = all;
    own.dy = (const char *)all.dy + slice * all.dy_slice;
    own.x = (const char *)all.x + slice * all.x_slice;
    own.mean = (const char *)all.mean + slice * all.mean_slice;
    own.rstd = (const char *)all.rstd + slice * all.rstd_slice;
    own.weight = (const char *)all.weight + slice * all.weight_slice;
    own.bias = (const char *)all.bias + slice * all.bias_slice;
    own.dx = (char *)all.dx + slice * all.dx_slice;
    own.dweight = (char *)all.dweight + slice * all.dweight_slice;
    own.dbias = (char *)all.dbias + slice * all.dbias_slice;
    return own;
}

/* All that a block of the launch does; its rows and its row of partial sums begin where args say. */
__device__ __forceinline__ void rows_of_block(const row_args &all) {
    const auto &args = own_rows<(SLICED != 0)>(all);
    const int warp = threadIdx.x / WARP;
    const u32 block_rank = COOPERATIVE ? blockIdx.x % COOPERATING_BLOCKS : CLUSTER > 1 ? cluster_rank() : 0;
    team_state t;
    t.lane = threadIdx.x % WARP;
    t.team = warp / TEAM_WARPS;
    t.idle = WITHIN_WARP && t.lane >= PER_WARP * WARP_LANES;
    t.rank = WITHIN_WARP ? t.lane % WARP_LANES : block_rank * THREADS_PER_ROW + threadIdx.x % THREADS_PER_ROW;
    t.has_last = !RAGGED || t.rank + (CHUNKS_PER_THREAD - 1) * SPREAD < CHUNKS;
    t.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    const i64 team = COOPERATIVE ? blockIdx.x / COOPERATING_BLOCKS : (i64)(ROW_BLOCK(args) / CLUSTER) * TEAMS + t.team;
    const i64 row = team * STEP + (WITHIN_WARP ? t.lane / WARP_LANES : 0); /* this thread's first */
    const i64 block_row = COOPERATIVE ? team : (i64)(ROW_BLOCK(args) / CLUSTER) * TEAMS * STEP;
#pragma unroll
    for (int u = 0; u < ROWS; u++)
        t.turns[u] = t.idle ? 0 : (int)args.turns + (row + u * PER_WARP < args.rest);
    t.next_row.go_on(row);
    t.next_x = (const char *)args.x + (LEVELLED ? 0 : row * args.x_stride) + (i64)t.rank * X_BYTES;
    t.next_g = (const char *)args.dy + (LEVELLED ? 0 : row * args.dy_stride) + (i64)t.rank * DY_BYTES;
    if constexpr (HAS_DSUM)
        t.next_s = (const char *)args.dsum + row * args.dsum_stride + (i64)t.rank * DSUM_BYTES;
    t.next_mean = (const char *)args.mean + row * args.mean_stride;
    t.next_rstd = (const char *)args.rstd + row * args.rstd_stride;
    if constexpr (COOPERATIVE)
        cooperative_rows(args, t);
    else if constexpr (RUNS)
        runs_of_rows(args, t, (int)args.turns + (block_row < args.rest));
    else if constexpr (TILED)
        tiled_rows(args, t, (int)args.turns + (block_row < args.rest));
    else
        team_rows(args, t, row, (int)args.turns + (block_row < args.rest), block_rank);
}
