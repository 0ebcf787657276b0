/*
 * A part of forward.cu: short rows of 16 bits within a warp. Many such rows are bound by their
 * instructions, not by memory. Few lanes share a row, so that two exchanges cost little, and the mean
 * first, then the squares about it, is half the arithmetic of sums about pivots.
 *
 * The mean is a pair here, too: pivot, the sum over COLS rounded once, and delta, what that leaves.
 * The sum itself is exact where that matters: of at most 2^11 elements, where the mean is more than
 * 2^7 deviations, every one lies within a factor of two of the mean, and f32 holds the sum of so many
 * 11-bit numbers of two binades.
 *
 * Where a warp's rows are all there, as in every warp but the last, no lane asks whether its own are.
 */
/* Where a lane's first chunk is in memory, and the warp's first row of statistics. */
template <bool MANY> struct places_of {
    const char *x;
    char *y, *mean, *rstd;

    __device__ __forceinline__ const char *x_of(const row_args &, int) const { return x; } /* of the first */
    template <int COUNT> __device__ __forceinline__ char *y_of(const row_args &) const { return y; }
    __device__ __forceinline__ void go_on(i64) {}
};
/* LEVELS > 1: x and y are those of row 0. */
template <> struct places_of<true> {
    const char *x;
    char *y, *mean, *rstd;
    i64 row; /* the lane's first */

    __device__ __forceinline__ const char *x_of(const row_args &args, int u) const {
        return x + row_begin(args.levels, row + u * PER_WARP, args.x_stride, args.x_jump);
    }
    template <int COUNT> __device__ __forceinline__ row_bases<COUNT> y_of(const row_args &args) const {
        return bases_of_rows<COUNT>(args.levels, y, row, PER_WARP, args.y_stride, args.y_jump);
    }
    __device__ __forceinline__ void go_on(i64 rows) { row += rows; }
};
typedef places_of<LEVELLED> row_places;

__device__ __forceinline__ void load_row(const place &p, const char *x, centred_row &row) {
    chunk<X_BYTES> c[CHUNKS_PER_THREAD];
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        c[k] = zero_chunk<X_BYTES>();
        if (!p.idle && p.has(k))
            c[k] = load_chunk<X_BYTES, X_ACCESS>(x + k * (SPREAD * X_BYTES));
    }
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            row.v[k][i] = element<X_TYPE>(c[k].word, i);
}

/* The moments of a row whose squares leave float's range, from memory. */
__device__ __forceinline__ void scale_row(const row_args &args, place &p, const char *x,
                                          bool there, centred_row &row) {
    const real own = there && !p.idle ? lane_mean(p, x) : 0;
    sum_scaled(p, there && !p.idle, x, own, row.m, args);
    if (row.m.beyond && there) {
        load_row(p, x, row);
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                row.v[k][i] -= LAYER ? row.m.pivot : 0;
    }
}

/* Rows in registers, less their pivots. */
struct centred_rows_held {
    __device__ __forceinline__ static bool there(int, const centred_row *) { return true; }
    __device__ __forceinline__ static const real *take(const place &, int u, int k, const centred_row *rows) {
        return rows[u].v[k];
    }
    __device__ __forceinline__ static real xhat(const real *v, int i, int u, int, const centred_row *rows) {
        return centred_xhat(v[i], rows[u].m);
    }
};

template <int COUNT, typename y_rows>
__device__ __forceinline__ void write_rows(const row_args &args, const place &p, const affine &early,
                                           y_rows y, const centred_row *rows) {
    row_output<centred_rows_held, weights_of_columns, y_in_memory, COUNT, CHUNKS_PER_THREAD, WIDTH, 0>(args, p, early,
                                                                                             y, rows);
}

/* Statistics of the warp's COUNT * PER_WARP rows, by lanes in the order of the rows: whole sectors. */
template <int COUNT>
__device__ __forceinline__ void write_statistics(const row_args &args, const row_places &at,
                                                 const centred_row *rows, i64 left) {
    constexpr int ALL = COUNT * PER_WARP;
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int piece = 0; piece < ALL; piece += WARP) {
        const int row = piece + lane;
        real mean = 0, rstd = 0;
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            const int behind = row - u * PER_WARP; /* the first of these */
            if (u * PER_WARP >= piece + WARP || (u + 1) * PER_WARP <= piece)
                continue;
            const row_moments &m = rows[u].m;
            const real a = from_lane(m.pivot + m.delta, behind * WARP_LANES & (WARP - 1));
            const real b = from_lane(m.rstd, behind * WARP_LANES & (WARP - 1));
            mean = behind >= 0 ? a : mean;
            rstd = behind >= 0 ? b : rstd;
        }
        if (row < ALL && row < left) {
            store_element<MEAN_TYPE>(at.mean + row * args.mean_stride, 0, mean);
            store_element<RSTD_TYPE>(at.rstd + row * args.rstd_stride, 0, rstd);
        }
    }
}

/* COUNT rows of each lane, of the warp's `left`; of a lane whose rows are not `there`, nothing but the
 * exchanges. False, and nothing is done, where one of several leaves float's range. */
template <int COUNT>
__device__ __forceinline__ bool take_rows(const row_args &args, place &p, const affine &early,
                                          const row_places &at, bool there, i64 left) {
    centred_row rows[COUNT];
    real sums[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        if (there && LEVELLED)
            load_row(p, at.x_of(args, u), rows[u]);
        else if (there)
            load_row(p, at.x + u * (PER_WARP * args.x_stride), rows[u]);
        else
            rows[u] = {};
    }
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        sums[u] = LAYER ? sum_of(rows[u]) : 0;
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        rows[u].m.pivot = rows[u].m.delta = 0;
        if (LAYER)
            centre(rows[u].m, sum_over_lanes<WARP_LANES>(sums[u], p.lane));
        sums[u] = squares_of(p, rows[u]);
    }
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        sums[u] = sum_over_lanes<WARP_LANES>(sums[u], p.lane);
    find_rstd<COUNT>(args, rows, sums);
    if constexpr (WIDE_RANGE) {
        bool beyond = false;
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            rows[u].m.beyond = leaves_range(sums[u], args);
            beyond |= rows[u].m.beyond != 0;
        }
        if (__any_sync(EVERY_LANE, beyond)) {
            if constexpr (COUNT > 1)
                return false;
            scale_row(args, p, at.x_of(args, 0), there, rows[0]);
        }
    }
    if (there)
        write_rows<COUNT>(args, p, early, at.y_of<COUNT>(args), rows);
    write_statistics<COUNT>(args, at, rows, left);
    return true;
}

__device__ __forceinline__ void centred_rows(const row_args &args, place &p) {
    i64 first = ((i64)ROW_BLOCK(args) * WARPS + p.warp) * STEP; /* of the warp */
    const i64 row = first + p.lane / WARP_LANES;
    row_places at = {(const char *)args.x + (LEVELLED ? 0 : row * args.x_stride) + (i64)p.rank * X_BYTES,
                     (char *)args.y + (LEVELLED ? 0 : row * args.y_stride) + (i64)p.rank * Y_BYTES,
                     (char *)args.mean + first * args.mean_stride,
                     (char *)args.rstd + first * args.rstd_stride};
    at.go_on(row);
    affine early;
    wait_for_stream();
    release_stream();
    if constexpr (HELD_EARLY)
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            if (!p.idle && p.has(k))
                load_affine(args, p, k, early.weight[k], early.bias[k]);
    for (; first < args.rows; first += args.row_turn) {
        /* Row by row where some are not there, or leave float's range. */
        if (first + STEP > args.rows || !take_rows<ROWS>(args, p, early, at, true, STEP)) {
            row_places here = at;
#pragma unroll 1
            for (int u = 0; u < ROWS; u++) {
                const i64 left = args.rows - first - u * PER_WARP;
                take_rows<1>(args, p, early, here, p.lane / WARP_LANES < left, left);
                here.go_on(PER_WARP);
                if (!LEVELLED) {
                    here.x += PER_WARP * args.x_stride;
                    here.y += PER_WARP * args.y_stride;
                }
                here.mean += PER_WARP * args.mean_stride;
                here.rstd += PER_WARP * args.rstd_stride;
            }
        }
        at.go_on(args.row_turn);
        if (!LEVELLED) {
            at.x += args.x_turn;
            at.y += args.y_turn;
        }
        at.mean += args.row_turn * args.mean_stride;
        at.rstd += args.row_turn * args.rstd_stride;
    }
}
