/*
 * A part of batch.cu: where rows and their elements are, what is known of a row, and the arithmetic of its moments.
 */
#include "../arguments/batch_args.h"
#include "../common/fusion.cu"
#include "../common/quotient.cu"
#include "../common/saved_mean.cu"

#include "../common/rule.cu"
constexpr bool STATISTICS = PASS == 3; /* m2 stands in the place of rstd, and there is no y */
constexpr bool FORWARD = PASS == 0 || STATISTICS, BACKWARD = PASS == 1, GIVEN = PASS == 4;
constexpr int THREADS = WARPS * WARP;
constexpr int PLANES = THREADS / LANES;      /* threads that share a row */
constexpr int WORKERS = LANES * PLANES;      /* threads that have something to do */
constexpr bool SLAB = PIXELS > 0;
constexpr bool BY_PLACE = LAST || SLAB;      /* a thread keeps to WIDTH places of every step */
constexpr int COLUMNS = BY_PLACE ? WIDTH : 1; /* of a thread: rows, or places of a slab */
constexpr int STEP_ELEMENTS = LAST ? 1 : SLAB ? PIXELS : WIDTH; /* of a row */
constexpr bool WIDE_RANGE = FORWARD && (X_TYPE == F32 || X_TYPE == BF16);
/* Of few digits, x is added up as it is, which is exact, and its sum is that about the pivot in the end. */
constexpr bool EXACT_SUMS = FORWARD && LAYER && (X_TYPE == F16 || X_TYPE == BF16);
constexpr bool WEIGHTED = WEIGHT_TYPE != NONE;
constexpr bool BIASED = (!BACKWARD || ACTIVE) && BIAS_TYPE != NONE; /* of a mask by y nobody asks for it */
constexpr int OUT_TYPE = BACKWARD ? DX_TYPE : Y_TYPE, OUT_ACCESS = BACKWARD ? DX_ACCESS : Y_ACCESS;
/* What a pass reads beside x and dy: what is added behind the norm; in the backward, of an activation alone, or y
 * itself, whose sign is a ReLU's mask. */
constexpr bool MASKED_BY_Y = BACKWARD && Y_TYPE != NONE;
constexpr int BESIDE_ROLE = MASKED_BY_Y ? ROLE_Y : ROLE_ADDEND;
constexpr int BESIDE_TYPE = BACKWARD && !ACTIVE ? NONE : TYPES[BESIDE_ROLE];
constexpr int BESIDE_ACCESS = ACCESSES[BESIDE_ROLE];
constexpr bool HAS_BESIDE = BESIDE_TYPE != NONE;
constexpr int DADDEND_TYPE = TYPES[ROLE_DADDEND], DADDEND_ACCESS = ACCESSES[ROLE_DADDEND];
/* What a ReLU leaves of dy is dy or 0, and so is in daddend of dy's dtype as it is: the sums write it there, and the
 * output reads it in the place of dy and of what the mask is made of. BATCH_APPLY is told nothing of all that. */
constexpr bool LEAVES_GRADIENT =
    BACKWARD && !ALONE && ACTIVATION == RELU && DADDEND_TYPE != NONE && DADDEND_TYPE == DY_TYPE;
constexpr bool HAS_OUTPUT = OUT_TYPE != NONE || (DADDEND_TYPE != NONE && !LEAVES_GRADIENT);
/* Whether c1 and c2 are given, as the means of more than the rows here. */
constexpr bool MEANS_GIVEN = TYPES[ROLE_C2] != NONE;
/* Whether z is made again for the slope of what is behind it. */
constexpr bool NEEDS_Z = ACTIVE && !MASKED_BY_Y;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE), DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int OUT_BYTES = WIDTH * bytes_of(OUT_TYPE), BESIDE_BYTES = WIDTH * bytes_of(BESIDE_TYPE);
constexpr int DADDEND_BYTES = WIDTH * bytes_of(DADDEND_TYPE);

extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* ---- Places ----------------------------------------------------------------------------------- */

/* A row by the axes that number it. */
struct row_number {
    i64 outer, inner;
};

__device__ __forceinline__ row_number number_of(const batch_args &args, i64 row) {
    if (SLAB || args.inner_rows >= args.rows)
        return {0, row};
    const i64 outer = row / args.inner_rows;
    return {outer, row - outer * args.inner_rows};
}

/* Bytes from a row's first element to those of a step. */
template <int TYPE> __device__ __forceinline__ i64 step_at(const batch_args &args, const batch_tensor &t, u32 step) {
    if (BY_PLACE)
        return (i64)step * t.at.run;
    const u32 run = args.run_steps > 1 ? (u32)quotient_of(args.run_divisor, step) : step;
    return (i64)run * t.at.run + (i64)(step - run * args.run_steps) * (WIDTH * bytes_of(TYPE));
}

__device__ __forceinline__ u32 least_of(u32 a, u32 b) { return a < b ? a : b; }

/* What a block works at: steps [begin, end) of some rows, of which a thread has COLUMNS from `row` on and every
 * PLANES-th step from the `plane`th. */
struct unit_place {
    i64 row;
    u32 piece, begin, end;
    int lane, plane;
    bool active;
};

__device__ __forceinline__ unit_place place_of(const batch_args &args, i64 strip, i64 piece) {
    unit_place p;
    p.lane = threadIdx.x % LANES;
    p.plane = threadIdx.x / LANES;
    p.row = BY_PLACE ? (strip * LANES + p.lane) * WIDTH : strip;
    p.active = p.row < args.rows && (!SLAB || p.plane < PLANES);
    p.piece = (u32)piece;
    p.begin = p.piece * args.piece;
    p.end = least_of(p.begin + args.piece, args.steps);
    return p;
}

__device__ __forceinline__ unit_place unit_of(const batch_args &args, i64 strips, i64 number) {
    const i64 piece = number / strips;
    return place_of(args, number - piece * strips, piece);
}

/* Of a slab what counts as rows is places: those of all its channels, whose first pixels are PIXELS apart. */
__device__ __forceinline__ i64 rows_of(const batch_args &args) {
    return SLAB ? (i64)((u32)args.rows / most(PIXELS, 1)) : args.rows;
}

/* The channels of WIDTH neighbouring places, of which the first `split` or more are of the first one. */
struct place_rows {
    int first, second, split;
};

__device__ __forceinline__ place_rows rows_of_place(u32 place) {
    const int first = place / most(PIXELS, 1), split = (first + 1) * PIXELS - (int)place;
    return {first, split < WIDTH ? first + 1 : first, split};
}

/* A row's place in a tensor. */
__device__ __forceinline__ char *row_of(const batch_tensor &t, const row_number &n) {
    return (char *)t.data + n.outer * t.at.outer + n.inner * t.at.inner;
}

/* The first element of x of a row, or of a slab's channel. */
__device__ __forceinline__ const char *first_of_row(const batch_args &args, i64 row) {
    return row_of(args.x, number_of(args, SLAB ? row * PIXELS : row));
}

/* The first elements of a thread's rows. */
struct row_bases {
    const char *x, *dy, *beside;
    char *out, *daddend;
};

__device__ __forceinline__ row_bases bases_of(const batch_args &args, i64 row) {
    const row_number n = number_of(args, row);
    return {row_of(args.x, n), BACKWARD ? row_of(args.dy, n) : nullptr, HAS_BESIDE ? row_of(args.beside, n) : nullptr,
            row_of(args.out, n), DADDEND_TYPE != NONE ? row_of(args.daddend, n) : nullptr};
}

/* ---- What is known of a row ------------------------------------------------------------------- */

__device__ __forceinline__ real weight_of(const batch_args &args, const row_number &n) {
    if constexpr (!WEIGHTED) {
        return 1;
    } else {
        const real w = load_element<WEIGHT_TYPE>(row_of(args.weight, n), 0);
        return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w; /* adding 0 would change -0 */
    }
}
__device__ __forceinline__ real bias_of(const batch_args &args, const row_number &n) {
    if constexpr (!BIASED)
        return 0;
    else
        return load_element<BIAS_TYPE>(row_of(args.bias, n), 0);
}

/* The moments that a pass is given. FROZEN: in the place of rstd there is the variance, as it is kept over many calls;
 * it does not depend on x. */
struct given_moments {
    stored_mean mean;
    stored_rstd rstd;
};

__device__ __forceinline__ given_moments given_of(const batch_args &args, const row_number &n) {
    given_moments g = {0, load_rstd(row_of(args.rstd, n))};
    if (FROZEN)
        g.rstd = (stored_rstd)reciprocal_root((double)g.rstd + args.eps);
    if (LAYER)
        g.mean = load_mean(row_of(args.mean, n));
    return g;
}

/*
 * What an element's output is made by. With d = x - mean, of which the mean's rest is part of the other constants,
 *
 *     z  = d * scale + offset                 y = f(z + addend)
 *     g  = dy * f'(z + addend)                dx = (g - c1 - d * c2) * scale
 *
 * or, where c1 and c2 are given and have the weight in them, dx = (g * weight - c1 - d * c2) * rstd.
 */
struct row_constants {
    real mean, scale, offset, c1, c2, weight, rstd;
};

__device__ __forceinline__ real normal_of(real d, const row_constants &c) {
    return WEIGHTED || BIASED || LAYER ? multiply_add(d, c.scale, c.offset) : d * c.scale;
}

/* Of a row's mean, as a pair, and rstd. */
__device__ __forceinline__ row_constants constants_of(real mean, real rest, real rstd, real weight, real bias) {
    const real scale = rstd * weight;
    return {mean, scale, LAYER ? multiply_add(-rest, scale, bias) : bias, 0, 0, weight, rstd};
}

/* What a float leaves of the mean that is given, where that has more digits. */
__device__ __forceinline__ real given_rest(const given_moments &g) {
    return LAYER && MEAN_IS_EXACT ? (real)(g.mean - (stored_mean)(real)g.mean) : 0;
}

/* A row's constants by what a pass is given: moments, parameters and the means c1 and c2. */
__device__ __forceinline__ row_constants constants_by(const given_moments &g, real weight, real bias, real c1, real c2) {
    row_constants c = constants_of((real)g.mean, given_rest(g), (real)g.rstd, weight, bias);
    if constexpr (MEANS_GIVEN) {
        c.c2 = c2 * (real)g.rstd;
        if (LAYER)
            c.c1 = multiply_add(-given_rest(g), c.c2, c1);
    }
    return c;
}

constexpr int C1_TYPE = TYPES[ROLE_C1], C2_TYPE = TYPES[ROLE_C2];

__device__ __forceinline__ row_constants given_constants(const batch_args &args, const row_number &n) {
    return constants_by(given_of(args, n), weight_of(args, n), bias_of(args, n),
                        MEANS_GIVEN ? (real)load_stored<C1_TYPE>(row_of(args.c1, n)) : 0,
                        MEANS_GIVEN ? (real)load_stored<C2_TYPE>(row_of(args.c2, n)) : 0);
}

/* One number for each of a thread's rows, the first of which is `row`. ACCESS is the alignment of numbers that are
 * neighbours, 1: they are not. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void load_numbers(const batch_args &args, const batch_tensor &t, i64 row,
                                             typename stored_in<TYPE>::type *v) {
    if constexpr (TYPE != NONE && LAST && ACCESS > 1) {
        const auto c = load_chunk<COLUMNS * bytes_of(TYPE), ACCESS>(row_of(t, number_of(args, row)));
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if constexpr (TYPE == F64)
                v[i] = __hiloint2double((int)c.word[2 * i + 1], (int)c.word[2 * i]);
            else
                v[i] = element<TYPE>(c.word, i);
    } else if constexpr (SLAB) {
        const place_rows r = rows_of_place((u32)row);
        const auto one = load_stored<TYPE>(row_of(t, {0, r.first})), next = load_stored<TYPE>(row_of(t, {0, r.second}));
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            v[i] = i < r.split ? one : next;
    } else {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            v[i] = load_stored<TYPE>(row_of(t, number_of(args, row + i)));
    }
}

/* The same as given_constants of each of a thread's rows. */
__device__ __forceinline__ void given_columns(const batch_args &args, i64 row, row_constants *c) {
    stored_mean mean[COLUMNS];
    stored_rstd rstd[COLUMNS];
    typename stored_in<WEIGHT_TYPE>::type weight[COLUMNS];
    typename stored_in<BIASED ? BIAS_TYPE : NONE>::type bias[COLUMNS];
    typename stored_in<C1_TYPE>::type c1[COLUMNS];
    typename stored_in<C2_TYPE>::type c2[COLUMNS];
    load_numbers<LAYER ? MEAN_TYPE : NONE, ACCESSES[ROLE_MEAN]>(args, args.mean, row, mean);
    load_numbers<RSTD_TYPE, ACCESSES[ROLE_RSTD]>(args, args.rstd, row, rstd);
    load_numbers<WEIGHT_TYPE, WEIGHT_ACCESS>(args, args.weight, row, weight);
    load_numbers<BIASED ? BIAS_TYPE : NONE, BIAS_ACCESS>(args, args.bias, row, bias);
    load_numbers<C1_TYPE, 1>(args, args.c1, row, c1);
    load_numbers<C2_TYPE, 1>(args, args.c2, row, c2);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        if (FROZEN)
            rstd[i] = (stored_rstd)reciprocal_root((double)rstd[i] + args.eps);
        const real w = !WEIGHTED ? 1 : WEIGHT_OFFSET ? (real)weight[i] + (real)WEIGHT_OFFSET : (real)weight[i];
        c[i] = constants_by({mean[i], rstd[i]}, w, (real)bias[i], (real)c1[i], (real)c2[i]);
    }
}

/* Below this, and at it, what a ReLU had is 0 in dy's dtype. */
constexpr real LEAST_SHOWN = (real)(DY_TYPE == F16 ? 0x1p-25 : DY_TYPE == BF16 ? 0x1p-134 : 0);

/* An element of dy as it comes to the norm; what is `beside` it is y or the addend. */
__device__ __forceinline__ real gradient_of(real dy, real d, real beside, const row_constants &c) {
    if (!ACTIVE)
        return dy;
    if (MASKED_BY_Y)
        return beside <= 0 ? 0 : dy;
    const real a = HAS_BESIDE ? normal_of(d, c) + beside : normal_of(d, c);
    if (ACTIVATION == RELU)
        return a <= LEAST_SHOWN ? 0 : dy;
    return through_activation(dy, a);
}

/* ---- Sums ------------------------------------------------------------------------------------- */

/*
 * Sums of a row, forward about a pivot: [0] of d, [1] of d * d. Backward, with d = x - mean: [0] of g, [1] of g * d,
 * and where the mean's rounding is to be found [2] of d.
 */
constexpr bool FIND_REST = BACKWARD && LAYER && CORRECT && !MEAN_IS_EXACT;
constexpr int SUMS = FORWARD ? 2 : FIND_REST ? 3 : 2;

/* Moves the pivot of the sums of n elements from p + d to p. */
__device__ __forceinline__ void move_pivot(double d, double n, double &a, double &b) {
    const double moved = multiply_add(n, d, a);
    b = multiply_add(d, a + moved, b);
    a = moved;
}

/* Whether a row's squares, which came to `b`, leave float's range. */
__device__ __forceinline__ bool leaves_range(const batch_args &args, double b) {
    return WIDE_RANGE && (!(b < 1e36) || (args.eps_is_small && b < 1e-28));
}

/* Whether any of COUNT flags in shared memory is set: for every thread. */
template <int COUNT> __device__ __forceinline__ bool any_of(const bool *flags) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < ceil_div(COUNT, WARP); i++) {
        const int at = i * WARP + threadIdx.x % WARP;
        found |= at < COUNT && flags[at];
    }
    return __any_sync(EVERY_LANE, found);
}

/* A number with all digits of f64, rounded once. */
template <int TYPE> __device__ __forceinline__ void store_rounded(void *address, double v) {
    if constexpr (TYPE == F64) {
        const u64 bits = (u64)__double_as_longlong(v);
        store_chunk<8, 8>(address, chunk<8>{{(u32)bits, (u32)(bits >> 32)}});
    } else if constexpr (TYPE != NONE) {
        store_element<TYPE>(address, 0, TYPE == F32 ? (real)v : (real)round_to_odd(v));
    }
}

/* Brings a statistic that is kept over many calls up to date. */
template <int TYPE>
__device__ __forceinline__ void keep_running(const batch_args &args, const batch_tensor &t, const row_number &n,
                                             double v) {
    if constexpr (TYPE != NONE) {
        char *const at = row_of(t, n);
        const double before = (double)load_stored<TYPE>(at);
        store_rounded<TYPE>(at, (1 - args.momentum) * before + args.momentum * v);
    }
}

/* What is known of a row before its sums are. */
struct known_row {
    row_number number;
    given_moments given;     /* backward */
    row_constants constants; /* backward; forward: the weight, and the bias as the offset */
};

__device__ __forceinline__ known_row known_of(const batch_args &args, i64 row) {
    known_row k;
    k.number = number_of(args, row);
    if constexpr (BACKWARD) {
        k.given = given_of(args, k.number);
        k.constants = given_constants(args, k.number);
    } else {
        k.constants = {0, 0, bias_of(args, k.number), 0, 0, weight_of(args, k.number), 0};
    }
    return k;
}

/* A row's constants by its sums about `pivot`; its moments are saved. */
__device__ __forceinline__ row_constants forward_constants(const batch_args &args, const known_row &k, double pivot,
                                                           const double *v, bool saves) {
    const row_number &n = k.number;
    const double delta = LAYER ? v[0] / args.cols : 0;
    const double found = v[1] - delta * v[0], squares = found < 0 ? 0 : found;
    const real mean = (real)(pivot + delta), rest = (real)((pivot - (double)mean) + delta);
    const real rstd = reciprocal_root(with_eps(squares / args.count, args.eps));
    if (saves) {
        if constexpr (LAYER && MEAN_TYPE != NONE)
            store_pair<MEAN_TYPE>(row_of(args.mean, n), mean, rest);
        if constexpr (STATISTICS)
            store_rounded<RSTD_TYPE>(row_of(args.rstd, n), squares);
        else
            store_element<RSTD_TYPE>(row_of(args.rstd, n), 0, rstd);
        keep_running<TYPES[ROLE_RUNNING_MEAN]>(args, args.running_mean, n, pivot + delta);
        keep_running<TYPES[ROLE_RUNNING_VAR]>(args, args.running_var, n, squares / (args.cols - 1));
    }
    return constants_of(mean, rest, rstd, k.constants.weight, k.constants.offset);
}

/* The same of a backward, whose sums of dweight and dbias are written. */
__device__ __forceinline__ row_constants backward_constants(const batch_args &args, const known_row &k,
                                                            const double *v, bool saves) {
    const row_number &n = k.number;
    const given_moments &g = k.given;
    const double rstd = (double)g.rstd, found = FIND_REST ? v[2] / args.cols : 0;
    const double rest = !LAYER ? 0 : FROZEN ? (double)given_rest(g) : (double)rest_of_mean(g.mean, (real)found);
    const double product = v[1] - rest * v[0];
    row_constants c = k.constants;
    if (!MEANS_GIVEN && !FROZEN) {
        const double c2 = c2_of(product / args.count * rstd * rstd, rstd, args.clamped);
        c.c2 = (real)c2;
        c.c1 = LAYER ? (real)(v[0] / args.cols - rest * c2) : 0;
    }
    if (saves && WANT_DWEIGHT)
        store_element<DWEIGHT_TYPE>(row_of(args.dweight, n), 0, (real)(product * rstd));
    if (saves && WANT_DBIAS)
        store_element<DBIAS_TYPE>(row_of(args.dbias, n), 0, (real)v[0]);
    return c;
}
