/*
 * A part of forward.cu and of stages_forward.cu: the moments of short rows of 16 bits within a warp, the mean
 * first (centred_words.cu).
 */
constexpr real INVERSE = (real)(1.0 / count_of(COLS));
constexpr bool EXACT_INVERSE = (COLS & (COLS - 1)) == 0; /* then delta is 0 */
constexpr bool NO_DELTA = !LAYER || (EXACT_INVERSE && !WIDE_RANGE); /* nor where rows are scaled */

struct centred_row {
    real v[CHUNKS_PER_THREAD][WIDTH]; /* x, then x - pivot */
    row_moments m;
};

__device__ __forceinline__ real sum_of(const centred_row &row) {
    real part[CHUNKS_PER_THREAD];
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        part[k] = tree_sum<WIDTH>(row.v[k]);
    return tree_sum<CHUNKS_PER_THREAD>(part);
}

/* The mean of a row from its sum. */
__device__ __forceinline__ void centre(row_moments &m, real sum) {
    m.pivot = sum * INVERSE;
    m.delta = 0;
    if (!EXACT_INVERSE) {
        m.pivot = multiply_add(multiply_add(m.pivot, -(real)COLS, sum), INVERSE, m.pivot);
        m.delta = multiply_add(m.pivot, -(real)COLS, sum) * INVERSE;
    }
}

/* Leaves x - pivot (RMSNorm: x), and gives the sum of its squares. */
__device__ __forceinline__ real squares_of(const place &p, centred_row &row) {
    constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
    real part[CHUNKS_PER_THREAD];
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real e[HALF];
#pragma unroll
        for (int i = 0; i < (LAYER ? WIDTH : 0); i++)
            row.v[k][i] -= row.m.pivot;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            e[i] = row.v[k][i] * row.v[k][i];
            if (WIDTH > 1)
                e[i] = multiply_add(row.v[k][i + HALF], row.v[k][i + HALF], e[i]);
        }
        part[k] = tree_sum<HALF>(e);
        if (!p.has(k))
            part[k] = 0;
    }
    return tree_sum<CHUNKS_PER_THREAD>(part);
}

/* Of all rows at once, for the rare way is a branch. */
template <int COUNT>
__device__ __forceinline__ void find_rstd(const row_args &args, centred_row *rows,
                                          const real *squares) {
    real v[COUNT];
    bool quick = true;
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        v[u] = squares[u] * INVERSE;
        if (LAYER && !EXACT_INVERSE)
            v[u] = fmaxf(multiply_add(-rows[u].m.delta, rows[u].m.delta, v[u]), 0.f);
        v[u] = with_eps(v[u], (real)args.eps_rounded);
        quick &= root_is_quick(v[u]);
        rows[u].m.rstd = quick_root(v[u]);
    }
    if (!quick)
#pragma unroll
        for (int u = 0; u < COUNT; u++)
            if (!root_is_quick(v[u]))
                rows[u].m.rstd = reciprocal_root((double)v[u]);
}

/* The mean of a lane's elements of a row, of which no sum may leave float's range. An element in its
 * place may be far from the others, and their squares about it would have few digits of the variance. */
template <typename again> __device__ __forceinline__ real lane_mean(const place &p, const again &x) {
    real mean = 0, count = 0;
#pragma unroll 1
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        if (!p.has(k))
            continue;
        const chunk<X_BYTES> c = chunk_again(x, k);
        const real share = 1 / (count + 1);
        mean *= count * share;
        count += 1;
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            mean = multiply_add(element<X_TYPE>(c.word, i), share * (real)(1.0 / WIDTH), mean);
    }
    return mean;
}

/* xhat from x - pivot (RMSNorm: x). */
__device__ __forceinline__ real centred_xhat(real v, const row_moments &m) {
    return NO_DELTA ? v * m.rstd : multiply_add(v, m.rstd, -m.delta * m.rstd);
}
