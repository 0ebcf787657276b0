/*
 * A part of backward.cu: rows of 16 bits in a ring of RING_SLOTS tiles of x and dy, in two steps. First
 * warps take rows: THREADS_PER_ROW lanes sum up a row in runs of words (row_runs.cu) and leave what the sums
 * come to in shared memory. Then threads take columns: each keeps the same few of every row, with
 * their weights and their sums in registers, whatever the length of a row, and writes dx where x
 * was. PLANES parts of the block take the rows in turn.
 *
 * Two rows of an odd length are as many words. Thread c of a plane has the words of columns 2c and
 * 2c + 1 of the first row and 2c + 1 and 2c + 2 of the second, which share no word with another
 * row; so it sums three columns, and the last word of the first row, whose second half is the
 * second row's, is one thread's extra.
 */
constexpr int COLUMN_LANES = THREADS / most(PLANES, 1);
constexpr int ROW_WORDS = COLS / 2; /* of one row alone */
constexpr int EACH_WORDS = RUNS ? ceil_div(ROW_WORDS, COLUMN_LANES) : 1;
constexpr int EACH_COLS = 2 + ODD_COLS;

struct __align__(16) factors_in_shared {
    float mean, rstd, slope, constant, delta, back, unused[2];
};

/* The sums of two columns that a word of a plane's own belongs to. */
struct edge_sums {
    real dweight[2], dbias[2]; /* of the last column, of the first */
};

/* A thread's columns: weights and sums. */
struct thread_columns {
    real weight[EACH_WORDS][EACH_COLS], dweight[EACH_WORDS][EACH_COLS],
        dbias[EACH_WORDS][EACH_COLS];
    int lane, plane, last; /* last: the last of its words */
    bool has_last;

    __device__ __forceinline__ int word(int k) const {
        return k < EACH_WORDS - 1 ? k * COLUMN_LANES + lane : last;
    }
    __device__ __forceinline__ void start(const row_args &args) {
        lane = threadIdx.x % COLUMN_LANES;
        plane = threadIdx.x / COLUMN_LANES;
        last = least((EACH_WORDS - 1) * COLUMN_LANES + lane, ROW_WORDS - 1);
        has_last = (EACH_WORDS - 1) * COLUMN_LANES + lane < ROW_WORDS;
#pragma unroll
        for (int k = 0; k < EACH_WORDS; k++)
#pragma unroll
            for (int i = 0; i < EACH_COLS; i++) {
                weight[k][i] = 1;
                if constexpr (WEIGHT_TYPE != NONE)
                    weight[k][i] = plus_offset(load_element<WEIGHT_TYPE>(args.weight, 2 * word(k) + i));
                dweight[k][i] = dbias[k][i] = 0;
            }
    }
};

/* This lane's part of a row's sums, a few words at a time. */
__device__ __forceinline__ void run_sums(const run_place &x, const run_place &g, u32 weights,
                                         int rank, real mean, real *sum) {
    constexpr int AT_ONCE = 4;
    const u32 x_first = x.at & ~3u, g_first = g.at & ~3u, shift = x.odd ? 16 : 0;
    const int column = least(rank, LAST_RUN) * RUN_COLS;
    real part[2] = {}, product[4] = {}, centred[2] = {}; /* of g, g * d and d */
    real has[3] = {}, all[3] = {};
    u32 x_next = 0, g_next = 0;
    if (ODD_COLS) {
        x_next = load_from_shared<4>(x_first).word[0];
        g_next = load_from_shared<4>(g_first).word[0];
    }
#pragma unroll
    for (int first = 0; first < RUN; first += AT_ONCE) {
        const int count = least(AT_ONCE, RUN - first);
        u32 xs[AT_ONCE], gs[AT_ONCE];
        real w[AT_ONCE][2];
#pragma unroll
        for (int j = 0; j < count; j++) {
            const int at = 4 * (first + j + ODD_COLS);
            xs[j] = load_from_shared<4>(x_first + at).word[0];
            gs[j] = load_from_shared<4>(g_first + at).word[0];
            if constexpr (WEIGHT_TYPE != NONE)
                load_two<WEIGHT_TYPE>(weights, column + 2 * (first + j), w[j]);
        }
#pragma unroll
        for (int j = 0; j < count; j++) {
            u32 xw = xs[j], gw = gs[j];
            if (ODD_COLS) {
                xw = __funnelshift_r(x_next, xs[j], shift);
                gw = __funnelshift_r(g_next, gs[j], shift);
                x_next = xs[j];
                g_next = gs[j];
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int e = 2 * (first + j) + i;
                real d = element<X_TYPE>(&xw, i), v = element<DY_TYPE>(&gw, i);
                if (e == TAIL)
                    has[0] = part[0] + part[1], has[2] = centred[0] + centred[1],
                    has[1] = tree_sum<4>(product);
                if (LAYER)
                    d -= mean;
                if (WEIGHT_TYPE != NONE)
                    v *= plus_offset(w[j][i]);
                product[e % 4] = multiply_add(v, d, product[e % 4]);
                part[i] += v;
                centred[i] += d;
            }
        }
    }
    all[0] = part[0] + part[1];
    all[1] = tree_sum<4>(product);
    all[2] = centred[0] + centred[1];
#pragma unroll
    for (int j = 0; j < 3; j++)
        sum[j] = x.whole ? all[j] : x.there ? has[j] : 0;
}

__device__ __forceinline__ void leave_factors(u32 to, const row_factors &f) {
    const real first[4] = {f.mean, f.rstd, f.slope, f.constant}, more[2] = {f.delta, f.back};
    store_to_shared<16>(to, pack<F32, 4>(first));
    if (LAYER && CORRECT)
        store_to_shared<8>(to + 16, pack<F32, 2>(more));
}
__device__ __forceinline__ row_factors take_factors(u32 from) {
    const auto first = load_from_shared<16>(from);
    row_factors f = {};
    f.mean = element<F32>(first.word, 0);
    f.rstd = element<F32>(first.word, 1);
    f.slope = element<F32>(first.word, 2);
    f.constant = element<F32>(first.word, 3);
    if (LAYER && CORRECT) {
        const auto more = load_from_shared<8>(from + 16);
        f.delta = element<F32>(more.word, 0);
        f.back = element<F32>(more.word, 1);
    }
    return f;
}

/* A thread's words of a row whose first word is at `at`; dy is TILE_ROOM behind x. SECOND: of two
 * rows of an odd length. */
template <int SECOND>
__device__ __forceinline__ void row_of_words(thread_columns &t, u32 at, const row_factors &f) {
    u32 x[EACH_WORDS], g[EACH_WORDS];
#pragma unroll
    for (int k = 0; k < EACH_WORDS; k++) {
        x[k] = load_from_shared<4>(at + 4 * t.word(k)).word[0];
        g[k] = load_from_shared<4>(at + 4 * t.word(k) + TILE_ROOM).word[0];
    }
#pragma unroll
    for (int k = 0; k < EACH_WORDS; k++) {
        real out[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            out[i] = element_output(element<X_TYPE>(x + k, i), element<DY_TYPE>(g + k, i),
                                    t.weight[k][SECOND + i], f, t.dweight[k][SECOND + i],
                                    t.dbias[k][SECOND + i]);
        if constexpr (WANT_DX)
            if (k < EACH_WORDS - 1 || t.has_last)
                store_to_shared<4>(at + 4 * t.word(k), pack<RUNS ? DX_TYPE : F16, 2>(out));
    }
}

/* The word that two rows share. */
__device__ __forceinline__ void shared_word(edge_sums &sums, u32 at, u32 weights,
                                            const row_factors &first, const row_factors &second,
                                            bool both) {
    const u32 x = load_from_shared<4>(at).word[0], g = load_from_shared<4>(at + TILE_ROOM).word[0];
    real out[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        real w = 1;
        if (i && !both)
            break;
        if constexpr (WEIGHT_TYPE != NONE)
            w = plus_offset(element<WEIGHT_TYPE>(
                load_from_shared<bytes_of(WEIGHT_TYPE)>(weights + (i ? 0 : COLS - 1) * bytes_of(WEIGHT_TYPE))
                    .word,
                0));
        out[i] = element_output(element<X_TYPE>(&x, i), element<DY_TYPE>(&g, i), w,
                                i ? second : first, sums.dweight[i], sums.dbias[i]);
    }
    if constexpr (WANT_DX)
        store_to_shared<4>(at, pack<RUNS ? DX_TYPE : F16, 2>(out));
}

/* dx of a tile's rows, of which `left` are there. */
__device__ __forceinline__ void columns_of_tile(thread_columns &t, edge_sums &edges, u32 tile,
                                                u32 factors, u32 weights, i64 left) {
    constexpr int ROW_FACTORS = sizeof(factors_in_shared);
#pragma unroll 1
    for (int row = 2 * t.plane; row < TILE_ROWS && row < left; row += 2 * PLANES) {
        const u32 at = tile + row * (COLS * 2);
        const bool both = row + 1 < left;
        const row_factors first = take_factors(factors + row * ROW_FACTORS);
        row_of_words<0>(t, at, first);
        const row_factors second = take_factors(factors + (row + 1) * ROW_FACTORS);
        if (both)
            row_of_words<ODD_COLS>(t, at + 4 * (ROW_WORDS + ODD_COLS), second);
        if (ODD_COLS && t.lane == COLUMN_LANES - 1)
            shared_word(edges, at + 4 * ROW_WORDS, weights, first, second, both);
    }
}

/* Adds the sums of a column over the planes in their order, and writes the partial row, or the
 * result, if one is given. */
template <int TYPE>
__device__ __forceinline__ void write_columns(const thread_columns &t,
                                              const real (*sums)[EACH_COLS], const edge_sums *edges,
                                              int which, real *to, void *result) {
    real(*room)[2][COLS] =
        (real(*)[2][COLS])dynamic_shared; /* of the first rows, of the second ones */
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH_WORDS; k++) {
        const int column = 2 * t.word(k);
        if (t.plane >= PLANES || (k == EACH_WORDS - 1 && !t.has_last))
            continue;
        room[t.plane][0][column] = sums[k][0];
        room[t.plane][0][column + 1] = sums[k][1];
        if (ODD_COLS)
            room[t.plane][1][column + 2] = sums[k][EACH_COLS - 1];
    }
    if (ODD_COLS && threadIdx.x < PLANES) {
        const edge_sums &e = edges[threadIdx.x];
        room[threadIdx.x][0][COLS - 1] = which ? e.dbias[0] : e.dweight[0];
        room[threadIdx.x][1][0] = which ? e.dbias[1] : e.dweight[1];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < COLS; c += THREADS) {
        real all = 0;
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++)
            all +=
                ODD_COLS && c % 2 == 0 ? room[plane][0][c] + room[plane][1][c] : room[plane][0][c];
        if (result)
            store_element<TYPE>(result, c, all);
        else
            to[c] = all;
    }
}

/* One thread brings and sends whole tiles, where such copies are and tensors allow it; else all do.
 */
constexpr bool IN_PIECES = RUNS && __CUDA_ARCH__ >= 900 && TILE_BYTES % 16 == 0 &&
                           (DENSE & 3) == 3 && X_ACCESS == 16 && DY_ACCESS == 16 &&
                           (!WANT_DX || ((DENSE & 4) && DX_ACCESS == 16));

__device__ __forceinline__ void init_barriers(u32 byte_barriers) {
    if (IN_PIECES && threadIdx.x == 0)
#pragma unroll
        for (int s = 0; s < RING_SLOTS; s++)
            byte_barrier_init(byte_barriers + 8 * s);
}

__device__ __forceinline__ void bring_tiles(const row_args &args, tile_place &p, int turn,
                                            int ring_slot, u32 byte_barrier) {
    if (IN_PIECES && p.left(args, turn) >= TILE_ROWS) {
        if (threadIdx.x == 0) {
            byte_barrier_expect(byte_barrier, 2 * TILE_BYTES);
            copy_piece_in(p.x_tile(ring_slot), p.next_x, TILE_BYTES, byte_barrier);
            copy_piece_in(p.g_tile(ring_slot), p.next_g, TILE_BYTES, byte_barrier);
        }
        p.advance(args);
        copy_async_commit();
    } else {
        p.bring(args, turn, ring_slot);
    }
}

/* Waits for a turn's tiles, of which `left` rows are there. */
__device__ __forceinline__ void wait_for_tiles(i64 left, u32 byte_barrier, u32 parity) {
    if (IN_PIECES && left >= TILE_ROWS) {
        byte_barrier_wait(byte_barrier, parity);
    } else {
        copy_async_wait<most(RING_SLOTS - 2, 0)>(); /* the one behind comes in this turn */
        __syncthreads();
    }
}

/* Sends dx of a turn, once all threads have written it. With RING_SLOTS 1 nothing of it is to be read
 * afterwards; else that is waited for in the next turn. */
__device__ __forceinline__ void send_tile(const row_args &args, tile_place &p, int turn,
                                          int ring_slot) {
    const i64 left = p.left(args, turn);
    if (IN_PIECES && left >= TILE_ROWS) {
        publish_to_copies();
        __syncthreads();
        if (WANT_DX && threadIdx.x == 0) {
            copy_piece_out(p.dx, p.x_tile(ring_slot), TILE_BYTES);
            if (RING_SLOTS == 1)
                wait_for_copies_out();
        }
    } else {
        __syncthreads();
        if constexpr (WANT_DX)
            p.send(args, turn, left, ring_slot);
    }
    /* One thread alone needs no barrier. */
    if (RING_SLOTS == 1 && (!IN_PIECES || p.left(args, turn + 1) < TILE_ROWS))
        __syncthreads();
    p.dx += tile_place::dx_rows::turn(args.dx_turn);
}

/* dweight and dbias of the block, or its rows of partial sums, once nothing is under way any more. */
__device__ __forceinline__ void write_sums(const row_args &args, const thread_columns &columns,
                                           const edge_sums *edges) {
    if (IN_PIECES && threadIdx.x == 0)
        wait_for_copies_out();
    copy_async_wait<0>();
    const i64 partial = PARTIAL_ROW(args) * COLS;
    if (WANT_DWEIGHT)
        write_columns<DWEIGHT_TYPE>(columns, columns.dweight, edges, 0, args.partial_weight + partial,
                                    args.alone ? args.dweight : nullptr);
    if (WANT_DBIAS)
        write_columns<DBIAS_TYPE>(columns, columns.dbias, edges, 1, args.partial_bias + partial,
                                  args.alone ? args.dbias : nullptr);
}

__device__ __forceinline__ void runs_of_rows(const row_args &args, team_state &t, int turns) {
    typedef run_array<WEIGHT_TYPE> weights;
    __shared__ weights weight;
    __shared__ factors_in_shared factors[TILE_ROWS];
    __shared__ edge_sums edges[PLANES + 1];
    __shared__ u64 byte_barriers[RING_SLOTS + 1];
    const u32 weights_at = shared_address(&weight), factors_at = shared_address(factors);
    const u32 barriers = shared_address(byte_barriers);
    thread_columns columns;
    tile_place p;
    p.first = (i64)ROW_BLOCK(args) * TILE_ROWS;
    p.ring = shared_address(dynamic_shared);
    p.begin(args);
    init_barriers(barriers);
    release_stream();
    wait_for_stream();
    const array_end<WEIGHT_TYPE> end(args.weight);
    bring_array<WEIGHT_TYPE, WEIGHT_ACCESS>(args.weight, weights_at);
#pragma unroll
    for (int s = 0; s < RING_SLOTS; s++)
        bring_tiles(args, p, s, s, barriers + 8 * s);
    end.store(weights_at);
    stored_mean next_mean[ROWS];
    stored_rstd next_rstd[ROWS];
    statistics_of(args, t, 0, next_mean, next_rstd);
    columns.start(args);
    if (threadIdx.x < PLANES)
        edges[threadIdx.x] = {};
    if (IN_PIECES) {
        copy_async_wait<0>(); /* of the weights */
        __syncthreads();
    }
    int ring_slot = 0, before = 0;
    u32 parity = 0;
    for (int turn = 0; turn < turns; turn++) {
        const i64 left = p.left(args, turn);
        stored_mean mean[ROWS];
        real rstd[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            mean[u] = next_mean[u];
            rstd[u] = (real)next_rstd[u];
        }
        statistics_of(args, t, turn + 1, next_mean, next_rstd);
        wait_for_tiles(left, barriers + 8 * ring_slot, parity);
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const int local = threadIdx.x / WARP * STEP + u * PER_WARP + t.lane / WARP_LANES;
            real sum[4] = {};
            if (SUMS) {
                const run_place x(p.x_tile(ring_slot) + local * (COLS * 2), t.rank);
                const run_place g(p.g_tile(ring_slot) + local * (COLS * 2), t.rank);
                run_sums(x, g, weights_at, t.rank, mean[u], sum);
                sum_in_warp(t, sum);
            }
            if (t.rank == 0)
                leave_factors(factors_at + local * (u32)sizeof(factors_in_shared),
                              factors_of(args, sum, mean[u], rstd[u]));
        }
        if (RING_SLOTS > 1 && IN_PIECES && threadIdx.x == 0)
            wait_for_copies_out();
        __syncthreads();
        if (RING_SLOTS > 1 && turn > 0)
            bring_tiles(args, p, turn - 1 + RING_SLOTS, before, barriers + 8 * before);
        if (columns.plane < PLANES)
            columns_of_tile(columns, edges[columns.plane], p.x_tile(ring_slot), factors_at, weights_at,
                            left);
        send_tile(args, p, turn, ring_slot);
        if (RING_SLOTS == 1)
            bring_tiles(args, p, turn + 1, 0, barriers);
        before = ring_slot;
        if (++ring_slot >= RING_SLOTS) {
            ring_slot = 0;
            parity ^= 1;
        }
    }
    write_sums(args, columns, edges);
}
