/*
 * Backward of dense rows in one read: dx, and the sums for dweight and dbias, from a single pass
 * over x and dy. Persistent: a fixed share of the rows for each team of threads, each keeping the
 * sums of its columns in registers; at the end a block writes one row of partial sums, which
 * finish.cu adds up. No atomics: the order of every sum is fixed by the launch.
 *
 * Chunks, LANES, VECS, CLUSTER and ROWS are as in forward.cu. A team is a warp (LANES up to 32; it
 * takes 32 / LANES * ROWS rows at a time) or one of TEAMS groups of LANES threads in the block,
 * which take one row each and exchange their sums apart from each other, so that one team's exchange
 * hides behind another's arithmetic.
 *
 * Rows come through a ring of STAGES slots in shared memory by asynchronous copies. Each thread
 * reads back only the bytes it copied itself, so the ring needs no barrier; a slot is refilled as
 * soon as its row is in registers. STAGES 0 loads straight to registers: for elements that
 * asynchronous copies cannot move (alignment below 4 bytes).
 *
 *     g = dy * w    d = x - mean    delta = mean of d    c1 = mean of g
 *     xhat = (d - delta) * rstd     c2 = mean of g * xhat
 *     dx = rstd * (g - c1 - xhat * c2)
 *
 * delta mends the rounding of the saved mean (CORRECT 0 leaves it out).
 *
 * Constants: KIND COLS X_TYPE G_TYPE D_TYPE W_TYPE MEAN_TYPE RSTD_TYPE WEIGHT_OFFSET WIDTH LANES
 * VECS ROWS WARPS TEAMS CLUSTER STAGES CORRECT MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, and the
 * alignments X_ACCESS G_ACCESS D_ACCESS W_ACCESS. D_TYPE NONE: no dx.
 */
struct backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    real *partial_weight, *partial_bias; /* [gridDim.x / CLUSTER][COLS] */
    i64 rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride; /* bytes from row to row */
    i64 row_turn, x_turn, dy_turn, dx_turn, mean_turn, rstd_turn; /* from turn to turn of a team */
    u32 zero; /* 0, which the compiler cannot know */
};

constexpr bool LAYER = KIND == 0;
constexpr bool WANT_DX = D_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int G_BYTES = WIDTH * bytes_of(G_TYPE);
constexpr int W_BYTES = WIDTH * bytes_of(W_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SPREAD = LANES * CLUSTER;
constexpr bool RAGGED = VECS * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = LANES <= 32;
constexpr int WARP_LANES = least(LANES, 32);
constexpr int PER_WARP = WITHIN_WARP ? 32 / WARP_LANES : 1;
constexpr int THREADS = WARPS * 32;
constexpr int TEAM_WARPS = WITHIN_WARP ? 1 : LANES / 32;
constexpr int STEP = PER_WARP * ROWS; /* rows a team takes at a time */
constexpr int TEAM_COLS = LANES * VECS * WIDTH;
constexpr bool RINGED = STAGES > 0;
constexpr bool SUMS = LAYER || WANT_DX;

struct entry {
    real sum[4]; /* of g, of g * d, of d; one unused */
};

extern __shared__ __align__(16) unsigned char dynamic_shared[];

struct team_state {
    int lane, team, rank; /* rank in the row: also this thread's first chunk */
    bool idle, has_last;
    u32 ring;
    /* Of the turn to be fetched next: this thread's first chunk in its first row. */
    const char *next_x, *next_g;
    /* Of the turn to come: its first row's statistics. */
    const char *next_mean, *next_rstd;

    __device__ __forceinline__ bool has(int k) const { return k < VECS - 1 || has_last; }
    __device__ __forceinline__ u32 x_slot(int stage, int u, int k) const {
        return ring + ((stage * ROWS + u) * VECS + k) * (THREADS * X_BYTES);
    }
    __device__ __forceinline__ u32 g_slot(int stage, int u, int k) const {
        return ring + STAGES * ROWS * VECS * THREADS * X_BYTES +
               ((stage * ROWS + u) * VECS + k) * (THREADS * G_BYTES) +
               threadIdx.x * (G_BYTES - X_BYTES);
    }
};

struct operands {
    chunk<X_BYTES> x[ROWS][VECS];
    chunk<G_BYTES> g[ROWS][VECS];
};

/* Starts the copies of the turn whose first row is `row` into a slot, or loads them; zeros for what
 * is not there. */
__device__ __forceinline__ void fetch(const backward_args &args, team_state &t, i64 row,
                                      int stage, operands &o) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = !t.idle && row + u * PER_WARP < args.rows;
        const char *x = t.next_x + u * PER_WARP * args.x_stride;
        const char *g = t.next_g + u * PER_WARP * args.dy_stride;
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            bool has = there && t.has(k);
            if constexpr (RINGED) {
                copy_async<RINGED ? X_BYTES : 4, RINGED ? X_ACCESS : 4>(
                    t.x_slot(stage, u, k), x + k * (SPREAD * X_BYTES), has);
                copy_async<RINGED ? G_BYTES : 4, RINGED ? G_ACCESS : 4>(
                    t.g_slot(stage, u, k), g + k * (SPREAD * G_BYTES), has);
            } else {
                o.x[u][k] = zero_chunk<X_BYTES>();
                o.g[u][k] = zero_chunk<G_BYTES>();
                if (has) {
                    o.x[u][k] = load_once<X_BYTES, X_ACCESS>(x + k * (SPREAD * X_BYTES));
                    o.g[u][k] = load_once<G_BYTES, G_ACCESS>(g + k * (SPREAD * G_BYTES));
                }
            }
        }
    }
    t.next_x += args.x_turn;
    t.next_g += args.dy_turn;
    if (RINGED)
        copy_async_commit();
}

__device__ __forceinline__ void take(const team_state &t, int stage, operands &o) {
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            o.x[u][k] = load_from_shared<X_BYTES>(t.x_slot(stage, u, k));
            o.g[u][k] = load_from_shared<G_BYTES>(t.g_slot(stage, u, k));
        }
}

/* The statistics of the turn whose first row is `row`. */
__device__ __forceinline__ void statistics_of(const backward_args &args, team_state &t, i64 row,
                                              real *mean, real *rstd) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        mean[u] = 0;
        rstd[u] = 0;
        if (!t.idle && row + u * PER_WARP < args.rows) {
            if constexpr (LAYER)
                mean[u] = load_element<MEAN_TYPE>(t.next_mean + u * PER_WARP * args.mean_stride, 0);
            rstd[u] = load_element<RSTD_TYPE>(t.next_rstd + u * PER_WARP * args.rstd_stride, 0);
        }
    }
    t.next_mean += args.mean_turn;
    t.next_rstd += args.rstd_turn;
}

/* Adding 0 would be an addition: it changes -0. */
__device__ __forceinline__ real plus_offset(real w) {
    return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w;
}

__device__ __forceinline__ void weights_of(const chunk<W_BYTES> *weight, int k, real *w) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        w[i] = W_TYPE == NONE ? (real)1 : plus_offset(element<W_TYPE>(weight[k].word, i));
}

/* This thread's part of a row's sums. */
__device__ __forceinline__ void thread_sums(const team_state &t, const chunk<X_BYTES> *xs,
                                            const chunk<G_BYTES> *gs, const chunk<W_BYTES> *weight,
                                            real mean, real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        real w[WIDTH], g[WIDTH], d[WIDTH];
        weights_of(weight, k, w);
        constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
        real product[HALF];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            d[i] = element<X_TYPE>(xs[k].word, i);
            if (LAYER)
                d[i] -= mean;
            g[i] = element<G_TYPE>(gs[k].word, i);
            if (W_TYPE != NONE)
                g[i] *= w[i];
        }
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            product[i] = g[i] * d[i];
            if (WIDTH > 1)
                product[i] = multiply_add(g[i + HALF], d[i + HALF], product[i]);
        }
        sum[1] += tree_sum<HALF>(product);
        if (LAYER) {
            sum[0] += tree_sum<WIDTH>(g);
            if (CORRECT && (!RAGGED || t.has(k)))
                sum[2] += tree_sum<WIDTH>(d);
        }
    }
}

/* Adds COUNT entries in one order; every thread gets the sums. */
template <int COUNT>
__device__ __forceinline__ void add_entries(const team_state &t, const entry *slots, real *sum) {
    sum[0] = sum[1] = sum[2] = 0;
    if constexpr (COUNT <= 4) {
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            entry s = slots[e];
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (j == 1 || (LAYER && (j == 0 || CORRECT)))
                    sum[j] += s.sum[j];
        }
    } else {
        constexpr int TREE = 2 * power_of_two_up_to(COUNT - 1);
        if (t.lane % TREE < COUNT) {
            entry s = slots[t.lane % TREE];
            sum[0] = s.sum[0];
            sum[1] = s.sum[1];
            sum[2] = s.sum[2];
        }
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j == 1 || (LAYER && (j == 0 || CORRECT)))
                sum[j] = sum_over_lanes<TREE>(sum[j], t.lane);
    }
}

/* Adds the parts of a row's sums over its team, then over the cluster. */
__device__ __forceinline__ void exchange(const team_state &t, real *sum, entry *slots,
                                         entry *block_slots, u64 *byte_barriers, int warp,
                                         u32 block_rank, u32 round) {
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j == 1 || (LAYER && (j == 0 || CORRECT)))
            sum[j] = sum_over_lanes<WARP_LANES>(sum[j], t.lane);
    if constexpr (TEAM_WARPS > 1) {
        if (t.lane == 0)
            slots[warp % TEAM_WARPS] = {sum[0], sum[1], sum[2], 0};
        barrier(1 + t.team, LANES);
        add_entries<TEAM_WARPS>(t, slots, sum);
    }
    if constexpr (CLUSTER > 1) {
        u32 bar = shared_address(byte_barriers);
        if (warp % TEAM_WARPS == 0) {
            if (t.lane == 0)
                byte_barrier_expect(bar, CLUSTER * sizeof(entry));
            if (t.lane < CLUSTER)
                send_to_block(shared_address(block_slots + block_rank), bar, t.lane, sum);
        }
        byte_barrier_wait(bar, round >> 1 & 1);
        add_entries<CLUSTER>(t, block_slots, sum);
    }
}

/* Adds one of the column sums over the block's teams in their order and writes the partial row. */
__device__ __forceinline__ void write_partial(const team_state &t, real (*sums)[WIDTH], real *to,
                                              u32 block_rank) {
    real *room = (real *)dynamic_shared; /* [TEAMS][TEAM_COLS] */
    __syncthreads();
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            real v = sums[k][i];
            if constexpr (PER_WARP > 1) {
                if constexpr ((WARP_LANES & (WARP_LANES - 1)) == 0) {
#pragma unroll
                    for (int step = 16; step >= WARP_LANES; step /= 2)
                        v += __shfl_xor_sync(EVERY_LANE, v, step);
                } else {
                    real all = 0;
#pragma unroll 2
                    for (int j = 0; j < PER_WARP; j++)
                        all += from_lane(v, t.rank % WARP_LANES + j * WARP_LANES);
                    v = all;
                }
            }
            if (!WITHIN_WARP || t.lane < WARP_LANES)
                room[t.team * TEAM_COLS +
                     (k * LANES + (WITHIN_WARP ? t.rank : t.rank - (int)block_rank * LANES)) *
                         WIDTH +
                     i] = v;
        }
    __syncthreads();
    for (int c = threadIdx.x; c < TEAM_COLS; c += THREADS) {
        int local = c / WIDTH, k = local / LANES;
        int index = local % LANES + block_rank * LANES + k * SPREAD;
        if (index < CHUNKS) {
            real all = 0;
#pragma unroll 4
            for (int team = 0; team < TEAMS; team++)
                all += room[team * TEAM_COLS + c];
            to[index * WIDTH + c % WIDTH] = all;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_backward(const backward_args args) {
    __shared__ __align__(16) entry slots[2][WITHIN_WARP ? 1 : TEAMS][TEAM_WARPS];
    __shared__ __align__(16) entry block_slots[2][WITHIN_WARP ? 1 : TEAMS][CLUSTER];
    __shared__ u64 byte_barriers[2][CLUSTER > 1 ? TEAMS : 1];
    const int warp = threadIdx.x / 32;
    const u32 block_rank = CLUSTER > 1 ? cluster_rank() : 0;
    team_state t;
    t.lane = threadIdx.x % 32;
    t.team = warp / TEAM_WARPS;
    t.idle = WITHIN_WARP && t.lane >= PER_WARP * WARP_LANES;
    t.rank = WITHIN_WARP ? t.lane % WARP_LANES : block_rank * LANES + threadIdx.x % LANES;
    t.has_last = !RAGGED || t.rank + (VECS - 1) * SPREAD < CHUNKS;
    t.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2 * TEAMS)
            byte_barrier_init(shared_address(&byte_barriers[0][0] + threadIdx.x));
        cluster_arrive();
        cluster_wait();
    }

    const i64 team = (i64)(blockIdx.x / CLUSTER) * TEAMS + t.team;
    i64 row = team * STEP + (WITHIN_WARP ? t.lane / WARP_LANES : 0); /* this thread's first */
    /* Turns are the block's: a team without rows takes zeros, so that all meet at the end at once. */
    const int in_turn = t.team * STEP + (WITHIN_WARP ? t.lane / WARP_LANES : 0);
    char *dx = (char *)args.dx + row * args.dx_stride +
               (i64)t.rank * (WIDTH * bytes_of(WANT_DX ? D_TYPE : F32));
    t.next_x = (const char *)args.x + row * args.x_stride + (i64)t.rank * X_BYTES;
    t.next_g = (const char *)args.dy + row * args.dy_stride + (i64)t.rank * G_BYTES;
    t.next_mean = (const char *)args.mean + row * args.mean_stride;
    t.next_rstd = (const char *)args.rstd + row * args.rstd_stride;

    wait_for_stream();
    chunk<W_BYTES> weight[VECS];
    if constexpr (W_TYPE != NONE)
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            weight[k] = zero_chunk<W_BYTES>();
            if (!t.idle && t.has(k))
                weight[k] = load_shared_by_rows<W_BYTES, W_ACCESS>(
                    (const char *)args.weight + (i64)(t.rank + k * SPREAD) * W_BYTES);
        }
    real dweight[VECS][WIDTH], dbias[VECS][WIDTH];
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            dweight[k][i] = dbias[k][i] = 0;

    operands o;
#pragma unroll
    for (int s = 0; s < STAGES; s++)
        fetch(args, t, row + s * args.row_turn, s, o);
    real next_mean[ROWS], next_rstd[ROWS];
    statistics_of(args, t, row, next_mean, next_rstd);

    int stage = 0;
    u32 round = 0;
    for (; row - in_turn < args.rows; row += args.row_turn, round++) {
        if constexpr (RINGED) {
            copy_async_wait<most(STAGES - 1, 0)>();
            take(t, stage, o);
        }
        fetch(args, t, row + STAGES * args.row_turn, stage, o);
        stage = stage + 1 >= STAGES ? 0 : stage + 1;
        real mean[ROWS], rstd[ROWS], sum[ROWS][4];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            mean[u] = next_mean[u];
            rstd[u] = next_rstd[u];
        }
        statistics_of(args, t, row + args.row_turn, next_mean, next_rstd);
#pragma unroll
        for (int k = 0; k < VECS; k++)
            for (u32 &w : weight[k].word)
                forget(w, args.zero);
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            if (SUMS) {
                thread_sums(t, o.x[u], o.g[u], weight, mean[u], sum[u]);
                exchange(t, sum[u], slots[round & 1][WITHIN_WARP ? 0 : t.team],
                         block_slots[round & 1][WITHIN_WARP ? 0 : t.team],
                         &byte_barriers[round & 1][CLUSTER > 1 ? t.team : 0], warp, block_rank,
                         round);
            } else {
                sum[u][0] = sum[u][1] = sum[u][2] = 0;
            }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const bool there = !t.idle && row + u * PER_WARP < args.rows;
            const real delta = LAYER && CORRECT ? sum[u][2] * (real)(1.0 / COLS) : 0;
            const real back = -delta * rstd[u];
            const real c1 = LAYER ? sum[u][0] * (real)(1.0 / COLS) : 0;
            const real c2 = multiply_add(-delta, sum[u][0], sum[u][1]) * (real)(1.0 / COLS) *
                            rstd[u];
            const real by_xhat = -c2 * rstd[u], constant = -c1 * rstd[u];
#pragma unroll
            for (int k = 0; k < VECS; k++) {
                real w[WIDTH], out[WIDTH];
                weights_of(weight, k, w);
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    real d = element<X_TYPE>(o.x[u][k].word, i), g;
                    real xhat = LAYER ? multiply_add(d - mean[u], rstd[u], back) : d * rstd[u];
                    g = element<G_TYPE>(o.g[u][k].word, i);
                    if (WANT_DWEIGHT)
                        dweight[k][i] = multiply_add(g, xhat, dweight[k][i]);
                    if (WANT_DBIAS)
                        dbias[k][i] += g;
                    if (W_TYPE != NONE)
                        g *= w[i];
                    out[i] = LAYER ? multiply_add(g, rstd[u], multiply_add(xhat, by_xhat, constant))
                                   : multiply_add(g, rstd[u], xhat * by_xhat);
                }
                if constexpr (WANT_DX) {
                    constexpr int D_BYTES = WIDTH * bytes_of(D_TYPE);
                    if (there && t.has(k))
                        store_once<D_BYTES, D_ACCESS>(
                            dx + u * PER_WARP * args.dx_stride + k * (SPREAD * D_BYTES),
                            pack<D_TYPE, WIDTH>(out));
                }
            }
        }
        dx += args.dx_turn;
    }
    release_stream();
    copy_async_wait<0>();
    const i64 partial = (i64)(blockIdx.x / CLUSTER) * COLS;
    if (WANT_DWEIGHT)
        write_partial(t, dweight, args.partial_weight + partial, block_rank);
    if (WANT_DBIAS)
        write_partial(t, dbias, args.partial_bias + partial, block_rank);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}
