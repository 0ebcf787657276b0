/*
 * A part of forward.cu: rows that go through shared memory in runs of words (row_runs.cu), a tile
 * for a block. A row stays in registers as f32 or, HELD_AS_WORDS, as it is in memory: the compiler is
 * made to forget what it converted. The arithmetic is that of centred_words.cu.
 */
/* Weight and bias. */
struct affine_runs {
    u32 weight, bias; /* in shared memory */

    __device__ __forceinline__ void take(int rank, int j, real *scale, real *offset) const {
        const int column = least(rank, LAST_RUN) * RUN_COLS + 2 * j;
        real w[2], b[2];
        if constexpr (WEIGHT_TYPE != NONE)
            load_two<WEIGHT_TYPE>(weight, column, w);
        if constexpr (BIAS_TYPE != NONE)
            load_two<BIAS_TYPE>(bias, column, b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[i] = WEIGHT_TYPE == NONE ? 1 : plus_offset(w[i]);
            offset[i] = BIAS_TYPE == NONE ? 0 : b[i];
        }
    }
};

__device__ __forceinline__ void forget_run(const row_args &args, u32 *word) {
    if (HELD_AS_WORDS)
#pragma unroll
        for (int j = 0; j < RUN; j++)
            forget(word[j], args.zero);
}

/* x - pivot (RMSNorm: x). */
__device__ __forceinline__ void centred_elements(const u32 *word, const row_moments &m, real *v) {
    run_elements<X_TYPE>(word, v);
#pragma unroll
    for (int i = 0; i < RUN_COLS; i++)
        v[i] = LAYER ? v[i] - m.pivot : v[i];
}

/* The moments of a row whose squares leave float's range, from memory. */
__device__ __forceinline__ void scale_run(const row_args &args, place &p, i64 row,
                                          row_moments &m) {
    const char *x = begun(args, p, row);
    const bool there = row < args.rows;
    sum_scaled(p, there, x, there ? lane_mean(p, x) : 0, m, args);
}

struct weights_of_run {
    __device__ __forceinline__ static void take(const row_args &, const place &p,
                                                const affine_runs &columns, int j, real *scale,
                                                real *offset) {
        columns.take(p.rank, j, scale, offset);
    }
    __device__ __forceinline__ static void take_in(const row_args &, const place &, int, int, real *,
                                                   real *, const u32 *, const real *, const row_moments *) {}
};

/* A run as x - pivot or, held as words, as it is in memory. */
struct run_held {
    __device__ __forceinline__ static bool there(int, const u32 *, const real *, const row_moments *) {
        return true;
    }
    __device__ __forceinline__ static int take(const place &, int, int j, const u32 *, const real *,
                                               const row_moments *) {
        return 2 * j;
    }
    __device__ __forceinline__ static real xhat(int first, int i, int, int, const u32 *word, const real *v,
                                                const row_moments *m) {
        real d = v[first + i];
        if (HELD_AS_WORDS)
            d = element<X_TYPE>(word, first + i) - (LAYER ? m->pivot : 0);
        return centred_xhat(d, *m);
    }
};

/* Words of y in the place of those of x. */
struct y_in_words {
    __device__ __forceinline__ static bool has(const place &, int) { return true; }
    __device__ __forceinline__ static void put(const row_args &, const place &, u32 *word, int, int j,
                                               const real *out) {
        word[j] = pack<Y_TYPE, 2>(out).word[0];
    }
};

/* Row `row` in shared memory becomes its output. */
__device__ __forceinline__ row_moments take_run(const row_args &args, place &p,
                                                const affine_runs &columns, const run_place &run,
                                                i64 row) {
    u32 word[RUN];
    real v[RUN_COLS];
    centred_row moments;
    row_moments &m = moments.m;
    load_run(run, word);
    m.pivot = m.delta = 0;
    if (LAYER) {
        run_elements<X_TYPE>(word, v);
        centre(m, sum_over_lanes<WARP_LANES>(run_sum(run, v), p.lane));
        forget_run(args, word);
    }
    centred_elements(word, m, v);
    const real squares = sum_over_lanes<WARP_LANES>(run_products(run, v, v), p.lane);
    find_rstd<1>(args, &moments, &squares);
    if constexpr (WIDE_RANGE) {
        m.beyond = leaves_range(squares, args);
        if (__any_sync(EVERY_LANE, m.beyond != 0)) {
            scale_run(args, p, row, m);
            load_run(run, word); /* rather than keep it over this */
            centred_elements(word, m, v);
        }
    }
    forget_run(args, word);
    row_output<run_held, weights_of_run, y_in_words, 1, RUN, 2, 0>(args, p, columns, word, word, v, &m);
    __syncwarp();
    store_run(run, word);
    __syncwarp();
    return m;
}

/* The rows of a tile, of which the first is `first`. */
__device__ __forceinline__ void runs_of_tile(const row_args &args, place &p,
                                             const affine_runs &columns, u32 tile, i64 first) {
#pragma unroll 1
    for (int u = 0; u < ROWS; u++) {
        const int local = p.warp * STEP + u * PER_WARP + p.lane / WARP_LANES;
        const i64 row = first + local;
        const row_moments m =
            take_run(args, p, columns, run_place(tile + local * (COLS * 2), p.rank), row);
        if (row < args.rows && p.rank == 0)
            save_moments(args, row, m);
    }
}

__device__ __forceinline__ void runs_of_rows(const row_args &args, place &p) {
    typedef run_array<WEIGHT_TYPE> weights;
    typedef run_array<BIAS_TYPE> biases;
    __shared__ weights weight;
    __shared__ biases bias;
    const affine_runs columns = {shared_address(&weight), shared_address(&bias)};
    const u32 tile = shared_address(dynamic_shared);
    i64 first = (i64)ROW_BLOCK(args) * TILE_ROWS;
    typedef tile_rows<(DENSE & 1) != 0> x_rows;
    typedef tile_rows<(DENSE & 2) != 0> y_rows;
    const char *x = (const char *)args.x + x_rows::begin(first, args.x_stride);
    char *y = (char *)args.y + y_rows::begin(first, args.y_stride);
    wait_for_stream();
    release_stream();
    const array_end<WEIGHT_TYPE> weight_end(args.weight);
    const array_end<BIAS_TYPE> bias_end(args.bias);
    bring_rows<(DENSE & 1) != 0, X_ACCESS>(
        x, x_rows::spacing(args.levels, first, args.x_stride, args.x_jump), args.rows - first, tile);
    bring_array<WEIGHT_TYPE, WEIGHT_ACCESS>(args.weight, columns.weight);
    bring_array<BIAS_TYPE, BIAS_ACCESS>(args.bias, columns.bias);
    copy_async_commit();
    weight_end.store(columns.weight);
    bias_end.store(columns.bias);
    for (; first < args.rows; first += args.row_turn) {
        copy_async_wait<0>();
        __syncthreads();
        runs_of_tile(args, p, columns, tile, first);
        __syncthreads();
        send_rows<(DENSE & 2) != 0, Y_ACCESS>(
            y, y_rows::spacing(args.levels, first, args.y_stride, args.y_jump), args.rows - first, tile);
        if (args.rows - first <= args.row_turn)
            break;
        __syncthreads();
        x += x_rows::turn(args.x_turn);
        y += y_rows::turn(args.y_turn);
        bring_rows<(DENSE & 1) != 0, X_ACCESS>(
            x, x_rows::spacing(args.levels, first + args.row_turn, args.x_stride, args.x_jump),
            args.rows - first - args.row_turn, tile);
        copy_async_commit();
    }
}
