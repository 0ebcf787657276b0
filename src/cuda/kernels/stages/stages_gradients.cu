/*
 * A part of stages_backward.cu: the gradients of a row, and what it adds to the sums of columns.
 */

struct column_sums {
    real weight[CHUNKS_PER_THREAD][WIDTH], bias[CHUNKS_PER_THREAD][WIDTH], scaled[CHUNKS_PER_THREAD][WIDTH];

    __device__ __forceinline__ void write(const row_args &args, const team_state &t, u32 block_rank) {
        write_column_sums(args, t, weight, bias, block_rank);
        if constexpr (WANT_DCOLUMN)
            write_partial<F32>(t, scaled, args.partial_scaled + (i64)(blockIdx.x / SHARERS) * COLS, nullptr,
                               block_rank);
    }
};

/* What a thread holds of a row between its sums and its output. */
struct row_held {
    part<ROLE_SCALE> scale[CHUNKS_PER_THREAD];
    part<ROLE_SHIFT> shift[NEEDS_M ? CHUNKS_PER_THREAD : 1];
    part<ROLE_COLUMN_SCALE> column[CHUNKS_PER_THREAD];
    chunk<WIDTH * (int)sizeof(real)> dm[HOLDS_DM ? CHUNKS_PER_THREAD : 1], s[MADE_AGAIN ? CHUNKS_PER_THREAD : 1]; /* HOLDS_G: g, not dm */
    u32 kept[DROPOUT ? CHUNKS_PER_THREAD : 1]; /* bits */
    real row_scale;
};

__device__ __forceinline__ real kept_times(const row_args &args, const row_held &h, int k, int i, real v) {
    if (HAS_ROW_SCALE)
        v *= h.row_scale;
    if (DROPOUT)
        v = h.kept[DROPOUT ? k : 0] >> i & 1 ? v * (real)args.keep_factor : 0;
    return v;
}

__device__ __forceinline__ void hold(const row_args &args, const team_state &t, const philox_key &key,
                                     const row_streams &r, const row_place &place, row_held &h) {
    h.row_scale = r.row_scale;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        h.scale[k].load(args, t, place, k);
        if constexpr (NEEDS_M)
            h.shift[NEEDS_M ? k : 0].load(args, t, place, k);
        if constexpr (WANT_DX || GATE_FIRST)
            h.column[k].load(args, t, place, k);
        if constexpr (DROPOUT)
            h.kept[DROPOUT ? k : 0] = kept_elements<WIDTH, INDEX_ALIGNED>(
                key,
                (u64)(place.inner * args.index_inner + (TWO_LEVELS ? place.outer * args.index_outer : 0) +
                      (i64)(t.rank + k * SPREAD) * WIDTH),
                args.dropped);
    }
    if constexpr (MADE_AGAIN)
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            real s[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                s[i] = r.x[k].get(i) * silu_of(r.gate[k].get(i));
                if constexpr (HAS_COLUMN_SCALE)
                    s[i] *= h.column[k].get(i);
                s[i] = kept_times(args, h, k, i, s[i]);
            }
            h.s[MADE_AGAIN ? k : 0] = pack<REAL_TYPE, WIDTH>(s);
        }
}

/* What the norm read of an element, less the saved mean. */
__device__ __forceinline__ real distance_at(const row_streams &r, const row_held &h, int k, int i) {
    real s;
    if constexpr (MADE_AGAIN)
        s = element<REAL_TYPE>(h.s[MADE_AGAIN ? k : 0].word, i);
    else
        s = r.x[k].get(i);
    return LAYER ? s - (real)r.mean : s;
}

__device__ __forceinline__ real dm_at(const row_streams &r, const row_held &h, int k, int i) {
    if constexpr (HOLDS_DM)
        return element<REAL_TYPE>(h.dm[HOLDS_DM ? k : 0].word, i);
    else
        return r.dy[k].get(i);
}

__device__ __forceinline__ real dz_at(const row_held &h, int k, int i, real dm) {
    return HAS_SCALE ? dm * (1 + h.scale[k].get(i)) : dm;
}

/* What an element adds to the sums of its column. */
__device__ __forceinline__ void add_to_columns(column_sums &sums, int k, int i, real own, real xhat) {
    if (WANT_DWEIGHT)
        sums.weight[k][i] = multiply_add(own, xhat, sums.weight[k][i]);
    if (WANT_DBIAS)
        sums.bias[k][i] += own;
}

/* A chunk's part of a row's sums, of g and d, its distances from the row's mean. */
__device__ __forceinline__ void add_to_row(const team_state &t, int k, const real *g, const real *d, real *sum) {
    real product[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        product[i] = g[i] * d[i];
    sum[1] += tree_sum<WIDTH>(product);
    if (LAYER) {
        sum[0] += tree_sum<WIDTH>(g);
        if (CORRECT && (!RAGGED || t.has(k)))
            sum[2] += tree_sum<WIDTH>(d);
    }
}

/* dm of a row, and what else is made of z: `rest` is what its own mean has more than the saved one. HOLDS_G: the
 * row's sums, too. */
__device__ __forceinline__ void through_stages(const row_args &args, const team_state &t,
                                               const thread_affine &affine, const row_streams &r,
                                               const row_place &place, row_held &h, real rest, column_sums &sums,
                                               real *sum) {
    if (HOLDS_G)
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real dm[WIDTH], dgate[WIDTH], dscale[WIDTH], d[WIDTH], g[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            real dy = r.dy[k].get(i), z = 0, m = 0, xhat = 0;
            dgate[i] = 0;
            if constexpr (NEEDS_Z || HOLDS_G) {
                d[i] = distance_at(r, h, k, i);
                if (LAYER)
                    d[i] -= rest;
                xhat = d[i] * r.rstd;
            }
            if constexpr (NEEDS_Z)
                z = affine_of_xhat(xhat, affine.weight_at(k, i), affine.bias[k].get(i));
            if constexpr (NEEDS_M) {
                m = z;
                if (HAS_SCALE)
                    m = multiply_add(z, 1 + h.scale[k].get(i), h.shift[NEEDS_M ? k : 0].get(i));
                else if (HAS_SHIFT)
                    m += h.shift[NEEDS_M ? k : 0].get(i);
            }
            if constexpr (GATE_LAST) {
                real silu, slope;
                gate_factors<WANT_DGATE_LAST>(r.gate[k].get(i), silu, slope);
                if constexpr (WANT_DGATE_LAST)
                    dgate[i] = dy * activated(m) * slope;
                dy *= silu;
            }
            dm[i] = through_activation(dy, m);
            dscale[i] = dm[i] * z;
            if constexpr (HOLDS_G) {
                const real dz = dz_at(h, k, i, dm[i]);
                add_to_columns(sums, k, i, BY_SAMPLE ? dm[i] : dz, xhat);
                g[i] = WEIGHT_TYPE == NONE ? dz : dz * affine.weight_at(k, i);
            }
        }
        if constexpr (HOLDS_G)
            add_to_row(t, k, g, d, sum);
        if constexpr (HOLDS_DM)
            h.dm[HOLDS_DM ? k : 0] = pack<REAL_TYPE, WIDTH>(HOLDS_G ? g : dm);
        if (!place.there || !t.has(k))
            continue;
        const i64 at = t.rank + k * SPREAD;
        if constexpr (WANT_DGATE_LAST)
            store_chunk<WIDTH * bytes_of(DGATE_TYPE), ACCESSES[ROLE_DGATE]>(
                address_of<ROLE_DGATE>(args, place) + at * (WIDTH * bytes_of(DGATE_TYPE)),
                pack<DGATE_TYPE, WIDTH>(dgate));
        if constexpr (WANT_DSCALE)
            store_chunk<WIDTH * bytes_of(DSCALE_TYPE), ACCESSES[ROLE_DSCALE]>(
                address_of<ROLE_DSCALE>(args, place) + at * (WIDTH * bytes_of(DSCALE_TYPE)),
                pack<DSCALE_TYPE, WIDTH>(dscale));
        if constexpr (WANT_DSHIFT)
            store_chunk<WIDTH * bytes_of(DSHIFT_TYPE), ACCESSES[ROLE_DSHIFT]>(
                address_of<ROLE_DSHIFT>(args, place) + at * (WIDTH * bytes_of(DSHIFT_TYPE)),
                pack<DSHIFT_TYPE, WIDTH>(dm));
    }
}

/* This thread's part of a row's sums, as thread_sums() has them. */
__device__ __forceinline__ void sums_of_row(const team_state &t, const thread_affine &affine, const row_streams &r,
                                            const row_held &h, real rest, real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real g[WIDTH], d[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            d[i] = distance_at(r, h, k, i);
            if (LAYER)
                d[i] -= rest;
            g[i] = dz_at(h, k, i, dm_at(r, h, k, i)) * affine.weight_at(k, i);
        }
        add_to_row(t, k, g, d, sum);
    }
}

__device__ __forceinline__ void sum_distances(const team_state &t, const row_streams &r, const row_held &h, real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real d[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            d[i] = distance_at(r, h, k, i);
        if (!RAGGED || t.has(k))
            sum[2] += tree_sum<WIDTH>(d);
    }
}

/* The outputs of a row whose sums are there. `before`: what its distances still have to lose. */
__device__ __forceinline__ void put_row(const row_args &args, const team_state &t, const thread_affine &affine,
                                        const row_streams &r, const row_place &place, const row_held &h, real before,
                                        real c1, real c2, column_sums &sums) {
    const real slope = -c2 * r.rstd, constant = -c1 * r.rstd;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real ds[WIDTH], dx[WIDTH], dgate[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            real d = distance_at(r, h, k, i);
            if (LAYER)
                d -= before;
            const real xhat = d * r.rstd, held = dm_at(r, h, k, i);
            real g = held;
            if constexpr (!HOLDS_G) {
                const real dz = dz_at(h, k, i, held);
                add_to_columns(sums, k, i, BY_SAMPLE ? held : dz, xhat);
                g = WEIGHT_TYPE == NONE ? dz : dz * affine.weight_at(k, i);
            }
            const real rest = LAYER ? multiply_add(xhat, slope, constant) : xhat * slope;
            ds[i] = multiply_add(g, r.rstd, rest);
            if constexpr (HAS_DSUM)
                ds[i] += r.dsum[k].get(i);
            real through = ds[i];
            if constexpr (GATE_FIRST)
                through *= silu_of(r.gate[k].get(i));
            dx[i] = through;
            if constexpr (HAS_COLUMN_SCALE && WANT_DX)
                dx[i] *= h.column[k].get(i);
            dx[i] = kept_times(args, h, k, i, dx[i]);
            if constexpr (WANT_DCOLUMN)
                sums.scaled[k][i] += kept_times(args, h, k, i, through * r.branch[k].get(i));
            if constexpr (GATE_FIRST && DGATE_TYPE != NONE) {
                dgate[i] = ds[i] * r.x[k].get(i) * gate_slope(r.gate[k].get(i));
                if constexpr (HAS_COLUMN_SCALE)
                    dgate[i] *= h.column[k].get(i);
                dgate[i] = kept_times(args, h, k, i, dgate[i]);
            }
        }
        if (!place.there || !t.has(k))
            continue;
        const i64 at = t.rank + k * SPREAD;
        if constexpr (DRESIDUAL_TYPE != NONE)
            store_chunk<WIDTH * bytes_of(DRESIDUAL_TYPE), ACCESSES[ROLE_DRESIDUAL]>(
                address_of<ROLE_DRESIDUAL>(args, place) + at * (WIDTH * bytes_of(DRESIDUAL_TYPE)),
                pack<DRESIDUAL_TYPE, WIDTH>(ds));
        if constexpr (WANT_DX)
            store_chunk<WIDTH * bytes_of(DX_TYPE), DX_ACCESS>(
                address_of<ROLE_DX>(args, place) + at * (WIDTH * bytes_of(DX_TYPE)), pack<DX_TYPE, WIDTH>(dx));
        if constexpr (GATE_FIRST && DGATE_TYPE != NONE)
            store_chunk<WIDTH * bytes_of(DGATE_TYPE), ACCESSES[ROLE_DGATE]>(
                address_of<ROLE_DGATE>(args, place) + at * (WIDTH * bytes_of(DGATE_TYPE)),
                pack<DGATE_TYPE, WIDTH>(dgate));
    }
}

__device__ __forceinline__ void row_of_stages(const row_args &args, const team_state &t, const philox_key &key,
                                              const thread_affine &affine, const row_streams &r,
                                              const row_place &place, column_sums &sums, u32 &room, u32 both_rooms,
                                              u32 block_rank, int &turn) {
    row_held h;
    hold(args, t, key, r, place, h);
    real sum[4] = {0, 0, 0, 0};
    if constexpr (MEAN_FIRST) {
        sum_distances(t, r, h, sum);
        exchange(t, sum, room, block_rank, turn++);
        room = both_rooms - room;
    }
    const real known = LAYER && (MEAN_FIRST || MEAN_IS_EXACT) ? rest_of_mean(r.mean, sum[2] * (real)(1.0 / count_of(COLS))) : 0;
    if constexpr (HOLDS_DM || WANT_DSCALE || WANT_DSHIFT)
        through_stages(args, t, affine, r, place, h, known, sums, sum);
    if constexpr (!HOLDS_G)
        sums_of_row(t, affine, r, h, known, sum);
    exchange(t, sum, room, block_rank, turn++);
    room = both_rooms - room;
    const real found = LAYER && CORRECT && !MEAN_FIRST && !MEAN_IS_EXACT
                           ? rest_of_mean(r.mean, sum[2] * (real)(1.0 / count_of(COLS)))
                           : 0;
    const real c1 = LAYER ? sum[0] * (real)(1.0 / count_of(COLS)) : 0;
    const real both = multiply_add(-found, sum[0], sum[1]) * (real)(1.0 / count_of(COLS)) * r.rstd;
    const real c2 = c2_of(both, r.rstd, args.clamped);
    put_row(args, t, affine, r, place, h, known + found, c1, c2, sums);
}
