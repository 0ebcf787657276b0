/*
 * A part of backward.cu: dy through an activation behind the norm, dz = dy * f'(z), once for a row's sums and
 * its output. z is made again from x, the saved moments, weight and bias, and wants the row's own mean: where
 * that was saved with fewer digits than show, an exchange before that of the sums finds what it lacks. In
 * team_rows() alone, with rows in registers (HOLD_IN_THREAD).
 */
constexpr int BIAS_BYTES = WIDTH * bytes_of(BIAS_TYPE);
constexpr bool BIASED = ACTIVE && BIAS_TYPE != NONE;
constexpr bool MEAN_FIRST = ACTIVE && LAYER && CORRECT && !MEAN_IS_EXACT;
constexpr int EXCHANGES = MEAN_FIRST ? 2 : 1; /* of a turn */
static_assert(!ACTIVE || (!AGAIN && !COOPERATIVE && VARIANT == ROWS_PLAIN), "dy goes through an activation in registers");

/* A thread's biases, as they are in memory. */
struct thread_bias {
    chunk<BIAS_BYTES> held[BIASED ? CHUNKS_PER_THREAD : 1];

    __device__ __forceinline__ void load(const row_args &args, const team_state &t) {
        if constexpr (BIASED)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
                held[k] = zero_chunk<BIAS_BYTES>();
                if (!t.idle && t.has(k))
                    held[k] = load_chunk<BIAS_BYTES, BIAS_ACCESS>((const char *)args.bias +
                                                            (i64)(t.rank + k * SPREAD) * BIAS_BYTES);
            }
    }
    /* Else the converted biases stay in registers, and spill. */
    __device__ __forceinline__ void forget_all(u32 zero) {
        if constexpr (BIASED)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                for (u32 &w : held[k].word)
                    forget(w, zero);
    }
    __device__ __forceinline__ real at(int k, int i) const {
        if constexpr (BIASED)
            return element<BIAS_TYPE>(held[k].word, i);
        else
            return 0;
    }
};

/* dz of a thread's rows, in all its digits. */
struct gradients {
    chunk<WIDTH * (int)sizeof(real)> g[ACTIVE ? ROWS : 1][ACTIVE ? CHUNKS_PER_THREAD : 1];
};

/* A row whose dy came through the activation. */
struct row_behind_activation {
    enum { GRADIENT = REAL_TYPE };
    const operands &o;
    const gradients &dz;
    int u;
    __device__ __forceinline__ chunk<X_BYTES> x(int k) const { return o.x[u][k]; }
    __device__ __forceinline__ chunk<WIDTH * (int)sizeof(real)> g(int k) const { return dz.g[u][k]; }
};

/* This thread's part of the sum of x - mean of a row. */
__device__ __forceinline__ void sum_distances(const team_state &t, const chunk<X_BYTES> *x, real mean,
                                              real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real d[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            d[i] = element<X_TYPE>(x[k].word, i) - mean;
        if (!RAGGED || t.has(k))
            sum[2] += tree_sum<WIDTH>(d);
    }
}

/* What the own mean of row u of a turn has more than the saved one, which may take an exchange. */
__device__ __forceinline__ real rest_of_row(const team_state &t, const operands &o, int u, stored_mean mean, u32 room,
                                            u32 block_rank, int turn) {
    real first[4] = {0, 0, 0, 0};
    if constexpr (MEAN_FIRST) {
        sum_distances(t, o.x[u], (real)mean, first);
        exchange(t, first, room, block_rank, EXCHANGES * turn);
    }
    return LAYER ? rest_of_mean(mean, first[2] * (real)(1.0 / count_of(COLS))) : 0;
}

/* Takes dy of row u through the activation; `rest`: what the row's own mean has more than `mean`. */
template <typename weight_source>
__device__ __forceinline__ void through_activation_of_row(const team_state &t, const operands &o, int u,
                                                          const weight_source &weights,
                                                          const thread_bias &bias, real mean, real rest,
                                                          real rstd, gradients &dz) {
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real w[COLUMNS], out[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (i % COLUMNS == 0)
                weights.take(t, k, i / COLUMNS, w);
            real d = element<X_TYPE>(o.x[u][k].word, i);
            if (LAYER)
                d -= mean;
            if (LAYER && CORRECT)
                d -= rest;
            out[i] = through_activation(element<DY_TYPE>(o.g[u][k].word, i),
                                        affine_of_xhat(d * rstd, w[i % COLUMNS], bias.at(k, i)));
        }
        dz.g[u][k] = pack<REAL_TYPE, WIDTH>(out);
    }
}
