/*
 * A part of forward.cu: short rows of 16 bits whose length is no whole number of 16-byte chunks, or an
 * odd one (TILE). 8 rows or more are one piece of memory where they are dense: it comes to shared
 * memory and leaves it in whole 16-byte accesses, whatever the length of a row, and the output is
 * written where the row was. The arithmetic is that of centred_words.cu.
 *
 * LANES is a power of two; a warp takes ROWS for each lane, one after the other. A warp that takes 8 rows
 * or more has a tile of its own, else the block has one. With LANES 1 a thread takes a whole row and
 * exchanges nothing; rows of an odd number of chunks lie so that threads meet in no bank.
 */
constexpr bool TILED = TILE != 0;
constexpr int TILE_COLS = TILED ? COLS : 8;
constexpr int TEAM = STEP % 8 == 0 ? 32 : THREADS; /* threads of a tile */
constexpr int TILE_ROWS = TILED ? TEAM / 32 * STEP : 8;
constexpr int TILE_BYTES = TILE_ROWS * TILE_COLS * 2;
constexpr int AT_ONCE = TEAM == 32 ? ceil_div(TILE_BYTES, 32 * 16) : 4; /* pieces of a thread */
constexpr int ROW_CHUNKS = TILE_COLS / WIDTH, TILE_CHUNKS = TILE_ROWS * ROW_CHUNKS;

__device__ __forceinline__ void team_barrier() {
    if (TEAM == 32)
        __syncwarp();
    else
        __syncthreads();
}

/* Copies BYTES to shared memory, or zeros where `there` is false. */
template <int BYTES>
__device__ __forceinline__ void copy_in(u32 to, const char *from, bool there) {
    if constexpr (X_ACCESS >= 4 && BYTES >= 4)
        copy_async<BYTES, X_ACCESS>(to, from, there);
    else
        store_to_shared<BYTES>(to, there ? load_once<BYTES, X_ACCESS>(from) : zero_chunk<BYTES>());
}

/* Where chunk c of the tile is in memory, in bytes from its first row. */
__device__ __forceinline__ i64 chunk_place(int c, i64 stride) {
    return c / ROW_CHUNKS * stride + c % ROW_CHUNKS * X_BYTES;
}

/* Starts to bring a tile's rows from x on to shared memory, of which `left` are there: in whole pieces
 * and the elements behind the last, or chunk by chunk. */
__device__ __forceinline__ void bring_rows(const forward_args &args, const char *x, i64 left,
                                           u32 to) {
    const int thread = threadIdx.x % TEAM;
    if ((DENSE & 1) && left >= TILE_ROWS) {
#pragma unroll AT_ONCE
        for (int at = thread * 16; at < TILE_BYTES; at += TEAM * 16)
            copy_in<16>(to + at, x + at, true);
    } else if (DENSE & 1) {
        const int bytes = left > 0 ? (int)left * (TILE_COLS * 2) : 0;
        const int last = bytes / 16 * 16 + thread * 2;
#pragma unroll 1
        for (int at = thread * 16; at <= bytes - 16; at += TEAM * 16)
            copy_in<16>(to + at, x + at, true);
        if (last < bytes)
            store_to_shared<2>(to + last, load_once<2, 2>(x + last));
    } else {
#pragma unroll 4
        for (int c = thread; c < TILE_CHUNKS; c += TEAM)
            copy_in<X_BYTES>(to + c * X_BYTES, x + chunk_place(c, args.x_stride),
                             c / ROW_CHUNKS < left);
    }
    copy_async_commit();
}

/* Writes what stands in shared memory for the rows of y that are there, likewise. */
__device__ __forceinline__ void send_rows(const forward_args &args, char *y, i64 left, u32 from) {
    const int thread = threadIdx.x % TEAM;
    if ((DENSE & 2) && left >= TILE_ROWS) {
#pragma unroll AT_ONCE
        for (int at = thread * 16; at < TILE_BYTES; at += TEAM * 16)
            store_once<16, Y_ACCESS>(y + at, load_from_shared<16>(from + at));
    } else if (DENSE & 2) {
        const int bytes = left > 0 ? (int)left * (TILE_COLS * 2) : 0;
        const int last = bytes / 16 * 16 + thread * 2;
#pragma unroll 1
        for (int at = thread * 16; at <= bytes - 16; at += TEAM * 16)
            store_once<16, Y_ACCESS>(y + at, load_from_shared<16>(from + at));
        if (last < bytes)
            store_once<2, 2>(y + last, load_from_shared<2>(from + last));
    } else {
#pragma unroll 4
        for (int c = thread; c < TILE_CHUNKS; c += TEAM)
            if (c / ROW_CHUNKS < left)
                store_once<Y_BYTES, Y_ACCESS>(y + chunk_place(c, args.y_stride),
                                              load_from_shared<Y_BYTES>(from + c * Y_BYTES));
    }
}

/* What a column is multiplied by, and what is added to it. */
struct __align__(16) affine_columns {
    real scale[ceil_div(TILE_COLS, 4) * 4], offset[TILE_COLS];

    __device__ __forceinline__ void load(const forward_args &args) {
        for (int c = threadIdx.x; c < TILE_COLS; c += THREADS) {
            scale[c] = W_TYPE == NONE ? 1 : plus_offset(load_element<W_TYPE>(args.weight, c));
            offset[c] = B_TYPE == NONE ? 0 : load_element<B_TYPE>(args.bias, c);
        }
    }
};

/* A row in shared memory becomes its output. `at` is this thread's first chunk of it, `x` the same in
 * memory. */
__device__ __forceinline__ row_moments take_row(const forward_args &args, place &p,
                                                const affine_columns &columns, const char *x,
                                                bool there, u32 at) {
    centred_row row;
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        auto c = zero_chunk<X_BYTES>();
        if (p.has(k))
            c = load_from_shared<X_BYTES>(at + k * (SPREAD * X_BYTES));
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            row.v[k][i] = element<X_TYPE>(c.word, i);
    }
    row.m.pivot = row.m.delta = 0;
    if (LAYER)
        centre(row.m, sum_over_lanes<WARP_LANES>(sum_of(row), p.lane));
    const real squares = sum_over_lanes<WARP_LANES>(squares_of(p, row), p.lane);
    find_rstd<1>(args, &row, &squares);
    if constexpr (WIDE_RANGE) {
        row.m.beyond = leaves_range(squares, args);
        if (__any_sync(EVERY_LANE, row.m.beyond != 0))
            scale_row(args, p, x, there, row);
    }
#pragma unroll
    for (int k = 0; k < VECS; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const int column = (p.rank + (p.has(k) ? k : 0) * SPREAD) * WIDTH + i;
            row.v[k][i] = centred_output(row.v[k][i], row.m, columns.scale[column],
                                         columns.offset[column]);
        }
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (p.has(k))
            store_to_shared<Y_BYTES>(at + k * (SPREAD * Y_BYTES), pack<Y_TYPE, WIDTH>(row.v[k]));
    return row.m;
}

/* The rows of a tile, of which the first is `first`. */
__device__ __forceinline__ void take_tile(const forward_args &args, place &p,
                                          const affine_columns &columns, i64 first, u32 tile) {
#pragma unroll 1
    for (int u = 0; u < ROWS; u++) {
        const int local = threadIdx.x % TEAM / 32 * STEP + u * PER_WARP + p.lane / WARP_LANES;
        const i64 row = first + local;
        const bool there = row < args.rows;
        const char *x = (const char *)args.x + row * args.x_stride + p.rank * X_BYTES;
        const row_moments m = take_row(args, p, columns, x, there,
                                       tile + local * (TILE_COLS * 2) + p.rank * X_BYTES);
        if (there && p.rank == 0) {
            store_element<MEAN_TYPE>((char *)args.mean + row * args.mean_stride, 0,
                                     m.pivot + m.delta);
            store_element<RSTD_TYPE>((char *)args.rstd + row * args.rstd_stride, 0, m.rstd);
        }
    }
}

__device__ __forceinline__ void tiled_rows(const forward_args &args, place &p) {
    __shared__ affine_columns columns;
    const int team = threadIdx.x / TEAM;
    const u32 tile = shared_address(dynamic_shared) + team * TILE_BYTES;
    i64 first = ((i64)blockIdx.x * (THREADS / TEAM) + team) * TILE_ROWS;
    const char *x = (const char *)args.x + first * args.x_stride;
    char *y = (char *)args.y + first * args.y_stride;
    wait_for_stream();
    release_stream();
    bring_rows(args, x, args.rows - first, tile);
    columns.load(args);
    __syncthreads();
    for (; first < args.rows; first += args.row_turn) {
        copy_async_wait<0>();
        team_barrier();
        take_tile(args, p, columns, first, tile);
        team_barrier();
        send_rows(args, y, args.rows - first, tile);
        team_barrier();
        x += args.x_turn;
        y += args.y_turn;
        bring_rows(args, x, args.rows - first - args.row_turn, tile);
    }
    copy_async_wait<0>();
}
