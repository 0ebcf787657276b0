#include "problem.h"
#include "devices.h"
#include "problem_axes.h"
#include "problem_checks.h"
#include "problem_stages.h"

#include <math.h>
#include <stdlib.h>

/* ---- Shapes ---------------------------------------------------------------------------------- */

static planish_status fail_shape(message error, role r, const DLTensor *t, int axis, int64_t wanted,
                                 const char *why) {
    return fail(error, PLANISH_ERROR_SHAPE, "%s has size %lld on axis %d; wanted %lld (%s)",
                role_name(r), (long long)t->shape[axis], axis, (long long)wanted, why);
}

/*
 * Matches tensor t, which has the axes of x in `mask` only, to x's axes: its own sizes in their
 * order, or x's rank with 1 elsewhere. Writes the index of t's axis for each of x's, or -1.
 */
static planish_status match_axes(role r, const DLTensor *t, const DLTensor *x, uint64_t mask,
                                 int of_axis[], message error) {
    static const char *const reasons[] = {[AXES_FULL] = "the same shape for x, y, dy and dx",
                                          [AXES_AFFINE] = "the affine axes of x",
                                          [AXES_KEPT] = "the axes of x that are not reduced",
                                          [AXES_COLUMN] = "the axes of op->column_axes",
                                          [AXES_MODULATION] = "the axes of op->modulation_axes",
                                          [AXES_BLOCKS] = "the axes of x that are not reduced",
                                          [AXES_ONE] = "one element",
                                          [AXES_PAIR] = "two elements"};
    const char *why = reasons[axes_of(r)];
    int wanted = __builtin_popcountll(mask);
    bool packed = t->ndim == wanted;
    if (!packed && t->ndim != x->ndim)
        return fail(error, PLANISH_ERROR_SHAPE, "%s has %d axes; wanted %d (%s)", role_name(r),
                    t->ndim, wanted, why);
    int next = 0;
    for (int i = 0; i < x->ndim; i++) {
        bool varies = mask >> i & 1;
        of_axis[i] = varies ? (packed ? next++ : i) : -1;
        if (varies && t->shape[of_axis[i]] != x->shape[i])
            return fail_shape(error, r, t, of_axis[i], x->shape[i], why);
        if (!varies && !packed && t->shape[i] != 1)
            return fail_shape(error, r, t, i, 1, why);
    }
    return PLANISH_OK;
}

/* An output's elements must be apart: with its axes by rising stride, each must step over the
 * extent of those before it. */
static bool overlaps_itself(const DLTensor *t, const int64_t strides[]) {
    int64_t extent = 0; /* of the axes taken so far, minus 1 */
    unsigned left = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return false;
        if (t->shape[i] > 1)
            left |= 1u << i;
    }
    while (left) {
        int smallest = -1;
        for (int i = 0; i < t->ndim; i++)
            if ((left >> i & 1) && (smallest < 0 || llabs(strides[i]) < llabs(strides[smallest])))
                smallest = i;
        if (llabs(strides[smallest]) <= extent)
            return true;
        extent += (t->shape[smallest] - 1) * llabs(strides[smallest]);
        left &= ~(1u << smallest);
    }
    return false;
}

/* ---- Axes ------------------------------------------------------------------------------------ */

static void dense_strides(const DLTensor *t, int64_t strides[]) {
    int64_t dense = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        strides[i] = t->strides ? t->strides[i] : dense;
        dense *= t->shape[i] ? t->shape[i] : 1;
    }
}

static void widen(reach *found, const problem *p, const axis *a, role r) {
    const int64_t span = (a->size - 1) * axis_stride(p, a, r);
    *(span < 0 ? &found->low : &found->high) += span;
}

reach problem_reach(const problem *p, role r, int skip_kept) {
    reach found = {0, 1};
    for (int i = 0; i < p->kept_count; i++)
        if (i != skip_kept)
            widen(&found, p, &p->kept[i], r);
    for (int i = 0; i < p->reduced_count; i++)
        widen(&found, p, &p->reduced[i], r);
    if (r == ROLE_RNG)
        found.high++;
    if (r == ROLE_Y_SCALES) {
        const int64_t span = (p->stages.blocks - 1) * p->stages.scale_stride;
        *(span < 0 ? &found.low : &found.high) += span;
    }
    const int bytes = dtype_bytes(p->dtypes[r]);
    return (reach){found.low * bytes, found.high * bytes};
}

/* A tensor as it is held against x: its axis for each of x's, or -1, and its strides. */
typedef struct matched {
    int of_axis[PLANISH_MAX_NDIM];
    int64_t strides[PLANISH_MAX_NDIM];
} matched;

/* By role_axes: which of x's axes such tensors have. */
typedef uint64_t axes_masks[AXES_PAIR + 1];

static void set_masks(axes_masks masks, const problem *p, const planish_norm *op, int ndim) {
    const uint64_t all = PLANISH_AXIS(ndim) - 1, kept = all & ~op->reduce_axes;
    const uint64_t column = op->column_axes ? op->column_axes : op->affine_axes;
    masks[AXES_FULL] = all;
    masks[AXES_AFFINE] = p->present & AFFINE_ROLES ? op->affine_axes : 0;
    masks[AXES_KEPT] = masks[AXES_BLOCKS] = kept;
    masks[AXES_COLUMN] = has_column(p) ? column : 0;
    masks[AXES_MODULATION] = has_modulation(p) ? op->modulation_axes : 0;
    masks[AXES_ONE] = masks[AXES_PAIR] = 0;
}

static planish_status match_tensors(problem *p, const DLTensor *x,
                                    const DLTensor *const t[ROLE_COUNT], const axes_masks masks,
                                    matched m[ROLE_COUNT], message error) {
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        dense_strides(t[r], m[r].strides);
        const planish_status status =
            axes_of(r) >= AXES_BLOCKS
                ? problem_match_stage(p, r, t[r], x, masks[AXES_BLOCKS], m[r].strides, m[r].of_axis,
                                      error)
                : match_axes(r, t[r], x, masks[axes_of(r)], m[r].of_axis, error);
        if (status)
            return status;
        if ((p->outputs & ROLE_BIT(r)) && overlaps_itself(t[r], m[r].strides))
            return fail(error, PLANISH_ERROR_STRIDES,
                        "%s is an output and its strides make elements share memory; wanted "
                        "strides that keep them apart",
                        role_name(r));
    }
    return PLANISH_OK;
}

/* What tensors have along x's axis i. */
static void set_row(problem *p, int64_t *row, int i, int64_t index_step,
                    const matched m[ROLE_COUNT]) {
    row[PLACE_OF_NONE] = 0;
    row[PLACE_OF_INDEX] = index_step;
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const int own = m[r].of_axis[i];
        row[p->place[r]] = own < 0 ? 0 : m[r].strides[own];
    }
}

/* Once all axes are there: the rows of what tensors touch. */
static void set_reaches(problem *p) {
    int64_t *low = &p->strides[p->stride_count], *high = low + p->places;
    p->stride_count += 2 * p->places;
    if (!p->rows || !p->cols) /* an empty tensor may have strides of any size */
        return;
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const reach found = problem_reach(p, r, -1);
        low[p->place[r]] = found.low;
        high[p->place[r]] = found.high;
    }
}

static void make_axes(problem *p, const planish_norm *op, const DLTensor *x, const axes_masks masks,
                      const matched m[ROLE_COUNT]) {
    const uint64_t affine = masks[AXES_AFFINE], column = masks[AXES_COLUMN],
                   modulation = masks[AXES_MODULATION];
    /* Where nothing is dropped the steps are all 0, and no axis is kept apart for theirs. */
    int64_t index_steps[PLANISH_MAX_NDIM] = {0};
    int64_t index_step = p->stages.dropout_p > 0;
    for (int i = x->ndim - 1; index_step && i >= 0; i--) {
        index_steps[i] = index_step;
        index_step *= x->shape[i];
    }
    axes_begin(p);
    p->affine = p->stages.columns = p->stages.modulations = 1;
    for (int i = 0; i < x->ndim; i++) {
        if (affine >> i & 1)
            p->affine *= x->shape[i];
        if (column >> i & 1)
            p->stages.columns *= x->shape[i];
        if (modulation >> i & 1)
            p->stages.modulations *= x->shape[i];
        if (x->shape[i] == 1)
            continue;
        const axis next = {.size = x->shape[i],
                           .at = p->stride_count,
                           .affine = affine >> i & 1,
                           .column = column >> i & 1,
                           .modulated = modulation >> i & 1};
        set_row(p, &p->strides[next.at], i, index_steps[i], m);
        const bool reduced = op->reduce_axes >> i & 1;
        if (axes_append(p, reduced ? p->reduced : p->kept,
                        reduced ? &p->reduced_count : &p->kept_count, &next))
            p->stride_count += p->places;
    }
    p->first_reduced = op->reduce_axes & 1 && op->reduce_axes != PLANISH_AXIS(x->ndim) - 1;
    /* Both lists have at least one axis, so that nobody below needs a special case. */
    const axis one = {.size = 1};
    if (!p->kept_count)
        p->kept[p->kept_count++] = one;
    if (!p->reduced_count)
        p->reduced[p->reduced_count++] = one;
    p->rows = axes_size(p->kept, p->kept_count);
    p->cols = axes_size(p->reduced, p->reduced_count);
    set_reaches(p);
}

/* The least rstd that a row shorter than eps may be saved with: it is 1 / eps to a few ULP of its
 * own dtype, or of the arithmetic. */
static double clamped_of(const problem *p, double eps) {
    static const double ulps[] = {[DTYPE_F32] = 0x1p-23,
                                  [DTYPE_F16] = 0x1p-10,
                                  [DTYPE_BF16] = 0x1p-7,
                                  [DTYPE_F64] = 0x1p-52,
                                  [DTYPE_NONE] = 0};
    const double saved = ulps[p->dtypes[ROLE_RSTD]] / 2;
    const double used = 4 * ulps[problem_is_double(p) ? DTYPE_F64 : DTYPE_F32];
    return eps > 0 ? 1 / eps * (1 - (saved > used ? saved : used)) : NAN;
}

static norm_rule rule_of(const problem *p, const planish_norm *op) {
    if (op->kind == PLANISH_L2)
        return (norm_rule){1, 1, 0, op->eps, clamped_of(p, op->eps)};
    return (norm_rule){(double)p->cols, 1.0 / (double)p->cols, op->eps, -INFINITY, NAN};
}

planish_status problem_make(problem *p, const planish_norm *op, planish_pass pass,
                            const planish_tensors *tensors, message error) {
    const DLTensor *t[ROLE_COUNT];
    planish_status status = problem_check_op(op, pass, error);
    if (status)
        return status;
    tensors_by_role(tensors, t);
    p->present = 0;
    for (int r = 0; r < ROLE_COUNT; r++)
        p->present |= (role_set)(t[r] != NULL) << r;
    if ((status = problem_check_presence(op, pass, p->present, error)))
        return status;

    const role model = t[ROLE_X] ? ROLE_X : ROLE_Y; /* every other shape is held against it */
    const DLTensor *x = t[model];
    p->pass = pass;
    p->kind = op->kind == PLANISH_L2 ? PLANISH_RMS : op->kind;
    p->activation = pass == PLANISH_STATISTICS ? PLANISH_IDENTITY : op->activation;
    p->weight_offset = op->weight_offset;
    p->momentum = op->momentum;
    p->device = x->device;
    p->outputs = roles_of_pass(pass, op->kind, op->activation).outputs;
    status = problem_check_tensors(p, model, t, error);
    if (!status)
        status = problem_check_stages(p, op, error);
    if (!status)
        status = problem_check_axes(op, model, x->ndim, error);
    if (status)
        return status;
    axes_masks masks;
    matched m[ROLE_COUNT];
    set_masks(masks, p, op, x->ndim);
    if ((status = match_tensors(p, x, t, masks, m, error)))
        return status;
    make_axes(p, op, x, masks, m);
    p->rule = rule_of(p, op);
    return PLANISH_OK;
}
