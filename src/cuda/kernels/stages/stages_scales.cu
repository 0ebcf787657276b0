/*
 * A part of stages_forward.cu: the output of rows, and the scales that are found for it. Where registers hold a row,
 * they hold its y from its largest magnitude to its quotients, so that y is made once.
 */

/* Whether y waits in registers for its scale. */
constexpr bool HOLDS_Y = HAS_Q && IN_REGISTERS && sizeof(real) == 4 && CHUNKS_PER_THREAD * WIDTH <= 40;

/* Scale number `block` of a row. */
__device__ __forceinline__ void store_scale(const row_args &args, const row_reader &r, int block, float scale) {
    char *to = address_of<ROLE_Y_SCALES>(args, r.number) + block * args.scale_stride;
    if (SCALES_TYPE == E8M0)
        *to = (char)(__float_as_uint(scale) >> 23);
    else
        store_element<F32>(to, 0, scale);
}

/* A scale for elements of which the largest is `most`: no quotient may leave float's range. */
__device__ __forceinline__ divisor found_divisor(const row_args &args, float most) {
    divisor d = divisor_of(scale_for<Q_TYPE, POWER_OF_TWO>(most, args.scale_least, args.scale_most));
    d.quick = d.quick && most * d.reciprocal <= 0x1p100f;
    return d;
}

/* y of a chunk that the thread has. */
__device__ __forceinline__ void chunk_of_y(const row_args &args, const place &p, const output_columns *early,
                                             const row_reader &r, const row_moments &m, int k, real *y) {
    output_columns columns;
    if constexpr (EARLY == EARLY_IN_REGISTERS && ROWS == 1)
        columns = early[k];
    else
        columns.load(args, p, r, k);
    chunk_values(args, p, r, m, columns, k, y);
}

/* ---- Rows whose y waits in registers --------------------------------------------------------- */

struct held_row {
    real y[CHUNKS_PER_THREAD][WIDTH];
    float most[CHUNKS_PER_THREAD]; /* of a chunk; one that is not there has 0 */
};

/* No branch is around an element's arithmetic: it would be around the loads, too. */
__device__ __forceinline__ void hold_row(const row_args &args, const place &p, const output_columns *early,
                                         const row_reader &r, const row_moments &m, held_row &row) {
    output_columns columns[CHUNKS_PER_THREAD] = {}; /* as in bring_chunks */
    if constexpr (WEIGHT_WAITS)
        copy_async_wait<0>();
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if constexpr (EARLY == EARLY_IN_REGISTERS && ROWS == 1)
            columns[k] = early[k];
        else if constexpr (WEIGHT_WAITS)
            columns[k].weight.c = load_from_shared<part<ROLE_WEIGHT>::BYTES>(weight_slot(k));
        else if ((r.there || !COLUMNS_VARY) && p.has(k))
            columns[k].load(args, p, r, k);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        chunk_values(args, p, r, m, columns[k], k, row.y[k]);
        if (FINDS_SCALES || HAS_AMAX)
            row.most[k] = r.there && p.has(k) ? chunk_magnitude(row.y[k]) : 0;
    }
}

/* Chunks whose lanes share scales, each lane some of them: of SHARERS neighbouring lanes each finds the largest of
 * OWN chunks, and their scales. */
constexpr int ALL_VECS = CHUNKS_PER_THREAD > 1 ? 2 * power_of_two_up_to(CHUNKS_PER_THREAD - 1) : 1;
constexpr int PARTS = least(ALL_VECS, SHARERS), OWN = ALL_VECS / PARTS, PART_LANES = SHARERS / PARTS;

__device__ __forceinline__ void most_of_blocks(const place &p, const held_row &row, float *own) {
    float most[ALL_VECS];
#pragma unroll
    for (int k = 0; k < ALL_VECS; k++)
        most[k] = k < CHUNKS_PER_THREAD ? row.most[k] : 0;
    int count = ALL_VECS;
#pragma unroll
    for (int step = SHARERS / 2; step > 0; step /= 2) {
        const bool upper = p.lane & step;
        if (count > OWN) {
            count /= 2;
#pragma unroll
            for (int k = 0; k < ALL_VECS / 2; k++)
                if (k < count) {
                    const float mine = upper ? most[k + count] : most[k], other = upper ? most[k] : most[k + count];
                    most[k] = fmaxf(mine, __shfl_xor_sync(EVERY_LANE, other, step));
                }
        } else {
#pragma unroll
            for (int k = 0; k < OWN; k++)
                most[k] = fmaxf(most[k], __shfl_xor_sync(EVERY_LANE, most[k], step));
        }
    }
#pragma unroll
    for (int k = 0; k < OWN; k++)
        own[k] = most[k];
}

/* Whether the SHARERS lanes that begin at a rank have a chunk k. */
__device__ __forceinline__ bool block_is_there(int first_rank, int k) {
    return k < CHUNKS_PER_THREAD && (!RAGGED || k < CHUNKS_PER_THREAD - 1 || first_rank + k * SPREAD < CHUNKS);
}

/* Finds and stores scales of a row's blocks; d: of each chunk of the thread. */
__device__ __forceinline__ void find_scales(const row_args &args, const place &p, const row_reader &r,
                                            const held_row &row, divisor *d) {
    float most[OWN];
    divisor own[OWN];
    most_of_blocks(p, row, most);
    const int sharer = p.rank % SHARERS, part = sharer / PART_LANES;
    bool quick = true;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int k = part * OWN + i;
        own[i] = found_divisor(args, most[i]);
        quick = quick && own[i].quick;
        if (r.there && sharer % PART_LANES == 0 && block_is_there(p.rank - sharer, k))
            store_scale(args, r, p.rank / SHARERS + k * (SPREAD / SHARERS), own[i].scale);
    }
    quick = __all_sync(EVERY_LANE, quick);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        const int lane = p.lane - sharer + k / OWN * PART_LANES;
        d[k] = {from_lane(own[k % OWN].scale, lane), from_lane(own[k % OWN].reciprocal, lane), quick};
    }
}

__device__ __forceinline__ void find_scale(const row_args &args, place &p, const row_reader &r,
                                           const held_row &row, divisor *d) {
    float most = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        most = fmaxf(most, row.most[k]);
    d[0] = found_divisor(args, most_of_row(p, most));
    if (r.there && p.rank == 0)
        store_scale(args, r, 0, d[0].scale);
#pragma unroll
    for (int k = 1; k < CHUNKS_PER_THREAD; k++)
        d[k] = d[0];
}

/* q of a row by the scales that were found from it: no quotient leaves float's range. One branch for the row, and
 * none around what is stored. */
__device__ __forceinline__ void quantize_found(held_row &row, const divisor *d, chunk<WIDTH> *q) {
    if (d[0].quick) {
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                row.y[k][i] = quick_quotient(row.y[k][i], d[k]);
    } else {
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            const double reciprocal = wide_reciprocal(d[k].scale);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                row.y[k][i] = wide_quotient(row.y[k][i], reciprocal);
        }
    }
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        q[k] = narrow_chunk<Q_TYPE, WIDTH>(row.y[k]);
}

/* The same by the scale that is given. */
__device__ __forceinline__ void quantize_given(const held_row &row, const divisor &d, chunk<WIDTH> *q) {
    u32 again = !d.quick;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        q[k] = quantize_quickly<Q_TYPE, WIDTH>(row.y[k], d, again);
    if (again) {
        const double reciprocal = wide_reciprocal(d.scale);
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            q[k] = quantize_widely<Q_TYPE, WIDTH>(row.y[k], reciprocal);
    }
}

__device__ __forceinline__ void put_held_row(const row_args &args, place &p, const output_columns *early,
                                             const row_reader &r, const row_moments &m, float &amax) {
    held_row row;
    divisor d[CHUNKS_PER_THREAD];
    if constexpr (!FINDS_SCALES)
        d[0] = divisor_of((float)load_element<F32>(args.tensor[ROLE_Y_SCALE].data, 0));
    hold_row(args, p, early, r, m, row);
    if constexpr (SCALES_OF_ROWS)
        find_scale(args, p, r, row, d);
    else if constexpr (FINDS_SCALES)
        find_scales(args, p, r, row, d);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        if (HAS_AMAX)
            amax = fmaxf(amax, row.most[k]);
        if (r.there && p.has(k))
            put_y(args, p, r, k, row.y[k]);
    }
    chunk<WIDTH> q[CHUNKS_PER_THREAD];
    if constexpr (FINDS_SCALES)
        quantize_found(row, d, q);
    else
        quantize_given(row, d[0], q);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (r.there && p.has(k))
            put_q(args, p, r, k, q[k]);
}

/* ---- Other rows ------------------------------------------------------------------------------ */

/* The largest of a row, before its scale is known. */
__device__ __forceinline__ float find_most(const row_args &args, place &p, const output_columns *early,
                                           row_reader &r, const row_moments &m) {
    float most = 0;
#pragma unroll UNROLL
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (r.there && p.has(k)) {
            real y[WIDTH];
            chunk_of_y(args, p, early, r, m, k, y);
            most = fmaxf(most, chunk_magnitude(y));
        }
    if constexpr (IN_REGISTERS && bytes_of(X_TYPE) == 2)
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            forget_numbers(r.held[k], args.zero);
    return most_of_row(p, most);
}

/* The output of a team's rows. */
__device__ __forceinline__ void put_rows(const row_args &args, place &p, const output_columns *early,
                                         row_reader *reader, const row_moments *moments, float &amax) {
    divisor d[ROWS];
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        if constexpr (SCALES_OF_ROWS) {
            d[u] = found_divisor(args, find_most(args, p, early, reader[u], moments[u]));
            if (reader[u].there && p.rank == 0)
                store_scale(args, reader[u], 0, d[u].scale);
        } else if constexpr (TYPES[ROLE_Y_SCALE] != NONE) {
            d[u] = divisor_of((float)load_element<F32>(args.tensor[ROLE_Y_SCALE].data, 0));
        }
    }
#pragma unroll UNROLL
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const row_reader &r = reader[u];
            const bool has = r.there && p.has(k);
            real y[WIDTH];
            float most = 0;
            if (has) {
                chunk_of_y(args, p, early, r, moments[u], k, y);
                if (HAS_AMAX || SHARERS > 1)
                    most = chunk_magnitude(y);
                if (HAS_AMAX)
                    amax = fmaxf(amax, most);
            }
            if constexpr (FINDS_SCALES && !SCALES_OF_ROWS) {
                most = SHARERS > 1 ? most_over_lanes<SHARERS>(most, p.lane) : has ? chunk_magnitude(y) : 0;
                d[u] = found_divisor(args, most);
                if (has && p.rank % SHARERS == 0)
                    store_scale(args, r, (p.rank + k * SPREAD) / SHARERS, d[u].scale);
            }
            if (has) {
                put_y(args, p, r, k, y);
                if constexpr (HAS_Q)
                    put_q(args, p, r, k, quantize<Q_TYPE, WIDTH>(y, d[u]));
            }
        }
}

/* The output of a team's rows. */
__device__ __forceinline__ void put(const row_args &args, place &p, const output_columns *early,
                                    row_reader *reader, const row_moments *moments, float &amax) {
    if constexpr (HOLDS_Y)
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            put_held_row(args, p, early, reader[u], moments[u], amax);
    else
        put_rows(args, p, early, reader, moments, amax);
}
