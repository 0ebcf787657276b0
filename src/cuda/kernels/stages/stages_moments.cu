/* A part of stages_forward.cu: the moments of a row, as the kernels of forward.cu for rows like it have them. */

/* Of rows whose mean comes first. */
constexpr bool MEAN_FIRST = CENTRED || VARIANT != ROWS_PLAIN;

/* Of float's range: the row is summed again, scaled. */
__device__ __forceinline__ void scale_moments(const row_args &args, place &p, const row_reader &r, real squares,
                                              row_moments &m) {
    if constexpr (WIDE_RANGE) {
        m.beyond = leaves_range(squares, args);
        if (__any_sync(EVERY_LANE, m.beyond != 0))
            sum_scaled(p, r.there, r, r.there ? lane_mean(p, r) : 0, m, args);
    }
}

/* centred_words.cu, tiled_words.cu */
__device__ __forceinline__ row_moments mean_first_moments(const row_args &args, place &p, const row_reader &r) {
    centred_row row;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            row.v[k][i] = value_of(r.held[k], i);
    row.m.pivot = row.m.delta = 0;
    if (LAYER)
        centre(row.m, sum_over_lanes<WARP_LANES>(sum_of(row), p.lane));
    const real squares = sum_over_lanes<WARP_LANES>(squares_of(p, row), p.lane);
    find_rstd<1>(args, &row, &squares);
    row.m.beyond = 0;
    scale_moments(args, p, r, squares, row.m);
    return row.m;
}

/* forward_runs.cu */
__device__ __forceinline__ row_moments run_moments(const row_args &args, place &p, const row_reader &r) {
    const u32 row = shared_address(dynamic_shared) + (p.warp * PER_WARP + p.lane / WARP_LANES) * (COLS * 2);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (p.has(k))
            store_to_shared<X_BYTES>(row + (p.rank + k * SPREAD) * X_BYTES, words_of(r.held[k]));
    __syncwarp();
    const run_place run(row, p.rank);
    u32 word[RUN];
    real v[RUN_COLS];
    centred_row moments;
    row_moments &m = moments.m;
    load_run(run, word);
    m.pivot = m.delta = 0;
    run_elements<X_TYPE>(word, v);
    if (LAYER) {
        centre(m, sum_over_lanes<WARP_LANES>(run_sum(run, v), p.lane));
#pragma unroll
        for (int i = 0; i < RUN_COLS; i++)
            v[i] -= m.pivot;
    }
    const real squares = sum_over_lanes<WARP_LANES>(run_products(run, v, v), p.lane);
    find_rstd<1>(args, &moments, &squares);
    m.beyond = 0;
    scale_moments(args, p, r, squares, m);
    return m;
}

__device__ __forceinline__ row_moments moments_of_row(const row_args &args, place &p, row_reader &r) {
    if constexpr (RUNS)
        return run_moments(args, p, r);
    else if constexpr (MEAN_FIRST)
        return mean_first_moments(args, p, r);
    else
        return moments_of(p, r, r, args);
}

__device__ __forceinline__ real xhat_of(real x, const row_moments &m) {
    if constexpr (MEAN_FIRST)
        return centred_xhat(LAYER ? x - m.pivot : x, m);
    else
        return normalized(x, m);
}

__device__ __forceinline__ void save_statistics(const row_args &args, const row_reader &r, const row_moments &m) {
    if constexpr (MEAN_TYPE != NONE) {
        /* As the kernels of forward.cu for rows like these. */
        if (MEAN_FIRST && VARIANT == ROWS_PLAIN)
            store_element<MEAN_TYPE>(address_of<ROLE_MEAN>(args, r.number), 0, m.pivot + m.delta);
        else
            store_pair<MEAN_TYPE>(address_of<ROLE_MEAN>(args, r.number), m.pivot, m.delta);
    }
    if constexpr (RSTD_TYPE != NONE)
        store_element<RSTD_TYPE>(address_of<ROLE_RSTD>(args, r.number), 0, m.rstd);
}
