/*
 * Backward of dense rows in one read: dx, and the sums for dweight and dbias, from a single pass
 * over x and dy. Persistent: a fixed share of the rows for each team of threads, each keeping the
 * sums of its columns in registers; at the end a block writes one row of partial sums. In a
 * cooperative launch (args.together) the blocks then meet and add them up, each for some columns;
 * else finish.cu does. Where one block or cluster takes all rows (args.alone) its sums are the
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
 * asynchronous copies cannot move (alignment below 4 bytes). HOLD 1: a row stays in the ring for its
 * output and is read again, and the weights wait in shared memory too, so that a thread has registers
 * for the sums of more columns.
 *
 *     g = dy * w    d = x - mean    delta = mean of d    c1 = mean of g
 *     xhat = (d - delta) * rstd     c2 = mean of g * xhat
 *     dx = rstd * (g - c1 - xhat * c2)
 *
 * With f16 x nothing leaves float's range whichever product comes first, and rstd goes to dy:
 * dx = (dy * rstd) * w - c1 * rstd - (d - delta) * (c2 * rstd^2), an instruction less for an element.
 *
 * delta mends the rounding of the saved mean (CORRECT 0 leaves it out).
 *
 * GROUP > 1 (a cooperative launch): GROUP blocks anywhere on the device share each row, as in
 * forward.cu: a row's output comes DELAY turns after its sums, and an extra warp of each block
 * exchanges the sums in between.
 *
 * Constants: KIND COLS X_TYPE G_TYPE D_TYPE W_TYPE MEAN_TYPE RSTD_TYPE DW_TYPE DB_TYPE WEIGHT_OFFSET
 * WIDTH LANES VECS ROWS WARPS TEAMS CLUSTER GROUP HOLD STAGES DELAY CORRECT MIN_BLOCKS
 * WANT_DWEIGHT WANT_DBIAS, and the alignments X_ACCESS G_ACCESS D_ACCESS W_ACCESS. D_TYPE NONE: no dx.
 */
struct backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    real *partial_weight, *partial_bias; /* [gridDim.x / SHARERS][COLS] */
    void *dweight, *dbias;               /* together */
    i64 rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride; /* bytes from row to row */
    i64 row_turn, x_turn, dy_turn, dx_turn, mean_turn, rstd_turn; /* from turn to turn of a team */
    u32 turns, rest; /* of the rows: whole turns, and rows of the last */
    u32 zero;     /* 0, which the compiler cannot know */
    u32 together; /* a cooperative launch, which adds up the partial sums */
    u32 alone;    /* no other block has rows */
    u64 *mail;    /* GROUP > 1: a line for each group */
};

constexpr bool LAYER = KIND == 0;
constexpr bool WANT_DX = D_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int G_BYTES = WIDTH * bytes_of(G_TYPE);
constexpr int W_BYTES = WIDTH * bytes_of(W_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SHARERS = CLUSTER * GROUP; /* blocks of a row */
constexpr int SPREAD = LANES * SHARERS;
constexpr bool WIDE = GROUP > 1;
constexpr bool RAGGED = VECS * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = LANES <= 32;
constexpr int WARP_LANES = least(LANES, 32);
constexpr int PER_WARP = WITHIN_WARP ? 32 / WARP_LANES : 1;
constexpr int THREADS = WARPS * 32; /* that hold rows */
constexpr int ALL_THREADS = THREADS + (WIDE ? 32 : 0);
constexpr int TEAM_WARPS = WITHIN_WARP ? 1 : LANES / 32;
constexpr int STEP = PER_WARP * ROWS; /* rows a team takes at a time */
constexpr int TEAM_COLS = LANES * VECS * WIDTH;
constexpr bool RINGED = STAGES > 0;
/* Elements that asynchronous copies cannot move go through registers, if there is a ring at all. */
constexpr bool COPIES = RINGED && X_ACCESS >= 4 && G_ACCESS >= 4 && X_BYTES >= 4 && G_BYTES >= 4;
constexpr bool SUMS = LAYER || WANT_DX;
constexpr bool AGAIN = HOLD == 1 && RINGED && !WITHIN_WARP && !WIDE; /* read twice */
constexpr bool SHORT_RANGE = X_TYPE == F16 && sizeof(real) == 4;
/* Converted weights stay in registers where there is room. */
constexpr bool KEEP_WEIGHTS = sizeof(real) == 4 && ROWS * VECS * WIDTH <= 16 &&
                              (SHORT_RANGE || (WIDE && !TIGHT));

struct entry {
    real sum[4]; /* of g, of g * d, of d; one unused */
};
/* What is read of an entry: RMSNorm has the second sum only. */
constexpr int FIRST_SUM = LAYER ? 0 : 1, SUMS_READ = !LAYER ? 1 : CORRECT ? 4 : 2;

extern __shared__ __align__(16) unsigned char dynamic_shared[];

struct team_state {
    int lane, team, rank; /* rank in the row: also this thread's first chunk */
    bool idle, has_last;
    int turns[ROWS]; /* that have the thread's first row, its second ... */
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
    __device__ __forceinline__ u32 w_slot(int k) const {
        return ring + STAGES * ROWS * VECS * THREADS * (X_BYTES + G_BYTES) +
               k * (THREADS * W_BYTES) + threadIdx.x * (W_BYTES - X_BYTES);
    }
};

struct operands {
    chunk<X_BYTES> x[ROWS][VECS];
    chunk<G_BYTES> g[ROWS][VECS];
};
struct row_in_registers {
    const operands &o;
    int u;
    __device__ __forceinline__ chunk<X_BYTES> x(int k) const { return o.x[u][k]; }
    __device__ __forceinline__ chunk<G_BYTES> g(int k) const { return o.g[u][k]; }
};
struct row_in_ring {
    const team_state &t;
    int stage;
    __device__ __forceinline__ chunk<X_BYTES> x(int k) const {
        return load_from_shared<X_BYTES>(t.x_slot(stage, 0, k));
    }
    __device__ __forceinline__ chunk<G_BYTES> g(int k) const {
        return load_from_shared<G_BYTES>(t.g_slot(stage, 0, k));
    }
};

/* Starts the copies of a turn into a slot, or loads them; zeros for what is not there. */
__device__ __forceinline__ void fetch(const backward_args &args, team_state &t, int turn, int stage,
                                      operands &o) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = turn < t.turns[u];
        const char *x = t.next_x + u * PER_WARP * args.x_stride;
        const char *g = t.next_g + u * PER_WARP * args.dy_stride;
#pragma unroll(AGAIN && !COPIES ? 1 : VECS)
        for (int k = 0; k < VECS; k++) {
            bool has = there && t.has(k);
            if constexpr (COPIES) {
                copy_async<COPIES ? X_BYTES : 4, COPIES ? X_ACCESS : 4>(
                    t.x_slot(stage, u, k), x + k * (SPREAD * X_BYTES), has);
                copy_async<COPIES ? G_BYTES : 4, COPIES ? G_ACCESS : 4>(
                    t.g_slot(stage, u, k), g + k * (SPREAD * G_BYTES), has);
            } else {
                auto cx = zero_chunk<X_BYTES>();
                auto cg = zero_chunk<G_BYTES>();
                if (has) {
                    cx = load_once<X_BYTES, X_ACCESS>(x + k * (SPREAD * X_BYTES));
                    cg = load_once<G_BYTES, G_ACCESS>(g + k * (SPREAD * G_BYTES));
                }
                if constexpr (RINGED) {
                    store_to_shared<X_BYTES>(t.x_slot(stage, u, k), cx);
                    store_to_shared<G_BYTES>(t.g_slot(stage, u, k), cg);
                } else {
                    o.x[u][k] = cx;
                    o.g[u][k] = cg;
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

__device__ __forceinline__ void statistics_of(const backward_args &args, team_state &t, int turn,
                                              real *mean, real *rstd) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        mean[u] = 0;
        rstd[u] = 0;
        if (turn < t.turns[u]) {
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

/* A thread's weights: in registers as they are in memory, or in shared memory. */
struct thread_weights {
    chunk<W_BYTES> held[AGAIN ? 1 : VECS];

    __device__ __forceinline__ void load(const backward_args &args, const team_state &t) {
        if constexpr (W_TYPE != NONE)
#pragma unroll
            for (int k = 0; k < VECS; k++) {
                chunk<W_BYTES> w = zero_chunk<W_BYTES>();
                if (!t.idle && t.has(k))
                    w = load_shared_by_rows<W_BYTES, W_ACCESS>(
                        (const char *)args.weight + (i64)(t.rank + k * SPREAD) * W_BYTES);
                if constexpr (AGAIN)
                    store_to_shared<W_BYTES>(t.w_slot(k), w);
                else
                    held[k] = w;
            }
    }
    /* Else the converted weights stay in registers, and spill. */
    __device__ __forceinline__ void forget_all(u32 zero) {
        if constexpr (W_TYPE != NONE && !KEEP_WEIGHTS && !AGAIN)
#pragma unroll
            for (int k = 0; k < VECS; k++)
                for (u32 &w : held[k].word)
                    forget(w, zero);
    }
    __device__ __forceinline__ void take(const team_state &t, int k, real *w) const {
        chunk<W_BYTES> c;
        if constexpr (AGAIN && W_TYPE != NONE)
            c = load_from_shared<W_BYTES>(t.w_slot(k));
        else
            c = held[AGAIN ? 0 : k];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            w[i] = W_TYPE == NONE ? (real)1 : plus_offset(element<W_TYPE>(c.word, i));
    }
};

/* This thread's part of a row's sums. */
template <typename row_source>
__device__ __forceinline__ void thread_sums(const team_state &t, const row_source &row,
                                            const thread_weights &weights, real mean, real *sum) {
    constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
    real product[HALF];
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        real w[WIDTH], g[WIDTH], d[WIDTH];
        const auto x = row.x(k);
        const auto dy = row.g(k);
        weights.take(t, k, w);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            d[i] = element<X_TYPE>(x.word, i);
            if (LAYER)
                d[i] -= mean;
            g[i] = element<G_TYPE>(dy.word, i);
            if (W_TYPE != NONE)
                g[i] *= w[i];
        }
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            product[i] = k == 0 || TIGHT ? g[i] * d[i] : multiply_add(g[i], d[i], product[i]);
            if (WIDTH > 1)
                product[i] = multiply_add(g[i + HALF], d[i + HALF], product[i]);
        }
        if (TIGHT)
            sum[1] += tree_sum<HALF>(product);
        if (LAYER) {
            sum[0] += tree_sum<WIDTH>(g);
            if (CORRECT && (!RAGGED || t.has(k)))
                sum[2] += tree_sum<WIDTH>(d);
        }
    }
    if (!TIGHT)
        sum[1] = tree_sum<HALF>(product);
}

__device__ __forceinline__ void add_entry(u32 address, real *sum) {
    constexpr int TYPE = sizeof(real) == 4 ? F32 : F64;
    constexpr int BYTES = sizeof(real);
    const auto e = load_from_shared<SUMS_READ * BYTES>(address + FIRST_SUM * BYTES);
#pragma unroll
    for (int j = 0; j < SUMS_READ; j++)
        sum[FIRST_SUM + j] += element<TYPE>(e.word, j);
}

/* Adds COUNT entries in one order; every thread gets the sums. */
template <int COUNT>
__device__ __forceinline__ void add_entries(const team_state &t, u32 entries, real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    if constexpr (COUNT <= 4) {
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            add_entry(entries + e * (int)sizeof(entry), sum);
    } else {
        constexpr int TREE = 2 * power_of_two_up_to(COUNT - 1);
        if (t.lane % TREE < COUNT)
            add_entry(entries + t.lane % TREE * (int)sizeof(entry), sum);
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j == 1 || (LAYER && (j == 0 || CORRECT)))
                sum[j] = sum_over_lanes<TREE>(sum[j], t.lane);
    }
}

__device__ __forceinline__ void sum_in_warp(const team_state &t, real *sum) {
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j == 1 || (LAYER && (j == 0 || CORRECT)))
            sum[j] = sum_over_lanes<WARP_LANES>(sum[j], t.lane);
}

/* Adds a warp's parts of a row's sums into an entry. Each half of the warp goes on with one of two
 * sums, each quarter with one of three: half the exchanges of adding them one by one, and the same
 * sums. */
__device__ __forceinline__ void store_warp_sums(const team_state &t, const real *sum, u32 to) {
    const bool high = t.lane & 16, odd = LAYER && CORRECT && t.lane & 8;
    real v = sum[1];
    if (LAYER)
        v = high ? sum[1] : sum[0];
    v += __shfl_xor_sync(EVERY_LANE, LAYER && high ? sum[0] : sum[1], 16);
    if (LAYER && CORRECT) {
        const real third = sum[2] + __shfl_xor_sync(EVERY_LANE, sum[2], 16);
        const real other = __shfl_xor_sync(EVERY_LANE, odd ? v : third, 8);
        v = (odd ? third : v) + other;
    } else {
        v += __shfl_xor_sync(EVERY_LANE, v, 8);
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
        v += __shfl_xor_sync(EVERY_LANE, v, step);
    const int which = odd ? 2 : !LAYER || high;
    if (t.lane % 8 == 0 && t.lane == (!LAYER ? 0 : which == 2 ? 8 : 16 * which))
        store_to_shared<sizeof(real)>(to + which * (int)sizeof(real),
                                      pack<sizeof(real) == 4 ? F32 : F64, 1>(&v));
}

/* What the parts of a row's sums go through. A team has two, for turns of even and odd number. */
struct __align__(16) turn_room {
    entry warps[TEAM_WARPS], blocks[CLUSTER];
    u64 byte_barrier, unused;
};

/* Adds the parts of a row's sums over its team, then over the cluster. `room` is the address of a
 * turn_room, `turn` the number of the turn. */
__device__ __forceinline__ void exchange(const team_state &t, real *sum, u32 room, u32 block_rank,
                                         int turn) {
    if constexpr (TEAM_WARPS == 1) {
        sum_in_warp(t, sum);
        return;
    }
    const int warp = threadIdx.x / 32 % TEAM_WARPS;
    store_warp_sums(t, sum, room + warp * (int)sizeof(entry));
    barrier(1 + t.team, LANES);
    if constexpr (CLUSTER == 1) {
        add_entries<TEAM_WARPS>(t, room, sum);
    } else {
        const u32 entries = room + TEAM_WARPS * (u32)sizeof(entry);
        const u32 byte_barrier = entries + CLUSTER * (u32)sizeof(entry);
        if (warp == 0) {
            add_entries<TEAM_WARPS>(t, room, sum);
            if (t.lane == 0)
                byte_barrier_expect(byte_barrier, CLUSTER * sizeof(entry));
            if (t.lane < CLUSTER)
                send_to_block(entries + block_rank * (u32)sizeof(entry), byte_barrier, t.lane, sum);
        }
        byte_barrier_wait(byte_barrier, turn >> 1 & 1);
        add_entries<CLUSTER>(t, entries, sum);
    }
}

/* The sum of v over the rows that a warp takes at once, in the lanes of the first. */
__device__ __forceinline__ real sum_over_rows(real v, int lane) {
#pragma unroll
    for (int step = power_of_two_up_to(PER_WARP - 1); step > 0; step /= 2) {
        const real other = __shfl_down_sync(EVERY_LANE, v, step * WARP_LANES);
        if (lane / WARP_LANES + step < least(PER_WARP, 2 * step))
            v += other;
    }
    return v;
}

/* Columns that are moved at once. */
constexpr int COLUMNS = least(WIDTH, 16 / (int)sizeof(real));
struct __align__(COLUMNS * sizeof(real)) columns {
    real v[COLUMNS];
};

/* Adds one of the column sums over the block's teams in their order and writes the partial row, or
 * the result, if one is given. */
template <int TYPE>
__device__ __forceinline__ void write_partial(const team_state &t, real (*sums)[WIDTH], real *to,
                                              void *result, u32 block_rank) {
    constexpr int PIECES = WIDTH / COLUMNS;    /* of a chunk */
    columns *room = (columns *)dynamic_shared; /* [TEAMS][TEAM_COLS / COLUMNS] */
    const int own = WITHIN_WARP ? t.rank : t.rank - (int)block_rank * LANES;
    barrier(0, THREADS);
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            columns c;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                c.v[j] = sums[k][i * COLUMNS + j];
                if (PER_WARP > 1)
                    c.v[j] = sum_over_rows(c.v[j], t.lane);
            }
            if (!WITHIN_WARP || t.lane < WARP_LANES)
                room[(t.team * LANES * VECS + k * LANES + own) * PIECES + i] = c;
        }
    barrier(0, THREADS);
    for (int c = threadIdx.x; c < TEAM_COLS / COLUMNS; c += THREADS) {
        const int local = c / PIECES, k = local / LANES;
        const int index = local % LANES + block_rank * LANES + k * SPREAD;
        if (index < CHUNKS) {
            columns all = {};
#pragma unroll 4
            for (int team = 0; team < TEAMS; team++) {
                const columns v = room[team * (TEAM_COLS / COLUMNS) + c];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    all.v[j] += v.v[j];
            }
            const int column = index * WIDTH + c % PIECES * COLUMNS;
            if (result)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    store_element<TYPE>(result, column + j, all.v[j]);
            else
                *(columns *)(to + column) = all;
        }
    }
}

/* Adds up the partial rows for some of the columns, which no other block does, and rounds once. A
 * warp takes COLUMNS neighbours of 32 / COLUMNS rows at a time; `split` warps share the rows. */
__device__ __forceinline__ void sum_partials(const backward_args &args, int warp, int lane) {
    constexpr int COLUMNS = COLS >= 2048 ? 32 : COLS >= 1024 ? 16 : 8;
    constexpr int ABREAST = 32 / COLUMNS;
    constexpr int EACH = ceil_div(COLS, COLUMNS), TILES = EACH * (WANT_DWEIGHT + WANT_DBIAS);
    double *room = (double *)dynamic_shared; /* [WARPS][COLUMNS] */
    const int count = gridDim.x / SHARERS;
    int split = 1;
    while (2 * split <= WARPS && 2 * split * ABREAST <= count &&
           (i64)2 * split * TILES <= (i64)gridDim.x * WARPS)
        split *= 2;
    const int of_block = WARPS / split; /* tiles at a time */
    for (int first = blockIdx.x * of_block; first < TILES; first += gridDim.x * of_block) {
        const int tile = first + warp / split;
        const bool weight = WANT_DWEIGHT && tile < EACH;
        const int column = (weight || !WANT_DWEIGHT ? tile : tile - EACH) * COLUMNS + lane % COLUMNS;
        const bool has = warp / split < of_block && tile < TILES && column < COLS;
        const real *from = (weight ? args.partial_weight : args.partial_bias) + column;
        double sum = 0;
        if (has) {
            constexpr int AT_ONCE = 16;
            const int step = split * ABREAST;
            for (int p = warp % split * ABREAST + lane / COLUMNS; p < count; p += AT_ONCE * step) {
                real v[AT_ONCE];
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    v[j] = p + j * step < count ? load_of_others(from + (i64)(p + j * step) * COLS)
                                                : 0;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    sum += v[j];
            }
        }
#pragma unroll
        for (int step = COLUMNS; step < 32; step *= 2)
            sum += __shfl_xor_sync(EVERY_LANE, sum, step);
        if (lane < COLUMNS)
            room[warp * COLUMNS + lane] = sum;
        barrier(0, THREADS);
        if (has && warp % split == 0 && lane < COLUMNS) {
            for (int s = 1; s < split; s++)
                sum += room[(warp + s) * COLUMNS + lane];
            if (weight)
                store_element<DW_TYPE>(args.dweight, column, (real)sum);
            else
                store_element<DB_TYPE>(args.dbias, column, (real)sum);
        }
        barrier(0, THREADS);
    }
}

/* What is left once all rows are done: the sums of this block's columns, then everybody's. */
__device__ __forceinline__ void write_column_sums(const backward_args &args, const team_state &t,
                                                  real (*dweight)[WIDTH], real (*dbias)[WIDTH],
                                                  u32 block_rank) {
    const i64 partial = (i64)(blockIdx.x / SHARERS) * COLS;
    if (WANT_DWEIGHT)
        write_partial<DW_TYPE>(t, dweight, args.partial_weight + partial,
                               args.alone ? args.dweight : nullptr, block_rank);
    if (WANT_DBIAS)
        write_partial<DB_TYPE>(t, dbias, args.partial_bias + partial,
                               args.alone ? args.dbias : nullptr, block_rank);
    if ((WANT_DWEIGHT || WANT_DBIAS) && args.together) {
        grid_barrier(THREADS);
        sum_partials(args, threadIdx.x / 32, t.lane);
    }
}

/* What a row's sums come to. */
struct row_factors {
    real mean, delta, rstd, slope, constant; /* slope: of xhat, or of d where SHORT_RANGE */
    real back;                               /* what delta takes from xhat */
};

__device__ __forceinline__ row_factors factors_of(const real *sum, real mean, real rstd) {
    const real delta = LAYER && CORRECT ? sum[2] * (real)(1.0 / COLS) : 0;
    const real c1 = LAYER ? sum[0] * (real)(1.0 / COLS) : 0;
    const real both = LAYER && CORRECT ? multiply_add(-delta, sum[0], sum[1]) : sum[1];
    const real c2 = both * (real)(1.0 / COLS) * rstd;
    return {mean, delta, rstd, SHORT_RANGE ? -c2 * rstd * rstd : -c2 * rstd, -c1 * rstd,
            -delta * rstd};
}

/* dx of a chunk, whose part of the columns' sums is added. */
__device__ __forceinline__ void chunk_output(const chunk<X_BYTES> &x, const chunk<G_BYTES> &dy,
                                             const real *w, const row_factors &f, real *dweight,
                                             real *dbias, real *out) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        real d = element<X_TYPE>(x.word, i), g = element<G_TYPE>(dy.word, i);
        if (LAYER)
            d -= f.mean;
        if (LAYER && CORRECT && SHORT_RANGE)
            d -= f.delta;
        if (WANT_DBIAS)
            dbias[i] += g;
        if (SHORT_RANGE)
            g *= f.rstd;
        else
            d = LAYER && CORRECT ? multiply_add(d, f.rstd, f.back) : d * f.rstd;
        if (WANT_DWEIGHT)
            dweight[i] = multiply_add(g, d, dweight[i]);
        const real rest = LAYER ? multiply_add(d, f.slope, f.constant) : d * f.slope;
        const real scaled = W_TYPE == NONE ? g : g * w[i];
        if (SHORT_RANGE)
            out[i] = W_TYPE == NONE ? g + rest : multiply_add(g, w[i], rest);
        else
            out[i] = multiply_add(scaled, f.rstd, rest);
    }
}

/* ---- Rows over GROUP blocks -------------------------------------------------------------------- */

constexpr int LINE = 2 * DELAY + 2; /* as in forward.cu */
typedef mail<real, GROUP, LINE> group_mail;

struct wide_room {
    entry slots[2][WARPS], sums[2];
};

/* The extra warp: the sums of the rows whose output is next, and those of the newest row. */
__device__ __forceinline__ void exchange_turns(const team_state &t, wide_room &room, u64 *line,
                                               int member) {
    const int turns = t.turns[0];
    group_mail m;
    for (int turn = 0; turn < turns + DELAY; turn++) {
        if (turn >= DELAY) {
            real sum[3] = {0, 0, 0};
#pragma unroll
            for (int e = 0; e < group_mail::EACH; e++) {
                real v[3] = {0, 0, 0};
                m.take(line, turn - DELAY, e, t.lane, v);
#pragma unroll
                for (int j = 0; j < 3; j++)
                    sum[j] += v[j];
            }
            __syncwarp();
            sum_in_warp(t, sum);
            if (t.lane == 0)
                room.sums[turn & 1] = {sum[0], sum[1], sum[2], 0};
        }
        if (turn + 1 >= DELAY && turn + 1 < turns + DELAY)
            m.ask(line, turn + 1 - DELAY, t.lane);
        barrier(1, ALL_THREADS);
        if (turn < turns) {
            real sum[4];
            add_entries<WARPS>(t, shared_address(&room.slots[turn & 1][0]), sum);
            if (t.lane == 0)
                group_mail::send(line, turn, member, sum);
        }
    }
}

/* The other warps: the sums of the newest row, and the output of an older one. */
__device__ __forceinline__ void row_turns(const backward_args &args, team_state &t, wide_room &room,
                                          int member, i64 row) {
    const int turns = t.turns[0];
    char *dx = (char *)args.dx + row * args.dx_stride +
               (i64)t.rank * (WIDTH * bytes_of(WANT_DX ? D_TYPE : F32));
    const char *old_mean = t.next_mean, *old_rstd = t.next_rstd;
    operands o;
    int newest = 0, oldest = 0; /* slots */
    thread_weights weights;
    weights.load(args, t);
    real dweight[VECS][WIDTH], dbias[VECS][WIDTH];
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            dweight[k][i] = dbias[k][i] = 0;
    /* Statistics come a turn before they are used. */
    real next_mean = 0, mean = 0, rstd = 0;
    if (LAYER && turns > 0)
        next_mean = load_element<MEAN_TYPE>(t.next_mean, 0);
    for (int turn = 0; turn < turns + DELAY; turn++) {
        weights.forget_all(args.zero);
        if (turn < turns) {
            real sum[4];
            const real now = next_mean;
            t.next_mean += args.mean_turn;
            if (LAYER && turn + 1 < turns)
                next_mean = load_element<MEAN_TYPE>(t.next_mean, 0);
            copy_async_wait<most(STAGES - 1 - DELAY, 0)>();
            take(t, newest, o);
            thread_sums(t, row_in_registers{o, 0}, weights, now, sum);
            store_warp_sums(t, sum, shared_address(&room.slots[turn & 1][threadIdx.x / 32]));
            newest = newest + 1 == STAGES ? 0 : newest + 1;
        }
        if (turn + 1 == DELAY && turns > 0) {
            if (LAYER)
                mean = load_element<MEAN_TYPE>(old_mean, 0);
            rstd = load_element<RSTD_TYPE>(old_rstd, 0);
        }
        barrier(1, ALL_THREADS);
        if (turn < DELAY)
            continue;
        const entry s = room.sums[turn & 1];
        const row_factors f = factors_of(s.sum, mean, rstd);
        old_mean += args.mean_turn;
        old_rstd += args.rstd_turn;
        if (turn + 1 < turns + DELAY) {
            if (LAYER)
                mean = load_element<MEAN_TYPE>(old_mean, 0);
            rstd = load_element<RSTD_TYPE>(old_rstd, 0);
        }
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            real w[WIDTH], out[WIDTH];
            const auto x = load_from_shared<X_BYTES>(t.x_slot(oldest, 0, k));
            const auto g = load_from_shared<G_BYTES>(t.g_slot(oldest, 0, k));
            weights.take(t, k, w);
            chunk_output(x, g, w, f, dweight[k], dbias[k], out);
            if constexpr (WANT_DX) {
                constexpr int D_BYTES = WIDTH * bytes_of(D_TYPE);
                if (t.has(k))
                    store_once<D_BYTES, D_ACCESS>(dx + (i64)k * (SPREAD * D_BYTES),
                                                  pack<D_TYPE, WIDTH>(out));
            }
        }
        fetch(args, t, turn - DELAY + STAGES, oldest, o);
        oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
        dx += args.dx_turn;
    }
    copy_async_wait<0>();
    write_column_sums(args, t, dweight, dbias, member);
}

__device__ __forceinline__ void wide_rows(const backward_args &args, team_state &t) {
    __shared__ __align__(16) wide_room room;
    const i64 group = blockIdx.x / GROUP;
    const int member = blockIdx.x % GROUP;
    u64 *line = args.mail + group * group_mail::ALL_WORDS;
    const bool exchanger = threadIdx.x >= THREADS;
    release_stream();
    wait_for_stream();
    if (exchanger) {
        group_mail::clear(line, member, t.lane);
        grid_barrier_of_warp(t.lane);
        exchange_turns(t, room, line, member);
    } else {
        operands o;
#pragma unroll 1
        for (int s = 0; s < STAGES; s++)
            fetch(args, t, s, s, o);
        row_turns(args, t, room, member, group);
    }
}

/* ---- Rows in a warp, a team or a cluster ------------------------------------------------------- */

/* The outputs of a thread's rows of a turn, and their part of the columns' sums. */
template <typename row_source>
__device__ __forceinline__ void row_output(const team_state &t, const row_source &row,
                                           const thread_weights &weights, const row_factors &f,
                                           real (*dweight)[WIDTH], real (*dbias)[WIDTH], char *dx,
                                           bool there) {
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        real w[WIDTH], out[WIDTH];
        const auto x = row.x(k);
        const auto g = row.g(k);
        weights.take(t, k, w);
        chunk_output(x, g, w, f, dweight[k], dbias[k], out);
        if constexpr (WANT_DX) {
            constexpr int D_BYTES = WIDTH * bytes_of(D_TYPE);
            if (there && t.has(k))
                store_once<D_BYTES, D_ACCESS>(dx + (i64)k * (SPREAD * D_BYTES),
                                              pack<D_TYPE, WIDTH>(out));
        }
    }
}

/* Turns are the block's: a team without rows takes zeros, so that all meet at the end at once. */
__device__ __forceinline__ void team_rows(const backward_args &args, team_state &t, i64 row,
                                          int block_turns, u32 block_rank) {
    __shared__ turn_room rooms[2][WITHIN_WARP ? 1 : TEAMS];
    if (CLUSTER > 1) {
        if (threadIdx.x < 2 * TEAMS)
            byte_barrier_init(
                shared_address(&rooms[threadIdx.x / TEAMS][threadIdx.x % TEAMS].byte_barrier));
        cluster_arrive();
        cluster_wait();
    }
    u32 room = shared_address(&rooms[0][WITHIN_WARP ? 0 : t.team]);
    const u32 both_rooms = 2 * room + TEAMS * (u32)sizeof(turn_room);
    char *dx = (char *)args.dx + row * args.dx_stride +
               (i64)t.rank * (WIDTH * bytes_of(WANT_DX ? D_TYPE : F32));

    release_stream();
    wait_for_stream();
    thread_weights weights;
    weights.load(args, t);
    real dweight[VECS][WIDTH], dbias[VECS][WIDTH];
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            dweight[k][i] = dbias[k][i] = 0;

    operands o;
#pragma unroll
    for (int s = 0; s < STAGES; s++)
        fetch(args, t, s, s, o);
    real next_mean[ROWS], next_rstd[ROWS];
    statistics_of(args, t, 0, next_mean, next_rstd);

    int stage = 0;
    for (int turn = 0; turn < block_turns; turn++) {
        if constexpr (RINGED)
            copy_async_wait<most(STAGES - 1, 0)>();
        if constexpr (RINGED && !AGAIN)
            take(t, stage, o);
        if constexpr (!AGAIN)
            fetch(args, t, turn + STAGES, stage, o);
        real mean[ROWS], rstd[ROWS], sum[ROWS][4];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            mean[u] = next_mean[u];
            rstd[u] = next_rstd[u];
        }
        statistics_of(args, t, turn + 1, next_mean, next_rstd);
        weights.forget_all(args.zero);
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            if (SUMS) {
                if constexpr (AGAIN)
                    thread_sums(t, row_in_ring{t, stage}, weights, mean[u], sum[u]);
                else
                    thread_sums(t, row_in_registers{o, u}, weights, mean[u], sum[u]);
                exchange(t, sum[u], room, block_rank, turn);
            } else {
                sum[u][0] = sum[u][1] = sum[u][2] = 0;
            }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const row_factors f = factors_of(sum[u], mean[u], rstd[u]);
            char *to = dx + u * PER_WARP * args.dx_stride;
            const bool there = turn < t.turns[u];
            if constexpr (AGAIN)
                row_output(t, row_in_ring{t, stage}, weights, f, dweight, dbias, to, there);
            else
                row_output(t, row_in_registers{o, u}, weights, f, dweight, dbias, to, there);
        }
        if constexpr (AGAIN)
            fetch(args, t, turn + STAGES, stage, o);
        stage = stage + 1 >= STAGES ? 0 : stage + 1;
        room = both_rooms - room;
        dx += args.dx_turn;
    }
    copy_async_wait<0>();
    write_column_sums(args, t, dweight, dbias, block_rank);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_backward(const backward_args args) {
    const int warp = threadIdx.x / 32;
    const u32 block_rank = WIDE ? blockIdx.x % GROUP : CLUSTER > 1 ? cluster_rank() : 0;
    team_state t;
    t.lane = threadIdx.x % 32;
    t.team = warp / TEAM_WARPS;
    t.idle = WITHIN_WARP && t.lane >= PER_WARP * WARP_LANES;
    t.rank = WITHIN_WARP ? t.lane % WARP_LANES : block_rank * LANES + threadIdx.x % LANES;
    t.has_last = !RAGGED || t.rank + (VECS - 1) * SPREAD < CHUNKS;
    t.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    const i64 team = WIDE ? blockIdx.x / GROUP : (i64)(blockIdx.x / CLUSTER) * TEAMS + t.team;
    const i64 row = team * STEP + (WITHIN_WARP ? t.lane / WARP_LANES : 0); /* this thread's first */
    const i64 block_row = WIDE ? team : (i64)(blockIdx.x / CLUSTER) * TEAMS * STEP;
#pragma unroll
    for (int u = 0; u < ROWS; u++)
        t.turns[u] = t.idle ? 0 : (int)args.turns + (row + u * PER_WARP < args.rest);
    t.next_x = (const char *)args.x + row * args.x_stride + (i64)t.rank * X_BYTES;
    t.next_g = (const char *)args.dy + row * args.dy_stride + (i64)t.rank * G_BYTES;
    t.next_mean = (const char *)args.mean + row * args.mean_stride;
    t.next_rstd = (const char *)args.rstd + row * args.rstd_stride;
    if constexpr (WIDE)
        wide_rows(args, t);
    else
        team_rows(args, t, row, (int)args.turns + (block_row < args.rest), block_rank);
}
