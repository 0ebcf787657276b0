/*
 * The backward of every problem, as general_forward.cu: any axes, strides and dtypes, with or without what stands
 * around the norm. All arithmetic is f64.
 *
 * PASS 1 backward, 2 backward from y, 5 statistics of a backward, which writes c1 and c2; a backward that is given
 * them makes none. STAGES: there are stages around the norm.
 *
 * planish_general_rows: of each row what the others need: the distance `delta` of its exact mean from the one given,
 * where that can be a rounding (saved_mean.cu), or 0, and the means c1 of g and c2 of g * xhat.
 * planish_general_columns: sums over the axes that the results of TARGET have not: COLUMNS_AFFINE dweight and dbias,
 * COLUMNS_SCALED dcolumn_scale, COLUMNS_MODULATED dscale and dshift. Of a norm alone blockIdx.y takes every
 * gridDim.y-th of the blocks' turns and writes a row of partial sums, which general_finish.cu adds up.
 * planish_general_elements: dx, dresidual, dgate. It comes last: they may be the inputs themselves.
 *
 * An index of the outer axes names a row, or an element of the results of TARGET, or any element.
 *
 * Constants: PASS KIND ACTIVATION STAGES TARGET GATE_BEFORE DROPOUT STAGES_DOUBLE (what the forward computes s with is
 * f64), and those of axes.cu. REAL_DOUBLE is 1.
 */
#include "../common/activation.cu"
#include "../common/rule.cu"
#include "../common/saved_mean.cu"
#include "../stages/philox.cu"
#include "../stages/stages_gate.cu"

#include "axes.cu"

enum { COLUMNS_AFFINE, COLUMNS_SCALED, COLUMNS_MODULATED };
enum { NO_GATE, GATE_AFTER, GATE_AHEAD };
constexpr int GATED = TYPES[ROLE_GATE] == NONE ? NO_GATE : GATE_BEFORE ? GATE_AHEAD : GATE_AFTER;

/* The halves of a backward; GIVEN: c1 and c2 are. */
constexpr bool FROM_Y = PASS == 2, MAKES_C = PASS == 5, GIVEN = PASS == 1 && TYPES[ROLE_C2] != NONE;
/* Whether the saved mean is mended; and whether it has to be before the sums, which else find what it lacks. */
constexpr bool MENDED = LAYER && PASS == 1 && !GIVEN, MENDED_FIRST = MENDED && (STAGES || ACTIVE);

/* ---- An element ------------------------------------------------------------------------------- */

struct row_facts {
    double mean, rstd, delta, c1, c2;
};

/* What is known of a row before its sums. */
__device__ __forceinline__ row_facts given_facts(const axes_args &args, const place &p) {
    return {read<ROLE_MEAN>(args, p), read<ROLE_RSTD>(args, p), 0, 0, 0};
}

/* All of it. */
__device__ __forceinline__ row_facts facts_of(const axes_args &args, const place &p) {
    row_facts f = given_facts(args, p);
    if constexpr (GIVEN) {
        f.c1 = read<ROLE_C1>(args, p);
        f.c2 = read<ROLE_C2>(args, p);
    } else if constexpr (!MAKES_C) {
        const char *at = (const char *)args.data[ROW] + p.at[ROW];
        f.delta = load_element<F64>(at, 0);
        f.c1 = load_element<F64>(at, 1);
        f.c2 = load_element<F64>(at, 2);
    }
    return f;
}

/* As the forward rounds what it makes s of. */
__device__ __forceinline__ double rounded(double v) { return STAGES_DOUBLE ? v : (double)(float)v; }

/* What x is multiplied by: `plain` without column_scale and gate. */
struct multiples {
    bool keep;
    double column, row, kept, gate;

    __device__ __forceinline__ double plain(double v) const { return keep ? v * row * kept : 0; }
};

__device__ __forceinline__ multiples multiples_of(const axes_args &args, const place &p) {
    multiples f = {true, 1, 1, 1, 1};
    f.column = read<ROLE_COLUMN_SCALE>(args, p, 1);
    f.row = read<ROLE_ROW_SCALE>(args, p, 1);
    if constexpr (DROPOUT) {
        f.kept = args.keep_factor;
        const philox_key key = load_philox_key(tensor<ROLE_RNG>(args));
        f.keep = kept_elements<1, 1>(key, (u64)p.at[INDEX], args.dropped) != 0;
    }
    if (GATED == GATE_AHEAD)
        f.gate = rounded(silu_of(read<ROLE_GATE>(args, p)));
    return f;
}

/* What the norm read. */
__device__ __forceinline__ double sum_at(const axes_args &args, const place &p) {
    const double x = read<ROLE_X>(args, p);
    if (GATED != GATE_AHEAD)
        return x;
    const multiples f = multiples_of(args, p);
    double u = rounded(x * f.gate);
    if (TYPES[ROLE_COLUMN_SCALE] != NONE)
        u = rounded(u * f.column);
    if (TYPES[ROLE_ROW_SCALE] != NONE)
        u = rounded(u * f.row);
    if (DROPOUT)
        u = f.keep ? rounded(u * f.kept) : 0;
    return u;
}

/* That less the row's mean; from y: xhat, 0 where y holds no digit of it. */
__device__ __forceinline__ double distance(const axes_args &args, const place &p, const row_facts &f) {
    if constexpr (FROM_Y) {
        const double y = read<ROLE_Y>(args, p), w = weight_at(args, p), b = read<ROLE_BIAS>(args, p);
        return w == 0 || fabs(w) <= ulp_at_one(Y_TYPE) * fabs(b) ? 0 : (y - b) / w;
    } else {
        const double s = sum_at(args, p);
        return LAYER ? (s - f.mean) - f.delta : s;
    }
}

struct gradients {
    double distance, xhat, z, dm, dz, g;
    double dgate; /* of a gate behind the norm */
};

__device__ __forceinline__ gradients gradients_of(const axes_args &args, const place &p, const row_facts &f) {
    gradients e;
    const double w = weight_at(args, p), up = 1 + read<ROLE_SCALE>(args, p);
    e.distance = distance(args, p, f);
    e.xhat = FROM_Y ? e.distance : e.distance * f.rstd;
    e.z = affine_of_xhat<true, true, !STAGES>(e.xhat, w, read<ROLE_BIAS>(args, p));
    const double m = multiply_add(e.z, up, read<ROLE_SHIFT>(args, p));
    double dy = read<ROLE_DY>(args, p);
    e.dgate = 0;
    if (GATED == GATE_AFTER) {
        const double gate = read<ROLE_GATE>(args, p);
        e.dgate = dy * activated(m) * gate_slope(gate);
        dy *= silu_of(gate);
    }
    e.dm = through_activation(dy, m);
    e.dz = e.dm * up;
    e.g = e.dz * w;
    return e;
}

/* The gradient of s. */
__device__ __forceinline__ double gradient_of_sum(const axes_args &args, const place &p, const row_facts &f,
                                                  const gradients &e) {
    const double of_norm = f.rstd * (e.g - f.c1 - e.xhat * f.c2);
    return STAGES ? of_norm + read<ROLE_DSUM>(args, p) : of_norm; /* adding 0 would change -0 */
}

/* ---- Rows ------------------------------------------------------------------------------------- */

__device__ __forceinline__ double mended(double delta, double mean) {
    return is_rounding<double>(delta, mean, 1) ? delta : 0;
}

/* c1 and c2 and, where the mean is mended, delta. */
__device__ __forceinline__ void find_facts(const axes_args &args, const thread_of_axes &t, row_facts &f,
                                           double (*room)[THREADS]) {
    const double n = (double)args.inner_size;
    const i64 end = t.there ? args.inner_size : 0;
    double v[3] = {0, 0, 0}; /* of g, of g * xhat (or of g * distance), of distance */
    constexpr bool OF_XHAT = STAGES || MAKES_C;
    if (MENDED_FIRST) {
        for (i64 i = t.slice; i < end; i += SLICES)
            v[0] += distance(args, inner_place(args, t.at, i), f);
        over_slices<1>(room, v);
        f.delta = mended(v[0] / n, f.mean);
    }
    v[0] = 0;
    for (i64 i = t.slice; i < end; i += SLICES) {
        const gradients e = gradients_of(args, inner_place(args, t.at, i), f);
        v[0] += e.g;
        v[1] = multiply_add(e.g, OF_XHAT ? e.xhat : e.distance, v[1]);
        v[2] += e.distance;
    }
    over_slices<3>(room, v);
    if (MAKES_C) {
        const double inverse = args.inner_size ? 1.0 / count_of(n) : 0;
        f.c1 = v[0] * inverse;
        f.c2 = v[1] * inverse;
    } else {
        const double beside = MENDED && !MENDED_FIRST ? mended(v[2] / n, f.mean) : 0;
        f.delta += beside;
        f.c1 = LAYER ? v[0] / n : 0;
        f.c2 = OF_XHAT ? v[1] / count_of(n)
                       : multiply_add(-beside, v[0], v[1]) / count_of(n) * (FROM_Y ? 1 : f.rstd);
    }
    f.c2 = c2_of(f.c2, f.rstd, args.clamped);
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_rows(const axes_args args) {
    __shared__ double room[3][THREADS];
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES) {
        const thread_of_axes t = thread_at(args, first);
        row_facts f = given_facts(args, t.at);
        find_facts(args, t, f, room);
        if (!t.there || t.slice)
            continue;
        if constexpr (MAKES_C) {
            write<ROLE_C1>(args, t.at, f.c1);
            write<ROLE_C2>(args, t.at, f.c2);
        } else {
            char *to = (char *)args.data[ROW] + t.at.at[ROW];
            store_element<F64>(to, 0, f.delta);
            store_element<F64>(to, 1, f.c1);
            store_element<F64>(to, 2, f.c2);
        }
    }
    release_stream();
}

/* ---- Columns ---------------------------------------------------------------------------------- */

/* What the sums of TARGET are of, and where they go; the second is no one's where it has one. */
constexpr int FIRST = TARGET == COLUMNS_AFFINE   ? ROLE_DWEIGHT
                      : TARGET == COLUMNS_SCALED ? ROLE_DCOLUMN_SCALE
                                                 : ROLE_DSCALE;
constexpr int SECOND = TARGET == COLUMNS_AFFINE ? ROLE_DBIAS : ROLE_DSHIFT;

__device__ __forceinline__ void add_element(const axes_args &args, const place &p, double *v) {
    const row_facts f = facts_of(args, p);
    const gradients e = gradients_of(args, p, f);
    if (TARGET == COLUMNS_AFFINE) {
        v[0] = multiply_add(e.dz, e.xhat, v[0]);
        v[1] += e.dz;
    } else if (TARGET == COLUMNS_MODULATED) {
        v[0] = multiply_add(e.dm, e.z, v[0]);
        v[1] += e.dm;
    } else {
        const multiples m = multiples_of(args, p);
        v[0] += m.plain(gradient_of_sum(args, p, f, e) * read<ROLE_BRANCH>(args, p) * m.gate);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_columns(const axes_args args) {
    __shared__ double room[2][THREADS];
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES) {
        const thread_of_axes t = thread_at(args, first);
        double v[2] = {0, 0};
        for (i64 i = (i64)blockIdx.y * SLICES + t.slice; t.there && i < args.inner_size; i += (i64)gridDim.y * SLICES)
            add_element(args, inner_place(args, t.at, i), v);
        over_slices<2>(room, v);
        if (!t.there || t.slice)
            continue;
        if constexpr (STAGES) {
            write<FIRST>(args, t.at, v[0]);
            if constexpr (TARGET != COLUMNS_SCALED)
                write<SECOND>(args, t.at, v[1]);
        } else {
            double *const to = args.partials + first + threadIdx.x;
            to[blockIdx.y * args.outer_size] = v[0];
            to[((i64)gridDim.y + blockIdx.y) * args.outer_size] = v[1];
        }
    }
    release_stream();
}

/* ---- Elements --------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_elements(const axes_args args) {
    wait_for_stream();
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < args.outer_size; i += (i64)gridDim.x * THREADS) {
        const place p = outer_place(args, i);
        const row_facts f = facts_of(args, p);
        const gradients e = gradients_of(args, p, f);
        const double ds = gradient_of_sum(args, p, f, e);
        const multiples m = multiples_of(args, p);
        double dgate = e.dgate;
        if (GATED == GATE_AHEAD && TYPES[ROLE_DGATE] != NONE)
            dgate = m.plain(ds * read<ROLE_X>(args, p) * gate_slope(read<ROLE_GATE>(args, p)) * m.column);
        write<ROLE_DRESIDUAL>(args, p, ds);
        write<ROLE_DX>(args, p, m.plain(ds * m.gate * m.column));
        write<ROLE_DGATE>(args, p, dgate);
    }
    release_stream();
}
