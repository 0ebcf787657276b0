/*
 * Backward of dense rows in one read: dx, and the sums for dweight and dbias, from a single pass
 * over x and dy. Persistent: a fixed share of the rows for each team of threads, each keeping the
 * sums of its columns in registers; at the end a block writes one row of partial sums, which
 * finish.cu adds up. Where one block, cluster or group takes all rows (args.alone) its sums are the
 * result. No atomics: the order of every sum is fixed by the launch.
 *
 * Chunks, LANES, VECS, CLUSTER and ROWS are as in forward.cu. A team is a warp (LANES up to 32; it
 * takes 32 / LANES * ROWS rows at a time) or one of TEAMS groups of LANES threads in the block,
 * which take one row each and exchange their sums apart from each other, so that one team's exchange
 * hides behind another's arithmetic.
 *
 * Rows come through a ring of STAGES slots in shared memory by asynchronous copies. Each thread
 * reads back only the bytes it copied itself, so the ring needs no barrier; a slot is refilled as
 * soon as its row is in registers. STAGES 0 loads straight to registers: for elements that
 * asynchronous copies cannot move (alignment below 4 bytes). HOLD_IN_RING: a row stays in the ring for its
 * output and is read again, and the weights wait in shared memory too, converted once for all rows, so
 * that a thread has registers for the sums of more columns.
 *
 *     g = dy * w    d = x - mean    delta = mean of d    c1 = mean of g
 *     xhat = (d - delta) * rstd     c2 = mean of g * xhat
 *     dx = rstd * (g - c1 - xhat * c2)
 *
 * With f16 x nothing leaves float's range whichever product comes first, and rstd goes to dy:
 * dx = (dy * rstd) * w - c1 * rstd - (d - delta) * (c2 * rstd^2), an instruction less for an element.
 *
 * ROWS_TILED: short rows of 16 bits through tiles (row_tiles.cu), read twice; weights in shared memory.
 * ROWS_IN_RUNS: longer ones through tiles: their sums by runs of words, then the output column by column
 * (backward_runs.cu), by PLANES parts of the block that take rows apart.
 *
 * delta mends the rounding of the saved mean (CORRECT 0 leaves it out), or is 0 (saved_mean.cu).
 *
 * COOPERATING_BLOCKS > 1 (a cooperative launch): COOPERATING_BLOCKS blocks anywhere on the device share each row, as in
 * forward.cu: a row's output comes DELAY turns after its sums, and an extra warp of each block
 * exchanges the sums in between. HOLD_THE_NEXT: the row that is put out next waits in registers.
 *
 * DSUM_TYPE not NONE: dsum, the gradient that comes by the residual stream, is added to dx. It comes by the ring, too,
 * where it stays until dx is made (DSUM_IN_RING), or straight from memory. Only of ROWS_PLAIN.
 *
 * An activation behind the norm (backward_activation.cu): dy stands for dy * f'(z) above.
 *
 * Constants: KIND ACTIVATION COLS X_TYPE DY_TYPE DX_TYPE WEIGHT_TYPE BIAS_TYPE MEAN_TYPE RSTD_TYPE DWEIGHT_TYPE DBIAS_TYPE WEIGHT_OFFSET
 * WIDTH LANES VECS ROWS WARPS TEAMS CLUSTER COOPERATING_BLOCKS HOLD STAGES DELAY CORRECT MIN_BLOCKS LEVELS SLICED DSUM_TYPE DSUM_ACCESS DSUM_IN_RING
 * WANT_DWEIGHT WANT_DBIAS VARIANT, with it PLANES, DENSE (1 x, 2 dy, 4 dx), and the alignments X_ACCESS DY_ACCESS
 * DX_ACCESS WEIGHT_ACCESS BIAS_ACCESS. DX_TYPE NONE: no dx.
 *
 * LEVELS SLICED: rows that do not lie one stride apart, and those with weights of their own (row_levels.cu); of such
 * there is neither dsum nor COOPERATING_BLOCKS > 1. A slice's partial rows lie behind those of the slices before it,
 * block by block.
 */
#include "row_levels.cu"

struct backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    real *partial_weight, *partial_bias; /* [gridDim.x / SHARERS][COLS] */
    void *dweight, *dbias;               /* alone */
    i64 x_stride, dy_stride, dx_stride, mean_stride, rstd_stride; /* bytes from row to row */
    i64 x_turn, dy_turn, dx_turn, mean_turn, rstd_turn; /* from turn to turn of a team */
    u32 turns, rest; /* of the rows: whole turns, and rows of the last */
    u32 zero;     /* 0, which the compiler cannot know */
    u32 alone;    /* no other block has rows */
    u64 *mail;    /* COOPERATING_BLOCKS > 1: a line for each group */
    const void *bias; /* with an activation */
    const void *dsum;
    i64 dsum_stride, dsum_turn;
    row_levels levels;
    i64 row_turn;                           /* rows from turn to turn */
    i64 x_jump[2], dy_jump[2], dx_jump[2]; /* bytes (row_levels.cu) */
    i64 x_slice, dy_slice, dx_slice, mean_slice, rstd_slice, weight_slice, bias_slice; /* from slice to slice */
    i64 dweight_slice, dbias_slice;
};

constexpr bool LAYER = KIND == 0;
constexpr bool WANT_DX = DX_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int WEIGHT_BYTES = WIDTH * bytes_of(WEIGHT_TYPE);
constexpr bool HAS_DSUM = DSUM_TYPE != NONE;
constexpr int DSUM_BYTES = WIDTH * bytes_of(DSUM_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SHARERS = CLUSTER * COOPERATING_BLOCKS; /* blocks of a row */
constexpr int SPREAD = LANES * SHARERS;
constexpr bool COOPERATIVE = COOPERATING_BLOCKS > 1;
constexpr bool RAGGED = VECS * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = LANES <= 32;
constexpr int WARP_LANES = least(LANES, 32);
constexpr int PER_WARP = WITHIN_WARP ? 32 / WARP_LANES : 1;
constexpr int THREADS = WARPS * 32; /* that hold rows */
constexpr int ALL_THREADS = THREADS + (COOPERATIVE ? 32 : 0);
constexpr int TEAM_WARPS = WITHIN_WARP ? 1 : LANES / 32;
constexpr int STEP = PER_WARP * ROWS; /* rows a team takes at a time */
constexpr int TEAM_COLS = LANES * VECS * WIDTH;
constexpr bool RINGED = STAGES > 0;
/* Elements that asynchronous copies cannot move go through registers, if there is a ring at all. */
constexpr bool COPIES = RINGED && X_ACCESS >= 4 && DY_ACCESS >= 4 && X_BYTES >= 4 && DY_BYTES >= 4 &&
                        (!HAS_DSUM || (DSUM_ACCESS >= 4 && DSUM_BYTES >= 4));
constexpr bool SUMS = LAYER || WANT_DX;
constexpr bool AGAIN = HOLD == HOLD_IN_RING && RINGED && !WITHIN_WARP && !COOPERATIVE; /* read twice */
constexpr bool SHORT_RANGE = X_TYPE == F16 && sizeof(real) == 4;
/* Where the gradient of the residual stream waits for its row's output. */
constexpr bool RING_HAS_DSUM = HAS_DSUM && DSUM_IN_RING && COPIES && !COOPERATIVE;
/* Converted weights stay in registers where there is room. */
constexpr bool KEEP_WEIGHTS = sizeof(real) == 4 && ROWS * VECS * WIDTH <= 16 &&
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
#include "backward_teams.cu"
#include "row_tiles.cu"
#include "row_runs.cu"
#include "backward_tiles.cu"
#include "backward_runs.cu"

/* The rows of a block's slice. */
__device__ __forceinline__ backward_args of_slice(const backward_args &all) {
    const i64 slice = blockIdx.x;
    backward_args own = all;
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

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_backward(const backward_args all) {
    const auto &args = own_rows<(SLICED != 0)>(all);
    const int warp = threadIdx.x / 32;
    const u32 block_rank = COOPERATIVE ? blockIdx.x % COOPERATING_BLOCKS : CLUSTER > 1 ? cluster_rank() : 0;
    team_state t;
    t.lane = threadIdx.x % 32;
    t.team = warp / TEAM_WARPS;
    t.idle = WITHIN_WARP && t.lane >= PER_WARP * WARP_LANES;
    t.rank = WITHIN_WARP ? t.lane % WARP_LANES : block_rank * LANES + threadIdx.x % LANES;
    t.has_last = !RAGGED || t.rank + (VECS - 1) * SPREAD < CHUNKS;
    t.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    const i64 team = COOPERATIVE ? blockIdx.x / COOPERATING_BLOCKS : (i64)(row_block() / CLUSTER) * TEAMS + t.team;
    const i64 row = team * STEP + (WITHIN_WARP ? t.lane / WARP_LANES : 0); /* this thread's first */
    const i64 block_row = COOPERATIVE ? team : (i64)(row_block() / CLUSTER) * TEAMS * STEP;
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
