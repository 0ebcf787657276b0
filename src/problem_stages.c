#include "problem_stages.h"

#include <math.h>

/* ---- The operator's fields ------------------------------------------------------------------- */

static planish_status check_fields(const planish_norm *op, message error) {
    if (op->gate != PLANISH_GATE_AFTER && op->gate != PLANISH_GATE_BEFORE)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->gate is %d; wanted PLANISH_GATE_AFTER or PLANISH_GATE_BEFORE",
                    (int)op->gate);
    if (op->rounding != PLANISH_ROUND_ONCE && op->rounding != PLANISH_ROUND_XHAT)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->rounding is %d; wanted PLANISH_ROUND_ONCE or PLANISH_ROUND_XHAT",
                    (int)op->rounding);
    if (op->reserved)
        return fail(error, PLANISH_ERROR_ARGUMENT, "op->reserved is %d; wanted 0",
                    (int)op->reserved);
    if (!(op->dropout_p >= 0 && op->dropout_p < 1))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->dropout_p is %g; wanted a probability of at least 0 and below 1",
                    op->dropout_p);
    if (op->scale_block < 0)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->scale_block is %lld; wanted the columns under one scale, or 0: all",
                    (long long)op->scale_block);
    if (op->scale_format != PLANISH_SCALE_FLOAT && op->scale_format != PLANISH_SCALE_POWER_OF_TWO)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->scale_format is %d; wanted PLANISH_SCALE_FLOAT or "
                    "PLANISH_SCALE_POWER_OF_TWO",
                    (int)op->scale_format);
    if (!(op->scale_least >= 0 && isfinite(op->scale_least)))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->scale_least is %g; wanted a finite number that is not negative",
                    op->scale_least);
    if (!(op->scale_most >= 0 && isfinite(op->scale_most)))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->scale_most is %g; wanted a finite number that is not negative",
                    op->scale_most);
    return PLANISH_OK;
}

/* ---- Tensors that want each other ------------------------------------------------------------ */

static planish_status check_together(const problem *p, message error) {
    static const struct {
        role one, other;
    } wanted[] = {{ROLE_DGATE, ROLE_GATE},
                  {ROLE_DSCALE, ROLE_SCALE},
                  {ROLE_DCOLUMN_SCALE, ROLE_COLUMN_SCALE},
                  {ROLE_DCOLUMN_SCALE, ROLE_BRANCH},
                  {ROLE_BRANCH, ROLE_DCOLUMN_SCALE},
                  {ROLE_Y_SCALE, ROLE_Q},
                  {ROLE_Y_SCALES, ROLE_Q},
                  {ROLE_C1, ROLE_C2}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (has(p, wanted[i].one) && !has(p, wanted[i].other))
            return fail(error, PLANISH_ERROR_NULL_POINTER, "%s is NULL; wanted it beside %s",
                        role_name(wanted[i].other), role_name(wanted[i].one));
    if (has(p, ROLE_Q) && !has(p, ROLE_Y_SCALE) && !has(p, ROLE_Y_SCALES))
        return fail(error, PLANISH_ERROR_NULL_POINTER,
                    "y_scale and y_scales are NULL; wanted one of them beside q");
    if (has(p, ROLE_Y_SCALE) && has(p, ROLE_Y_SCALES))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "y_scale and y_scales are given; wanted one of them beside q");
    if (has(p, ROLE_C2) && !has(p, ROLE_C1) && p->kind == PLANISH_LAYER)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "c1 is NULL; wanted it beside c2");
    if (problem_masks_by_y(p) &&
        (p->activation != PLANISH_RELU ||
         (has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_AFTER) || has(p, ROLE_ADDEND)))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "y is given; wanted NULL in PLANISH_BACKWARD but for a PLANISH_RELU without a "
                    "gate behind it, and then addend NULL");
    if (has(p, ROLE_RESIDUAL) && has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_BEFORE)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "residual is given; wanted NULL with a gate before the norm");
    return PLANISH_OK;
}

static planish_status check_dropout(const problem *p, const planish_norm *op, message error) {
    if (op->dropout_p > 0 && !has(p, ROLE_RNG))
        return fail(error, PLANISH_ERROR_NULL_POINTER,
                    "rng is NULL; wanted a seed and an offset for op->dropout_p %g", op->dropout_p);
    return PLANISH_OK;
}

/* ---- Fills and checks ------------------------------------------------------------------------ */

static bool has_fields(const planish_norm *op) {
    return op->rounding || op->dropout_p > 0 || op->gate || op->scale_block || op->scale_format ||
           op->scale_least > 0 || op->scale_most > 0 || op->modulation_axes || op->column_axes;
}

planish_status problem_check_stages(problem *p, const planish_norm *op, message error) {
    p->stages = (stages){.sum = DTYPE_NONE, .blocks = 1};
    planish_status status = check_fields(op, error);
    if (status)
        return status;
    if (p->pass != PLANISH_FORWARD && p->pass != PLANISH_BACKWARD) {
        /* Their tensors are refused there already. */
        return PLANISH_OK;
    }
    if (!(p->present & STAGE_ROLES) && !has_fields(op) && !problem_masks_by_y(p))
        return PLANISH_OK;
    stages *s = &p->stages;
    s->gate = has(p, ROLE_GATE) ? op->gate : PLANISH_GATE_AFTER;
    /* The backward takes it for the identity, and beyond 16 bits it changes nothing. */
    if (p->pass == PLANISH_FORWARD && dtype_bytes(p->dtypes[ROLE_X]) == 2)
        s->rounding = op->rounding;
    s->dropout_p = op->dropout_p;
    s->sum = has(p, ROLE_SUM)        ? p->dtypes[ROLE_SUM]
             : has(p, ROLE_RESIDUAL) ? p->dtypes[ROLE_RESIDUAL]
                                     : DTYPE_NONE;
    s->format = op->scale_format;
    s->scale_least = op->scale_least;
    s->scale_most = op->scale_most;
    s->block = op->scale_block;
    if (has(p, ROLE_Y_SCALES) && p->dtypes[ROLE_Y_SCALES] == DTYPE_E8M0 &&
        op->scale_format != PLANISH_SCALE_POWER_OF_TWO)
        return fail(error, PLANISH_ERROR_DTYPE,
                    "y_scales is f8_e8m0; wanted f32, or op->scale_format "
                    "PLANISH_SCALE_POWER_OF_TWO");
    status = check_dropout(p, op, error);
    return status ? status : check_together(p, error);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static planish_status match_count(role r, const DLTensor *t, int64_t wanted, message error) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    if (count != wanted || t->ndim > 1)
        return fail(error, PLANISH_ERROR_SHAPE,
                    "%s has %lld elements on %d axes; wanted %lld on %s", role_name(r),
                    (long long)count, t->ndim, (long long)wanted,
                    wanted == 1 ? "one axis or none" : "one axis");
    if (wanted > 1 && t->strides && t->strides[0] != 1)
        return fail(error, PLANISH_ERROR_STRIDES, "%s has stride %lld; wanted 1", role_name(r),
                    (long long)t->strides[0]);
    return PLANISH_OK;
}

planish_status problem_match_stage(problem *p, role r, const DLTensor *t, const DLTensor *x,
                                   uint64_t kept, const int64_t strides[], int of_axis[],
                                   message error) {
    for (int i = 0; i < x->ndim; i++)
        of_axis[i] = -1;
    if (axes_of(r) != AXES_BLOCKS)
        return match_count(r, t, axes_of(r) == AXES_PAIR ? 2 : 1, error);
    int64_t cols = 1;
    for (int i = 0; i < x->ndim; i++)
        cols *= kept >> i & 1 ? 1 : x->shape[i];
    stages *s = &p->stages;
    const int last = s->block ? 1 : 0; /* axes of blocks */
    if (!s->block)
        s->block = cols > 0 ? cols : 1;
    s->blocks = cols ? (cols + s->block - 1) / s->block : 1;
    const int packed = __builtin_popcountll(kept) + last;
    if (t->ndim != packed && (last || t->ndim != x->ndim))
        return fail(error, PLANISH_ERROR_SHAPE, "%s has %d axes; wanted %d (%s)", role_name(r),
                    t->ndim, packed,
                    last ? "the axes of x that are not reduced, and the blocks of a row"
                         : "the axes of x that are not reduced");
    const bool whole = t->ndim != packed;
    int next = 0;
    for (int i = 0; i < x->ndim; i++) {
        const bool varies = kept >> i & 1;
        if (varies)
            of_axis[i] = whole ? i : next++;
        const int64_t found = varies ? t->shape[of_axis[i]] : whole ? t->shape[i] : 1;
        const int64_t wanted = varies ? x->shape[i] : 1;
        if (found != wanted)
            return fail(error, PLANISH_ERROR_SHAPE,
                        "%s has size %lld on axis %d; wanted %lld (the axes of x that are not "
                        "reduced)",
                        role_name(r), (long long)found, varies ? of_axis[i] : i, (long long)wanted);
    }
    if (last && t->shape[next] != s->blocks)
        return fail(error, PLANISH_ERROR_SHAPE,
                    "%s has size %lld on axis %d; wanted %lld (blocks of %lld of %lld columns)",
                    role_name(r), (long long)t->shape[next], next, (long long)s->blocks,
                    (long long)s->block, (long long)cols);
    s->scale_stride = last ? strides[next] : 0;
    return PLANISH_OK;
}
