/*
 * A part of forward.cu: rows that go through shared memory (row_tiles.cu). The output is written where
 * the row was; the arithmetic is that of centred_words.cu. THREADS_PER_ROW is a power of two; a warp takes ROWS for
 * each lane, one after the other. With THREADS_PER_ROW 1 a thread takes a whole row and exchanges nothing; rows of
 * an odd number of chunks lie so that threads meet in no bank.
 */

/* What a column is multiplied by, and what is added to it. */
struct __align__(16) affine_columns {
    real scale[ceil_div(TILE_COLS, 4) * 4], offset[TILE_COLS];

    __device__ __forceinline__ void load(const row_args &args) {
        for (int c = threadIdx.x; c < TILE_COLS; c += THREADS) {
            scale[c] = WEIGHT_TYPE == NONE ? 1 : plus_offset(load_element<WEIGHT_TYPE>(args.weight, c));
            offset[c] = BIAS_TYPE == NONE ? 0 : load_element<BIAS_TYPE>(args.bias, c);
        }
    }
};

/* Of the thread's chunks; a chunk that it has not takes those of its first. */
struct weights_in_tile {
    __device__ __forceinline__ static void take(const row_args &, const place &p,
                                                const affine_columns &columns, int k, real *scale,
                                                real *offset) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const int column = (p.rank + (p.has(k) ? k : 0) * SPREAD) * WIDTH + i;
            scale[i] = columns.scale[column];
            offset[i] = columns.offset[column];
        }
    }
    __device__ __forceinline__ static void take_in(const row_args &, const place &, int, int, real *,
                                                   real *, const centred_row *) {}
};

/* A row of y, which goes to the place of x when all of it is made. */
struct y_in_tile {
    __device__ __forceinline__ static bool has(const place &, int) { return true; }
    __device__ __forceinline__ static void put(const row_args &, const place &, centred_row *y, int,
                                               int k, const real *out) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            y->v[k][i] = out[i];
    }
};

/* A row in shared memory becomes its output. `at` is this thread's first chunk of it, `x` the same in
 * memory. */
__device__ __forceinline__ row_moments take_row(const row_args &args, place &p,
                                                const affine_columns &columns, const char *x,
                                                bool there, u32 at) {
    centred_row row;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
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
    row_output<centred_rows_held, weights_in_tile, y_in_tile, 1, CHUNKS_PER_THREAD, WIDTH, 0>(args, p, columns, &row,
                                                                                 &row);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (p.has(k))
            store_to_shared<Y_BYTES>(at + k * (SPREAD * Y_BYTES), pack<Y_TYPE, WIDTH>(row.v[k]));
    return row.m;
}

/* The rows of a tile, of which the first is `first`. */
__device__ __forceinline__ void take_tile(const row_args &args, place &p,
                                          const affine_columns &columns, i64 first, u32 tile) {
#pragma unroll 1
    for (int u = 0; u < ROWS; u++) {
        const int local = threadIdx.x % TILE_THREADS / WARP * STEP + u * PER_WARP + p.lane / WARP_LANES;
        const i64 row = first + local;
        const bool there = row < args.rows;
        const char *x = begun(args, p, row);
        const row_moments m = take_row(args, p, columns, x, there,
                                       tile + local * (TILE_COLS * 2) + p.rank * X_BYTES);
        if (there && p.rank == 0)
            save_moments(args, row, m);
    }
}

__device__ __forceinline__ void tiled_rows(const row_args &args, place &p) {
    __shared__ affine_columns columns;
    const int which = threadIdx.x / TILE_THREADS;
    const u32 tile = shared_address(dynamic_shared) + which * TILE_BYTES;
    i64 first = ((i64)ROW_BLOCK(args) * (THREADS / TILE_THREADS) + which) * TILE_ROWS;
    typedef tile_rows<(DENSE & 1) != 0> x_rows;
    typedef tile_rows<(DENSE & 2) != 0> y_rows;
    const char *x = (const char *)args.x + x_rows::begin(first, args.x_stride);
    char *y = (char *)args.y + y_rows::begin(first, args.y_stride);
    wait_for_stream();
    release_stream();
    bring_rows<(DENSE & 1) != 0, X_ACCESS>(
        x, x_rows::spacing(args.levels, first, args.x_stride, args.x_jump), args.rows - first, tile);
    copy_async_commit();
    columns.load(args);
    __syncthreads();
    for (; first < args.rows; first += args.row_turn) {
        copy_async_wait<0>();
        tile_barrier();
        take_tile(args, p, columns, first, tile);
        tile_barrier();
        send_rows<(DENSE & 2) != 0, Y_ACCESS>(
            y, y_rows::spacing(args.levels, first, args.y_stride, args.y_jump), args.rows - first, tile);
        tile_barrier();
        x += x_rows::turn(args.x_turn);
        y += y_rows::turn(args.y_turn);
        bring_rows<(DENSE & 1) != 0, X_ACCESS>(
            x, x_rows::spacing(args.levels, first + args.row_turn, args.x_stride, args.x_jump),
            args.rows - first - args.row_turn, tile);
        copy_async_commit();
    }
    copy_async_wait<0>();
}
