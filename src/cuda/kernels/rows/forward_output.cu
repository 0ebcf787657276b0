/* A part of forward.cu: the statistics, weight and bias, and the output of a team's rows. */

__device__ __forceinline__ void save_moments(const row_args &args, i64 row, const row_moments &m) {
    store_pair<MEAN_TYPE>((char *)args.mean + row * args.mean_stride, m.pivot, m.delta);
    if constexpr (MOMENTS_ALONE)
        store_f64<M2_TYPE>((char *)args.m2 + row * args.m2_stride, m.kept_squares());
    else
        store_element<RSTD_TYPE>((char *)args.rstd + row * args.rstd_stride, 0, m.rstd);
}

/* The moments that row `row` is given, with all the digits of a mean of f64; zeros where it is not `there`. */
__device__ __forceinline__ row_moments given_moments(const row_args &args, i64 row, bool there) {
    row_moments m = {0, 0, 0, 0};
    if constexpr (MOMENTS_GIVEN) {
        if (!there)
            return m;
        if constexpr (LAYER) {
            constexpr int BYTES = bytes_of(MEAN_TYPE);
            const auto mean = load_chunk<BYTES, BYTES>((const char *)args.mean + row * args.mean_stride);
            m.pivot = element<MEAN_TYPE>(mean.word, 0);
            m.delta = sizeof(real) == 4 ? rest_of(mean) : 0;
        }
        m.rstd = load_element<RSTD_TYPE>((const char *)args.rstd + row * args.rstd_stride, 0);
    }
    return m;
}

/* Weight and bias of chunk k of a row that is a group of channels. */
__device__ __forceinline__ void load_channels(const row_args &args, const place &p, int k,
                                              int first_channel, real *scale, real *offset) {
    const int column = (p.rank + k * SPREAD) * WIDTH;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (i > 0 && PIXELS % WIDTH == 0) {
            scale[i] = scale[0];
            offset[i] = offset[0];
            continue;
        }
        const int channel = first_channel + (column + i) / most(PIXELS, 1);
        if constexpr (WEIGHT_TYPE != NONE)
            scale[i] = plus_offset(load_element<WEIGHT_TYPE>(args.weight, channel));
        if constexpr (BIAS_TYPE != NONE)
            offset[i] = load_element<BIAS_TYPE>(args.bias, channel);
    }
}

struct affine {
    chunk<WEIGHT_BYTES> weight[HELD_EARLY ? CHUNKS_PER_THREAD : 1];
    chunk<BIAS_BYTES> bias[HELD_EARLY ? CHUNKS_PER_THREAD : 1];
};

__device__ __forceinline__ void load_affine(const row_args &args, const place &p, int k,
                                            chunk<WEIGHT_BYTES> &weight, chunk<BIAS_BYTES> &bias) {
    if (GROUPED) /* a row has its own */
        return;
    const i64 index = p.rank + k * SPREAD;
    if constexpr (WEIGHT_TYPE != NONE)
        weight = load_chunk<WEIGHT_BYTES, WEIGHT_ACCESS>((const char *)args.weight + index * WEIGHT_BYTES);
    if constexpr (BIAS_TYPE != NONE)
        bias = load_chunk<BIAS_BYTES, BIAS_ACCESS>((const char *)args.bias + index * BIAS_BYTES);
}

/* What chunk k is multiplied by, and what is added to it; not of rows that have their own. */
__device__ __forceinline__ void affine_of(const row_args &args, const place &p,
                                          const affine &early, int k, real *scale, real *offset) {
    chunk<WEIGHT_BYTES> weight = early.weight[HELD_EARLY ? k : 0];
    chunk<BIAS_BYTES> bias = early.bias[HELD_EARLY ? k : 0];
    if (!HELD_EARLY)
        load_affine(args, p, k, weight, bias);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        scale[i] = WEIGHT_TYPE == NONE ? 1 : plus_offset(element<WEIGHT_TYPE>(weight.word, i));
        offset[i] = BIAS_TYPE == NONE ? 0 : element<BIAS_TYPE>(bias.word, i);
    }
}

/* Weight and bias of the thread's columns. */
struct weights_of_columns {
    __device__ __forceinline__ static void take(const row_args &args, const place &p,
                                                const affine &early, int k, real *scale, real *offset) {
        affine_of(args, p, early, k, scale, offset);
    }
    template <typename... row_state>
    __device__ __forceinline__ static void take_in(const row_args &, const place &, int, int, real *,
                                                   real *, const row_state *...) {}
};

/* Of rows that may be groups of channels: then each row's own. */
struct weights_of_rows {
    __device__ __forceinline__ static void take(const row_args &args, const place &p,
                                                const affine &early, int k, real *scale, real *offset) {
        if (!GROUPED)
            affine_of(args, p, early, k, scale, offset);
    }
    __device__ __forceinline__ static void take_in(const row_args &args, const place &p, int u, int k,
                                                   real *scale, real *offset, const row_reader *reader,
                                                   const row_moments *) {
        if constexpr (GROUPED)
            load_channels(args, p, k, reader[u].first_channel, scale, offset);
    }
};

/* Rows of y in memory, from the thread's first chunk on. */
struct y_in_memory {
    __device__ __forceinline__ static bool has(const place &p, int k) { return !p.idle && p.has(k); }
    __device__ __forceinline__ static void put(const row_args &args, const place &, char *y, int u,
                                               int k, const real *out) {
        store_chunk<Y_BYTES, Y_ACCESS>(y + u * (PER_WARP * args.y_stride) + k * (SPREAD * Y_BYTES),
                                       pack<Y_TYPE, WIDTH>(out));
    }
    template <int COUNT>
    __device__ __forceinline__ static void put(const row_args &, const place &, const row_bases<COUNT> &y,
                                               int u, int k, const real *out) {
        store_chunk<Y_BYTES, Y_ACCESS>(y.at[u] + k * (SPREAD * Y_BYTES), pack<Y_TYPE, WIDTH>(out));
    }
};

/* Rows wherever they wait for their output. */
struct rows_held {
    __device__ __forceinline__ static bool there(int u, const row_reader *reader, const row_moments *) {
        return reader[u].there;
    }
    __device__ __forceinline__ static chunk<X_BYTES> take(const place &p, int u, int k,
                                                          const row_reader *reader, const row_moments *) {
        return reader[u].take(p, k);
    }
    __device__ __forceinline__ static real xhat(const chunk<X_BYTES> &c, int i, int u, int,
                                                const row_reader *, const row_moments *moments) {
        return normalized(element<X_TYPE>(c.word, i), moments[u]);
    }
};

/* The output of a team's rows. */
template <typename y_rows>
__device__ __forceinline__ void apply(const row_args &args, const place &p, const y_rows &y,
                                      const affine &early, const row_reader *reader,
                                      const row_moments *moments) {
    row_output<rows_held, weights_of_rows, y_in_memory, ROWS, CHUNKS_PER_THREAD, WIDTH, UNROLL>(args, p, early, y,
                                                                                                reader, moments);
}
