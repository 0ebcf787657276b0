/* The reference, but for its steps; see reference.h. */
#include <string.h>

#include "kinds.h"
#include "reference_steps.h"
#include "tensor.h"

/* ---- Geometry -------------------------------------------------------------------------------- */

geometry geometry_make(int ndim, const int64_t *shape, uint64_t reduce_axes, uint64_t affine_axes) {
    geometry g = {.elements = 1, .rows = 1, .cols = 1, .channels = 1};
    for (int i = 0; i < ndim; i++) {
        g.elements *= shape[i];
        *(reduce_axes >> i & 1 ? &g.cols : &g.rows) *= shape[i];
        if (affine_axes >> i & 1)
            g.channels *= shape[i];
    }
    g.row = malloc(((size_t)g.elements + 1) * sizeof *g.row);
    g.channel = malloc(((size_t)g.elements + 1) * sizeof *g.channel);
    int64_t index[PLANISH_MAX_NDIM] = {0};
    for (int64_t e = 0; e < g.elements; e++) {
        g.row[e] = g.channel[e] = 0;
        for (int i = 0; i < ndim; i++) {
            if (!(reduce_axes >> i & 1))
                g.row[e] = g.row[e] * shape[i] + index[i];
            if (affine_axes >> i & 1)
                g.channel[e] = g.channel[e] * shape[i] + index[i];
        }
        for (int i = ndim - 1; i >= 0 && ++index[i] == shape[i]; i--)
            index[i] = 0;
    }
    return g;
}

void geometry_free(geometry *g) {
    free(g->row);
    free(g->channel);
    *g = (geometry){0};
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* Where each element of x finds what is its own of a part; NULL: at its own place. */
static const int64_t *place_of(const inputs *in, part p) {
    switch (p) {
    case WEIGHT:
    case BIAS:
        return in->geometry.channel;
    case COLUMN_SCALE:
        return in->column.channel ? in->column.channel : in->geometry.channel;
    case SCALE:
    case SHIFT:
        return in->modulation.channel;
    default:
        return part_is_full(p) ? NULL : in->geometry.row;
    }
}

/* Those that are numbers of a dtype of tensors. */
static const uint64_t real_parts =
    ~(HAS(RNG) | HAS(MASK) | HAS(Q) | HAS(Y_SCALE) | HAS(Y_SCALES) | HAS(AMAX));

inputs inputs_make(const planish_norm *op, planish_pass pass, const planish_tensors *t) {
    const DLTensor *x = t->x ? t->x : t->dy;
    inputs in = {.op = op, .tensors = *t};
    in.geometry = geometry_make(x->ndim, x->shape, op->reduce_axes, op->affine_axes);
    if (op->column_axes && (t->column_scale || t->dcolumn_scale))
        in.column = geometry_make(x->ndim, x->shape, op->reduce_axes, op->column_axes);
    if (t->scale || t->shift || t->dscale || t->dshift)
        in.modulation = geometry_make(x->ndim, x->shape, op->reduce_axes, op->modulation_axes);
    for (part p = 0; p < PARTS; p++) {
        const DLTensor *of = *tensors_field(&in.tensors, p);
        if (!of || part_is_output(pass, p) || !(real_parts & HAS(p)))
            continue;
        in.of[p].values = zeros(element_count(of));
        tensor_read(of, in.of[p].values);
        in.of[p].place = place_of(&in, p);
    }
    in.of[WEIGHT].otherwise = 1 - op->weight_offset;
    in.of[ROW_SCALE].otherwise = in.of[COLUMN_SCALE].otherwise = 1;
    if (t->rng)
        memcpy(in.rng, (const char *)t->rng->data + t->rng->byte_offset, sizeof in.rng);
    return in;
}

void inputs_free(inputs *in) {
    for (part p = 0; p < PARTS; p++)
        free(in->of[p].values);
    geometry_free(&in->column);
    geometry_free(&in->modulation);
}

/* Whether the arithmetic is f64: a tensor is, other than those of one number for each row; of a
 * forward, other than a column_scale, which is in s already. */
static bool has_double(const inputs *in, planish_pass pass) {
    const uint64_t others = HAS(MEAN) | HAS(RSTD) | HAS(M2) | HAS(C1) | HAS(C2) | HAS(ROW_SCALE) |
                            (pass == PLANISH_FORWARD ? HAS(COLUMN_SCALE) : 0);
    for (part p = 0; p < PARTS; p++)
        if (has(in, p) && (real_parts & ~others & HAS(p)) &&
            element_of((*tensors_field((planish_tensors *)&in->tensors, p))->dtype) == F64)
            return true;
    return false;
}

/* ---- Statistics ------------------------------------------------------------------------------ */

/* Fills in mean, m2 and rstd of every row. */
static void moments(reference *r, const planish_norm *op, const real *x) {
    const geometry *g = &r->geometry;
    real **const all[] = {&r->value[MEAN], &r->value[M2], &r->value[RSTD], &r->scale[MEAN]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(*all[i]);
        *all[i] = zeros(g->rows);
    }
    /* Around the row's first element, so that a constant row has exactly its mean; and once more
     * around what that gives, for the first element may lie far from the others. */
    real *center = zeros(g->rows);
    for (int64_t e = g->elements - 1; e >= 0; e--) {
        center[g->row[e]] = x[e];
        r->scale[MEAN][g->row[e]] += x[e] * x[e] / (real)g->cols;
    }
    for (int turn = 0; turn < 2 && op->kind == PLANISH_LAYER; turn++) {
        real *sum = zeros(g->rows);
        for (int64_t e = 0; e < g->elements; e++)
            sum[g->row[e]] += x[e] - center[g->row[e]];
        for (int64_t i = 0; i < g->rows; i++)
            center[i] += sum[i] / (real)g->cols;
        free(sum);
    }
    for (int64_t i = 0; i < g->rows; i++)
        r->value[MEAN][i] = op->kind == PLANISH_LAYER ? center[i] : 0;
    free(center);
    for (int64_t e = 0; e < g->elements; e++) {
        real d = x[e] - r->value[MEAN][g->row[e]];
        r->value[M2][g->row[e]] += d * d;
    }
    for (int64_t i = 0; i < g->rows; i++) {
        r->scale[MEAN][i] = sqrtl(r->scale[MEAN][i]);
        r->value[RSTD][i] = kind_rstd(op, r->value[M2][i], g->cols);
        if (g->cols == 0)
            r->value[MEAN][i] = r->value[RSTD][i] = NAN;
    }
}

real mean_reach(element type, real mean) {
    static const real least_normal[ELEMENT_COUNT] = {
        [F32] = 0x1p-126L, [F16] = 0x1p-14L, [BF16] = 0x1p-126L, [F64] = 0x1p-1022L};
    return 4 * element_ulp(type, 1) * (fabsl(mean) + least_normal[type]);
}

/* Puts the means that backward is given in the place of the rows' own: all of them, or but where
 * they are those, rounded. */
static void take_given_means(reference *r, const inputs *in, bool all) {
    for (int64_t e = 0; has(in, MEAN) && e < r->geometry.elements; e++) {
        const real given = at(in, MEAN, e),
                   reach = mean_reach(element_of(in->tensors.mean->dtype), given);
        real *own = &r->value[MEAN][r->geometry.row[e]];
        if (all || !(fabsl(given - *own) <= reach))
            *own = given;
    }
}

/* ---- The passes ------------------------------------------------------------------------------ */

static void forward(reference *r, const inputs *in) {
    moments(r, in->op, r->value[SUM]);
    reference_apply(r, in, r->value[SUM], r->value[MEAN], r->value[RSTD]);
}

/* y of x by the statistics that are given. */
static void apply(reference *r, const inputs *in) {
    real *none = zeros(r->geometry.rows);
    const real *mean = has(in, MEAN) ? in->of[MEAN].values : none;
    reference_apply(r, in, in->of[X].values, mean, in->of[RSTD].values);
    free(none);
}

/* xhat of every element of s, by rstd as it is given. */
static real *normalized(const reference *r, const inputs *in, const real *s) {
    real *xhat = zeros(r->geometry.elements);
    for (int64_t e = 0; e < r->geometry.elements; e++)
        xhat[e] = (s[e] - r->value[MEAN][r->geometry.row[e]]) * at(in, RSTD, e);
    return xhat;
}

/* x is the sum itself, unless a gate comes before it. */
static void backward(reference *r, const inputs *in, planish_pass pass) {
    if (gate_before(in))
        reference_sum(r, in);
    real *s = gate_before(in) ? r->value[SUM] : in->of[X].values;
    moments(r, in->op, s);
    take_given_means(r, in, pass == PLANISH_BACKWARD_STATISTICS || has(in, C2));
    real *xhat = normalized(r, in, s);
    reference_backward(r, in, pass, xhat);
    free(xhat);
}

/* xhat of every element for the backward pass from y. */
static real *xhat_from_y(const inputs *in) {
    const int64_t count = in->geometry.elements;
    real *xhat = zeros(count), unit = element_ulp(element_of(in->tensors.y->dtype), 1);
    for (int64_t e = 0; e < count; e++) {
        const real w = weight_at(in, e), b = at(in, BIAS, e);
        xhat[e] = w == 0 || fabsl(w) <= unit * fabsl(b) ? 0 : (at(in, Y, e) - b) / w;
    }
    return xhat;
}

reference reference_run(const planish_norm *op, planish_pass pass, const planish_tensors *t) {
    inputs in = inputs_make(op, pass, t);
    reference r = {.geometry = in.geometry, .is_double = has_double(&in, pass), .exact_sum = true};
    for (part p = 0; p < PARTS; p++)
        r.has_stages |= part_is_stage(p) && has(&in, p);
    real *xhat = NULL;
    switch (pass) {
    case PLANISH_FORWARD:
        reference_sum(&r, &in);
        forward(&r, &in);
        break;
    case PLANISH_STATISTICS:
        moments(&r, op, in.of[X].values);
        break;
    case PLANISH_APPLY:
        apply(&r, &in);
        break;
    case PLANISH_BACKWARD:
    case PLANISH_BACKWARD_STATISTICS:
        backward(&r, &in, pass);
        break;
    case PLANISH_BACKWARD_FROM_Y:
        xhat = xhat_from_y(&in);
        reference_backward(&r, &in, pass, xhat);
        break;
    }
    free(xhat);
    inputs_free(&in);
    return r;
}

void reference_of_sum(reference *r, const planish_norm *op, const planish_tensors *t) {
    inputs in = inputs_make(op, PLANISH_FORWARD, t);
    geometry_free(&r->geometry);
    r->geometry = in.geometry;
    tensor_read(t->sum, r->value[SUM]);
    forward(r, &in);
    inputs_free(&in);
}

void reference_free(reference *r) {
    geometry_free(&r->geometry);
    for (part p = 0; p < PARTS; p++)
        free(r->value[p]), free(r->scale[p]);
    *r = (reference){0};
}
