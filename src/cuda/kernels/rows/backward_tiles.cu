/*
 * A part of backward.cu: rows that go through shared memory (row_tiles.cu), through a ring of RING_SLOTS tiles
 * of x and of dy; dx is written where x was. THREADS_PER_ROW is a power of two, ROWS is 1.
 */

/* The weights of all columns. */
struct __align__(16) shared_weights {
    real weight[WEIGHT_TYPE == NONE ? 1 : ceil_div(TILE_COLS, 4) * 4];

    __device__ __forceinline__ void load(const row_args &args) {
        if constexpr (WEIGHT_TYPE != NONE)
            for (int c = threadIdx.x; c < TILE_COLS; c += THREADS)
                weight[c] = plus_offset(load_element<WEIGHT_TYPE>(args.weight, c));
    }
    __device__ __forceinline__ void take(const team_state &t, int k, int piece, real *w) const {
        const int column = (t.rank + (t.has(k) ? k : 0) * SPREAD) * WIDTH + piece * COLUMNS;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            w[i] = WEIGHT_TYPE == NONE ? (real)1 : weight[WEIGHT_TYPE == NONE ? 0 : column + i];
    }
};

/* This thread's chunks of a row in shared memory; zeros for what is not there. */
struct row_in_tile {
    enum { GRADIENT = DY_TYPE };
    const team_state &t;
    u32 x_at, g_at;
    bool there;

    __device__ __forceinline__ chunk<X_BYTES> x(int k) const { return at<X_BYTES>(x_at, k); }
    __device__ __forceinline__ chunk<DY_BYTES> g(int k) const { return at<DY_BYTES>(g_at, k); }
    /* dx where x was: as many bytes. */
    __device__ __forceinline__ void put(int k, const chunk<DX_BYTES> &c) const {
        store_to_shared<DX_BYTES>(x_at + k * (SPREAD * DX_BYTES), c);
    }
    template <int BYTES> __device__ __forceinline__ chunk<BYTES> at(u32 first, int k) const {
        auto c = zero_chunk<BYTES>();
        if (there && t.has(k))
            c = load_from_shared<BYTES>(first + k * (SPREAD * BYTES));
        return c;
    }
};

/* Where a tile of the ring is, and where its rows are in memory. */
struct tile_place {
    typedef tile_rows<(DENSE & 1) != 0> x_rows;
    typedef tile_rows<(DENSE & 2) != 0> g_rows;
    typedef tile_rows<(DENSE & 4) != 0> dx_rows;
    const char *next_x, *next_g; /* of the turn to be brought next (tile_rows) */
    char *dx;
    i64 first; /* row of a turn */
    u32 ring;

    __device__ __forceinline__ i64 left(const row_args &args, int turn) const {
        return turn < (int)args.turns ? TILE_ROWS : turn == (int)args.turns ? args.rest - first : 0;
    }
    __device__ __forceinline__ u32 x_tile(int ring_slot) const { return ring + 2 * ring_slot * TILE_ROOM; }
    __device__ __forceinline__ u32 g_tile(int ring_slot) const { return x_tile(ring_slot) + TILE_ROOM; }
    __device__ __forceinline__ void bring(const row_args &args, int turn, int ring_slot) {
        const i64 rows = left(args, turn);
        const i64 row = first + turn * args.row_turn;
        bring_rows<(DENSE & 1) != 0, X_ACCESS>(
            next_x, x_rows::spacing(args.levels, row, args.x_stride, args.x_jump), rows, x_tile(ring_slot));
        bring_rows<(DENSE & 2) != 0, DY_ACCESS>(
            next_g, g_rows::spacing(args.levels, row, args.dy_stride, args.dy_jump), rows, g_tile(ring_slot));
        copy_async_commit();
        advance(args);
    }
    __device__ __forceinline__ void begin(const row_args &args) {
        next_x = (const char *)args.x + x_rows::begin(first, args.x_stride);
        next_g = (const char *)args.dy + g_rows::begin(first, args.dy_stride);
        dx = (char *)args.dx + dx_rows::begin(first, args.dx_stride);
    }
    __device__ __forceinline__ void advance(const row_args &args) {
        next_x += x_rows::turn(args.x_turn);
        next_g += g_rows::turn(args.dy_turn);
    }
    /* Writes the rows of dx that are there. */
    __device__ __forceinline__ void send(const row_args &args, int turn, i64 rows, int ring_slot) const {
        send_rows<(DENSE & 4) != 0, DX_ACCESS>(
            dx, dx_rows::spacing(args.levels, first + turn * args.row_turn, args.dx_stride, args.dx_jump),
            rows, x_tile(ring_slot));
    }
};

__device__ __forceinline__ void tiled_rows(const row_args &args, team_state &t, int turns) {
    __shared__ shared_weights weights;
    const int which = threadIdx.x / TILE_THREADS;
    const int local = threadIdx.x % TILE_THREADS / WARP * STEP + t.lane / WARP_LANES;
    tile_place p;
    p.first = ((i64)ROW_BLOCK(args) * (THREADS / TILE_THREADS) + which) * TILE_ROWS;
    p.ring = shared_address(dynamic_shared) + which * (2 * RING_SLOTS * TILE_ROOM);
    p.begin(args);
    release_stream();
    wait_for_stream();
#pragma unroll
    for (int s = 0; s < RING_SLOTS; s++)
        p.bring(args, s, s);
    weights.load(args);
    real dweight[CHUNKS_PER_THREAD][WIDTH] = {}, dbias[CHUNKS_PER_THREAD][WIDTH] = {};
    stored_mean next_mean[ROWS];
    stored_rstd next_rstd[ROWS];
    statistics_of(args, t, 0, next_mean, next_rstd);
    __syncthreads();
    int ring_slot = 0;
    for (int turn = 0; turn < turns; turn++) {
        const stored_mean mean = next_mean[0];
        const real rstd = (real)next_rstd[0];
        statistics_of(args, t, turn + 1, next_mean, next_rstd);
        copy_async_wait<most(RING_SLOTS - 1, 0)>();
        tile_barrier();
        const u32 at = local * (TILE_COLS * 2) + t.rank * X_BYTES;
        const row_in_tile row = {t, p.x_tile(ring_slot) + at, p.g_tile(ring_slot) + at, turn < t.turns[0]};
        real sum[4] = {};
        if (SUMS) {
            thread_sums(t, row, weights, mean, sum);
            sum_in_warp(t, sum);
        }
        row_output(t, row, weights, factors_of(args, sum, mean, rstd), dweight, dbias, row);
        tile_barrier();
        if constexpr (WANT_DX) {
            p.send(args, turn, p.left(args, turn), ring_slot);
            tile_barrier();
            p.dx += tile_place::dx_rows::turn(args.dx_turn);
        }
        p.bring(args, turn + RING_SLOTS, ring_slot);
        ring_slot = ring_slot + 1 >= RING_SLOTS ? 0 : ring_slot + 1;
    }
    copy_async_wait<0>();
    write_column_sums(args, t, dweight, dbias, 0);
}
