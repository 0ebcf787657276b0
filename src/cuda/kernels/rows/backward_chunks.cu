/*
 * A part of backward.cu: where a thread is, its chunks of x and dy, of rows to come and of the one at
 * hand, the saved statistics and the weights, and how they come to it.
 */

/* Columns whose numbers of `real` are moved at once, a piece of a chunk. In shared memory a piece lies beside those of
 * the other threads, so that they meet in no bank. */
constexpr int COLUMNS = least(WIDTH, 16 / (int)sizeof(real));
constexpr int PIECES = WIDTH / COLUMNS;
constexpr int PIECE_BYTES = COLUMNS * (int)sizeof(real);
constexpr int REAL_TYPE = sizeof(real) == 4 ? F32 : F64;

struct team_state {
    int lane, team, rank; /* rank in the row: also this thread's first chunk */
    bool idle, has_last;
    int turns[ROWS]; /* that have the thread's first row, its second ... */
    u32 ring;
    /* Of the turn to be fetched next: this thread's first row, and its first chunk in it (LEVELS > 1: in row 0). */
    row_counter<LEVELLED> next_row;
    const char *next_x, *next_g, *next_s;
    /* Of the turn to come: its first row's statistics. */
    const char *next_mean, *next_rstd;

    __device__ __forceinline__ bool has(int k) const { return k < CHUNKS_PER_THREAD - 1 || has_last; }
    __device__ __forceinline__ u32 x_slot(int ring_slot, int u, int k) const {
        return ring + ((ring_slot * ROWS + u) * CHUNKS_PER_THREAD + k) * (THREADS * X_BYTES);
    }
    __device__ __forceinline__ u32 g_slot(int ring_slot, int u, int k) const {
        return ring + RING_SLOTS * ROWS * CHUNKS_PER_THREAD * THREADS * X_BYTES +
               ((ring_slot * ROWS + u) * CHUNKS_PER_THREAD + k) * (THREADS * DY_BYTES) +
               threadIdx.x * (DY_BYTES - X_BYTES);
    }
    __device__ __forceinline__ u32 w_slot(int k, int piece) const {
        return ring + RING_SLOTS * ROWS * CHUNKS_PER_THREAD * THREADS * (X_BYTES + DY_BYTES) +
               (k * PIECES + piece) * (THREADS * PIECE_BYTES) +
               threadIdx.x * (PIECE_BYTES - X_BYTES);
    }
    __device__ __forceinline__ u32 s_slot(int ring_slot, int u, int k) const {
        return ring + RING_SLOTS * ROWS * CHUNKS_PER_THREAD * THREADS * (X_BYTES + DY_BYTES) +
               (AGAIN ? CHUNKS_PER_THREAD * PIECES * THREADS * PIECE_BYTES : 0) +
               ((ring_slot * ROWS + u) * CHUNKS_PER_THREAD + k) * (THREADS * DSUM_BYTES) +
               threadIdx.x * (DSUM_BYTES - X_BYTES);
    }
};

struct operands {
    chunk<X_BYTES> x[ROWS][CHUNKS_PER_THREAD];
    chunk<DY_BYTES> g[ROWS][CHUNKS_PER_THREAD];
};
struct row_in_registers {
    enum { GRADIENT = DY_TYPE }; /* the type of what g() gives */
    const operands &o;
    int u;
    __device__ __forceinline__ chunk<X_BYTES> x(int k) const { return o.x[u][k]; }
    __device__ __forceinline__ chunk<DY_BYTES> g(int k) const { return o.g[u][k]; }
};
struct row_in_ring {
    enum { GRADIENT = DY_TYPE };
    const team_state &t;
    int ring_slot;
    __device__ __forceinline__ chunk<X_BYTES> x(int k) const {
        return load_from_shared<X_BYTES>(t.x_slot(ring_slot, 0, k));
    }
    __device__ __forceinline__ chunk<DY_BYTES> g(int k) const {
        return load_from_shared<DY_BYTES>(t.g_slot(ring_slot, 0, k));
    }
};

/* Starts the copies of a turn into a slot, or loads them; zeros for what is not there. */
__device__ __forceinline__ void fetch(const row_args &args, team_state &t, int turn, int ring_slot,
                                      operands &o) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = turn < t.turns[u];
        const char *x = t.next_x + u * PER_WARP * args.x_stride;
        const char *g = t.next_g + u * PER_WARP * args.dy_stride;
        if constexpr (LEVELLED) {
            x = t.next_x + row_begin(args.levels, t.next_row.at() + u * PER_WARP, args.x_stride, args.x_jump);
            g = t.next_g + row_begin(args.levels, t.next_row.at() + u * PER_WARP, args.dy_stride, args.dy_jump);
        }
#pragma unroll(AGAIN && !COPIES ? 1 : CHUNKS_PER_THREAD)
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            bool has = there && t.has(k);
            if constexpr (COPIES) {
                copy_async<COPIES ? X_BYTES : 4, COPIES ? X_ACCESS : 4>(
                    t.x_slot(ring_slot, u, k), x + k * (SPREAD * X_BYTES), has);
                copy_async<COPIES ? DY_BYTES : 4, COPIES ? DY_ACCESS : 4>(
                    t.g_slot(ring_slot, u, k), g + k * (SPREAD * DY_BYTES), has);
            } else {
                auto cx = zero_chunk<X_BYTES>();
                auto cg = zero_chunk<DY_BYTES>();
                if (has) {
                    cx = load_chunk<X_BYTES, X_ACCESS>(x + k * (SPREAD * X_BYTES));
                    cg = load_chunk<DY_BYTES, DY_ACCESS>(g + k * (SPREAD * DY_BYTES));
                }
                if constexpr (RINGED) {
                    store_to_shared<X_BYTES>(t.x_slot(ring_slot, u, k), cx);
                    store_to_shared<DY_BYTES>(t.g_slot(ring_slot, u, k), cg);
                } else {
                    o.x[u][k] = cx;
                    o.g[u][k] = cg;
                }
            }
        }
    }
    t.next_row.go_on(args.row_turn);
    if (!LEVELLED) {
        t.next_x += args.x_turn;
        t.next_g += args.dy_turn;
    }
    if (RINGED && !RING_HAS_DSUM)
        copy_async_commit();
}

/* The same of dsum, whose slot is free later; what fetch() started for that turn is of one group with it. */
__device__ __forceinline__ void fetch_dsum(const row_args &args, team_state &t, int turn, int ring_slot) {
    if constexpr (RING_HAS_DSUM) {
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const bool there = turn < t.turns[u];
            const char *s = t.next_s + u * PER_WARP * args.dsum_stride;
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                copy_async<RING_HAS_DSUM ? DSUM_BYTES : 4, RING_HAS_DSUM ? DSUM_ACCESS : 4>(
                    t.s_slot(ring_slot, u, k), s + k * (SPREAD * DSUM_BYTES), there && t.has(k));
        }
        t.next_s += args.dsum_turn;
        copy_async_commit();
    }
}

/* A row's dsum: chunk k of this thread, of which AT_ONCE are asked for at once. */
struct no_dsum {
    enum { AT_ONCE = 1 };
    __device__ __forceinline__ chunk<DSUM_BYTES> at(const team_state &, int) const {
        return zero_chunk<DSUM_BYTES>();
    }
};
struct dsum_in_ring {
    enum { AT_ONCE = 1 };
    int ring_slot, u;
    __device__ __forceinline__ chunk<DSUM_BYTES> at(const team_state &t, int k) const {
        return load_from_shared<DSUM_BYTES>(t.s_slot(ring_slot, u, k));
    }
};
struct dsum_in_memory {
    enum { AT_ONCE = least(CHUNKS_PER_THREAD, 4) };
    const char *first; /* this thread's first chunk */
    bool there;
    __device__ __forceinline__ chunk<DSUM_BYTES> at(const team_state &t, int k) const {
        auto c = zero_chunk<DSUM_BYTES>();
        if (there && t.has(k))
            c = load_chunk<DSUM_BYTES, DSUM_ACCESS>(first + (i64)k * (SPREAD * DSUM_BYTES));
        return c;
    }
};

__device__ __forceinline__ void take(const team_state &t, int ring_slot, operands &o) {
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            o.x[u][k] = load_from_shared<X_BYTES>(t.x_slot(ring_slot, u, k));
            o.g[u][k] = load_from_shared<DY_BYTES>(t.g_slot(ring_slot, u, k));
        }
}

__device__ __forceinline__ void statistics_of(const row_args &args, team_state &t, int turn,
                                              stored_mean *mean, stored_rstd *rstd) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        const bool there = turn < t.turns[u];
        mean[u] = LAYER ? load_mean(t.next_mean + u * PER_WARP * args.mean_stride, there) : 0;
        rstd[u] = load_rstd(t.next_rstd + u * PER_WARP * args.rstd_stride, there);
    }
    t.next_mean += args.mean_turn;
    t.next_rstd += args.rstd_turn;
}

/* Adding 0 would be an addition: it changes -0. */
__device__ __forceinline__ real plus_offset(real w) {
    return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w;
}

/* A thread's weights: in registers as they are in memory, or converted in shared memory. */
struct thread_weights {
    chunk<WEIGHT_BYTES> held[AGAIN ? 1 : CHUNKS_PER_THREAD];

    __device__ __forceinline__ void load(const row_args &args, const team_state &t) {
        if constexpr (WEIGHT_TYPE != NONE)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
                chunk<WEIGHT_BYTES> w = zero_chunk<WEIGHT_BYTES>();
                if (!t.idle && t.has(k))
                    w = load_chunk<WEIGHT_BYTES, WEIGHT_ACCESS>(
                        (const char *)args.weight + (i64)(t.rank + k * SPREAD) * WEIGHT_BYTES);
                if constexpr (AGAIN) {
#pragma unroll
                    for (int i = 0; i < PIECES; i++) {
                        real converted[COLUMNS];
                        convert(w, i, converted);
                        store_to_shared<PIECE_BYTES>(t.w_slot(k, i),
                                                     pack<REAL_TYPE, COLUMNS>(converted));
                    }
                } else {
                    held[k] = w;
                }
            }
    }
    /* Else the converted weights stay in registers, and spill. */
    __device__ __forceinline__ void forget_all(u32 zero) {
        if constexpr (WEIGHT_TYPE != NONE && !KEEP_WEIGHTS && !AGAIN)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                for (u32 &w : held[k].word)
                    forget(w, zero);
    }
    /* A piece of the weights of chunk k: all at once would take registers. */
    __device__ __forceinline__ void take(const team_state &t, int k, int piece, real *w) const {
        if constexpr (AGAIN && WEIGHT_TYPE != NONE) {
            const auto c = load_from_shared<PIECE_BYTES>(t.w_slot(k, piece));
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                w[i] = element<REAL_TYPE>(c.word, i);
        } else {
            convert(held[AGAIN ? 0 : k], piece, w);
        }
    }
    __device__ __forceinline__ static void convert(const chunk<WEIGHT_BYTES> &c, int piece, real *w) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            w[i] = WEIGHT_TYPE == NONE ? (real)1
                                  : plus_offset(element<WEIGHT_TYPE>(c.word, piece * COLUMNS + i));
    }
};
