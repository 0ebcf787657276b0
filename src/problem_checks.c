#include "problem_checks.h"
#include "devices.h"

#include <math.h>
#include <string.h>

/* Strides of 0 make tensors of any size out of little memory. Up to here no plan's count of bytes
 * leaves 64 bits. */
static const int64_t MOST_ELEMENTS = (int64_t)1 << 48;

planish_status problem_check_op(const planish_norm *op, planish_pass pass, message error) {
    if ((int)op->kind < PLANISH_LAYER || op->kind > PLANISH_L2)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->kind is %d; wanted PLANISH_LAYER, PLANISH_RMS or PLANISH_L2",
                    (int)op->kind);
    if ((int)pass < PLANISH_FORWARD || pass > PLANISH_BACKWARD_STATISTICS)
        return fail(error, PLANISH_ERROR_ARGUMENT, "pass is %d; wanted a planish_pass (0 to %d)",
                    (int)pass, PLANISH_BACKWARD_STATISTICS);
    if (op->weight_offset != 0 && op->weight_offset != 1)
        return fail(error, PLANISH_ERROR_ARGUMENT, "op->weight_offset is %d; wanted 0 or 1",
                    (int)op->weight_offset);
    if ((int)op->activation < PLANISH_IDENTITY || op->activation > PLANISH_HARDSWISH)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->activation is %d; wanted a planish_activation (0 to %d)",
                    (int)op->activation, PLANISH_HARDSWISH);
    if (op->activation != PLANISH_IDENTITY && pass == PLANISH_BACKWARD_FROM_Y)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->activation is %d; wanted PLANISH_IDENTITY for PLANISH_BACKWARD_FROM_Y: y "
                    "does not tell what went into another",
                    (int)op->activation);
    if (op->activation != PLANISH_IDENTITY && pass == PLANISH_BACKWARD_STATISTICS)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "op->activation is %d; wanted PLANISH_IDENTITY for "
                    "PLANISH_BACKWARD_STATISTICS",
                    (int)op->activation);
    if (!isfinite(op->eps))
        return fail(error, PLANISH_ERROR_ARGUMENT, "op->eps is %g; wanted a finite number",
                    op->eps);
    if (!isfinite(op->momentum))
        return fail(error, PLANISH_ERROR_ARGUMENT, "op->momentum is %g; wanted a finite number",
                    op->momentum);
    return PLANISH_OK;
}

/* What a norm by kept statistics takes in place of its own. */
static void take_running(pass_roles *roles, planish_pass pass, role_set present) {
    const role_set running = ROLE_BIT(ROLE_RUNNING_MEAN) | ROLE_BIT(ROLE_RUNNING_VAR),
                   own = ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD);
    if (pass == PLANISH_FORWARD || !(present & running) || !(roles->optional & running))
        return;
    roles->required = (roles->required & ~own) | running;
    roles->optional &= ~(ROLE_BIT(ROLE_C1) | ROLE_BIT(ROLE_C2));
}

planish_status problem_check_presence(const planish_norm *op, planish_pass pass, role_set present,
                                      message error) {
    pass_roles roles = roles_of_pass(pass, op->kind, op->activation);
    if (!kind_lacks(op->kind, ROLE_RUNNING_MEAN))
        take_running(&roles, pass, present);
    /* What the norm returned is made again for these, as for an activation. */
    if (pass == PLANISH_BACKWARD && (present & (ROLE_BIT(ROLE_SCALE) | ROLE_BIT(ROLE_GATE))))
        roles.optional |= ROLE_BIT(ROLE_BIAS);
    const role_set instead = present & ROLE_BIT(ROLE_Q) ? ROLE_BIT(ROLE_Y) : 0; /* q of y */
    const role_set missing = roles.required & ~present & ~instead;
    const role_set wrong = missing | (present & ~(roles.required | roles.optional));
    if (!wrong && (present & roles.outputs))
        return PLANISH_OK;
    if (!wrong)
        return fail(error, PLANISH_ERROR_NULL_POINTER,
                    "dx, dweight and dbias are all NULL; wanted at least one");
    const role r = first_role(wrong);
    if (missing & ROLE_BIT(r))
        return fail(error, PLANISH_ERROR_NULL_POINTER, "%s is NULL; this pass needs it",
                    role_name(r));
    if (kind_lacks(op->kind, r))
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "%s is given; wanted NULL for this kind (%s has no %s)", role_name(r),
                    kind_name(op->kind), role_name(r));
    return fail(error, PLANISH_ERROR_ARGUMENT, "%s is given; wanted NULL for this pass",
                role_name(r));
}

/* Rank, sizes, dtype and device of one tensor by itself. */
static planish_status check_tensor(problem *p, role r, const DLTensor *t, message error) {
    p->dtypes[r] = dtype_of(t->dtype, types_of(r));
    if (p->dtypes[r] == DTYPE_NONE)
        return fail(error, PLANISH_ERROR_DTYPE,
                    "%s has dtype code %d, bits %d, lanes %d; wanted %s", role_name(r),
                    t->dtype.code, t->dtype.bits, t->dtype.lanes, types_name(types_of(r)));
    if (t->ndim < 0 || t->ndim > PLANISH_MAX_NDIM)
        return fail(error, PLANISH_ERROR_SHAPE, "%s has %d axes; wanted 0 to %d", role_name(r),
                    t->ndim, PLANISH_MAX_NDIM);
    if (t->ndim && !t->shape)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "%s->shape is NULL; wanted %d sizes",
                    role_name(r), t->ndim);
    if (device_kind_of(t->device) == DEVICE_KINDS)
        return fail(error, PLANISH_ERROR_DEVICE,
                    "%s is on a device of type %d; wanted " DEVICES_WANTED, role_name(r),
                    (int)t->device.device_type);
    int64_t last = 0; /* the farthest element from the first, either way */
    bool empty = false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return fail(error, PLANISH_ERROR_SHAPE, "%s has size %lld on axis %d; wanted 0 or more",
                        role_name(r), (long long)t->shape[i], i);
        empty |= t->shape[i] == 0;
    }
    int64_t dense = 1; /* elements, axes of size 0 left out */
    for (int i = t->ndim - 1; i >= 0; i--) {
        const int64_t size = t->shape[i] ? t->shape[i] : 1;
        const int64_t stride = empty ? 0 : t->strides ? t->strides[i] : dense;
        int64_t reach;
        if (stride == INT64_MIN ||
            __builtin_mul_overflow(size - 1, stride < 0 ? -stride : stride, &reach) ||
            __builtin_add_overflow(last, reach, &last) || last > INT64_MAX / 16)
            return fail(error, PLANISH_ERROR_STRIDES,
                        "%s reaches past 2^59 elements on axis %d (size %lld, stride %lld); "
                        "wanted addresses that fit in 64 bits",
                        role_name(r), i, (long long)t->shape[i], (long long)stride);
        if (__builtin_mul_overflow(dense, size, &dense) || dense > MOST_ELEMENTS)
            return fail(error, PLANISH_ERROR_SHAPE,
                        "%s has more than 2^48 elements from axis %d on (size %lld); wanted at "
                        "most 2^48",
                        role_name(r), i, (long long)t->shape[i]);
    }
    return PLANISH_OK;
}

/* Every tensor by itself, and that it is on x's device. */
planish_status problem_check_tensors(problem *p, role model, const DLTensor *const t[ROLE_COUNT],
                                     message error) {
    const DLDevice wanted = t[model]->device;
    memset(p->dtypes, DTYPE_NONE, sizeof p->dtypes);
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const planish_status status = check_tensor(p, r, t[r], error);
        if (status)
            return status;
        if (!device_is_same(t[r]->device, wanted))
            return fail(error, PLANISH_ERROR_DEVICE,
                        "%s is on device %d:%d; wanted that of %s, %d:%d", role_name(r),
                        (int)t[r]->device.device_type, t[r]->device.device_id, role_name(model),
                        (int)wanted.device_type, wanted.device_id);
    }
    return PLANISH_OK;
}

planish_status problem_check_axes(const planish_norm *op, role model, int ndim, message error) {
    const uint64_t all = PLANISH_AXIS(ndim) - 1;
    if (!op->reduce_axes || (op->reduce_axes & ~all))
        return fail(error, PLANISH_ERROR_AXES,
                    "op->reduce_axes is 0x%llx; wanted one or more of the %d axes of %s",
                    (unsigned long long)op->reduce_axes, ndim, role_name(model));
    if (op->affine_axes & ~all)
        return fail(error, PLANISH_ERROR_AXES,
                    "op->affine_axes is 0x%llx; wanted some of the %d axes of %s",
                    (unsigned long long)op->affine_axes, ndim, role_name(model));
    if ((op->modulation_axes | op->column_axes) & ~all)
        return fail(error, PLANISH_ERROR_AXES, "op->%s is 0x%llx; wanted some of the %d axes of %s",
                    op->modulation_axes & ~all ? "modulation_axes" : "column_axes",
                    (unsigned long long)(op->modulation_axes & ~all ? op->modulation_axes
                                                                    : op->column_axes),
                    ndim, role_name(model));
    return PLANISH_OK;
}
