/*
 * Backward of dense rows with what stands around the norm (planish.h), in one read of each input. A fixed
 * share of the rows for each team of threads; the sums of columns are kept in registers, and a block leaves
 * one row of partial sums, which finish.cu or stages_samples.cu adds up. No atomics: the order of every sum is
 * fixed by the launch.
 *
 * Chunks, THREADS_PER_ROW, CHUNKS_PER_THREAD, TEAMS, CLUSTER and the way sums go are those of ../rows/backward.cu,
 * whose texts this one shares. Rows come through one slot of shared memory for each stream, by asynchronous copies
 * (RING_SLOTS 1), or straight to registers.
 *
 *     dm = dy * silu(gate) * f'(m)       before the row's sums, in registers; with it dgate, dscale and dshift
 *     g = dm * (1 + scale) * w           whose means with those of g * xhat make ds
 *     ds = rstd * (g - c1 - xhat * c2) + dsum
 *
 * Rows are counted by two axes (TWO_LEVELS), or by one. BY_SAMPLE: the rows of the inner axis share a row of scale
 * and shift and belong to a block together; then the sums are those of dm * xhat and dm over these rows, of
 * which stages_samples.cu makes dscale, dshift, dweight and dbias. Else scale's gradients, where they are wanted,
 * are those of single rows and are written as such.
 *
 * VARIES says of which tensors the address depends on the row, ALIKE which have one element for all of it: sets of
 * roles. INDEX_ALIGNED: of the number of a row's first element for dropout, up to 4.
 *
 * Constants: KIND ACTIVATION COLS WIDTH THREADS_PER_ROW CHUNKS_PER_THREAD WARPS TEAMS CLUSTER RING_SLOTS CORRECT
 * MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS WEIGHT_OFFSET GATE_BEFORE DROPOUT TWO_LEVELS BY_SAMPLE VARIES ALIKE
 * INDEX_ALIGNED, dtypes and alignments.
 */
#include "../arguments/stages_args.h"

/* As the parts of backward.cu know them that this one shares. */
typedef stages_backward_args row_args;

#include "../common/rule.cu"
constexpr bool WANT_DX = DX_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SHARERS = CLUSTER;
constexpr bool SLICED = false; /* as in ../rows/backward.cu */
constexpr int SPREAD = THREADS_PER_ROW * SHARERS;
constexpr bool RAGGED = CHUNKS_PER_THREAD * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = THREADS_PER_ROW <= WARP;
constexpr int WARP_LANES = least(THREADS_PER_ROW, WARP);
constexpr int PER_WARP = WITHIN_WARP ? WARP / WARP_LANES : 1;
constexpr int THREADS = WARPS * WARP;
constexpr int TEAM_WARPS = WITHIN_WARP ? 1 : THREADS_PER_ROW / WARP;
constexpr int TEAM_COLS = THREADS_PER_ROW * CHUNKS_PER_THREAD * WIDTH;
/* Columns whose numbers of `real` are moved at once, a piece of a chunk. */
constexpr int COLUMNS = least(WIDTH, 16 / (int)sizeof(real));
constexpr int PIECES = WIDTH / COLUMNS;
constexpr int REAL_TYPE = sizeof(real) == 4 ? F32 : F64;

extern __shared__ __align__(128) unsigned char dynamic_shared[];

#include "../common/activation.cu"
#include "../common/saved_mean.cu"
#include "stages_gate.cu"
#include "philox.cu"

struct team_state {
    int lane, team, rank; /* rank in the row: also this thread's first chunk */
    bool idle, has_last;
    __device__ __forceinline__ bool has(int k) const { return k < CHUNKS_PER_THREAD - 1 || has_last; }
};

#include "../rows/backward_sums.cu"
#include "../rows/backward_columns.cu"
#include "stages_streams.cu"
#include "stages_gradients.cu"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_stages_backward(const row_args args) {
    __shared__ turn_room rooms[2][WITHIN_WARP ? 1 : TEAMS];
    const int warp = threadIdx.x / WARP;
    const u32 block_rank = CLUSTER > 1 ? cluster_rank() : 0;
    const i64 unit = blockIdx.x / CLUSTER;
    const i64 sample = BY_SAMPLE ? unit / args.parts : 0, part = BY_SAMPLE ? unit % args.parts : unit;
    team_state t;
    t.lane = threadIdx.x % WARP;
    t.team = warp / TEAM_WARPS;
    t.idle = WITHIN_WARP && t.lane >= PER_WARP * WARP_LANES;
    t.rank = WITHIN_WARP ? t.lane % WARP_LANES : block_rank * THREADS_PER_ROW + threadIdx.x % THREADS_PER_ROW;
    t.has_last = !RAGGED || t.rank + (CHUNKS_PER_THREAD - 1) * SPREAD < CHUNKS;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2 * TEAMS)
            byte_barrier_init(
                shared_address(&rooms[threadIdx.x / TEAMS][threadIdx.x % TEAMS].byte_barrier));
        cluster_arrive();
        cluster_wait();
    }
    u32 room = shared_address(&rooms[0][WITHIN_WARP ? 0 : t.team]);
    const u32 both_rooms = 2 * room + TEAMS * (u32)sizeof(turn_room);
    const i64 block_rows = TEAMS * PER_WARP, first = part * block_rows;
    const i64 own = t.team * PER_WARP + (WITHIN_WARP ? t.lane / WARP_LANES : 0);
    release_stream();
    wait_for_stream();
    philox_key key = {};
    if (DROPOUT)
        key = load_philox_key(args.tensor[ROLE_RNG].data);
    thread_affine affine;
    affine.load(args, t);
    column_sums sums = {};
    row_streams row;
    int turn = 0;
    row.fetch(args, t, first + own, sample);
    for (i64 at = first; at < args.rows; at += args.parts * block_rows) {
        row.take(args, t);
        const row_place place = row.place;
        row.fetch(args, t, at + args.parts * block_rows + own, sample);
        row_of_stages(args, t, key, affine, row, place, sums, room, both_rooms, block_rank, turn);
    }
    copy_async_wait<0>();
    sums.write(args, t, block_rank);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}
