/*
 * The named entries for layers over channels: GroupNorm, InstanceNorm, channel LayerNorm. They only
 * say which axes the general operator runs over; GroupNorm sees its tensors with the axis of the
 * channels split, (groups, C / groups), which any strides allow.
 */
#include "entries.h"
#include "roles.h"
#include "sized.h"

planish_status planish_channel_norm_forward(planish_kind kind, double eps, const DLTensor *x,
                                            const DLTensor *weight, const DLTensor *bias,
                                            const DLTensor *y, const DLTensor *mean,
                                            const DLTensor *rstd, const planish_exec *exec) {
    const planish_norm op = planish_channel_norm_op(kind, x ? x->ndim : 0, eps);
    return planish_norm_forward(&op, x, weight, bias, y, mean, rstd, exec);
}

planish_status planish_channel_norm_backward(planish_kind kind, const DLTensor *dy,
                                             const DLTensor *x, const DLTensor *mean,
                                             const DLTensor *rstd, const DLTensor *weight,
                                             const DLTensor *dx, const DLTensor *dweight,
                                             const DLTensor *dbias, const planish_exec *exec) {
    const planish_norm op = planish_channel_norm_op(kind, x ? x->ndim : 0, 0);
    return planish_norm_backward(&op, dy, x, mean, rstd, weight, dx, dweight, dbias, exec);
}

/* ---- Splitting the channels ----------------------------------------------------------------- */

/* A tensor with one axis seen as two. */
typedef struct split_tensor {
    DLTensor tensor;
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} split_tensor;

/* All tensors of a pass. */
typedef struct split_tensors {
    split_tensor storage[ROLE_COUNT]; /* of those that have the channels */
    planish_tensors tensors;
    int32_t ndim; /* of x, or of y where there is no x */
} split_tensors;

/* Splits axis `axis` of *tensor into `groups` and the rest, and leaves NULL alone. */
static planish_status split(const DLTensor **tensor, split_tensor *to, const char *name,
                            int32_t axis, int64_t groups, message error) {
    const DLTensor *t = *tensor;
    if (!t)
        return PLANISH_OK;
    if (t->ndim <= axis || t->ndim >= PLANISH_MAX_NDIM)
        return fail(error, PLANISH_ERROR_SHAPE, "%s has %d axes; wanted %d to %d", name, t->ndim,
                    axis + 1, PLANISH_MAX_NDIM - 1);
    if (!t->shape)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "%s->shape is NULL; wanted %d sizes", name,
                    t->ndim);
    if (groups <= 0 || t->shape[axis] % groups)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "groups is %lld; wanted a divisor of the %lld channels of %s",
                    (long long)groups, (long long)t->shape[axis], name);
    const int64_t width = t->shape[axis] / groups;
    for (int32_t i = 0; i <= t->ndim; i++) {
        const int32_t from = i <= axis ? i : i - 1;
        to->shape[i] = i == axis ? groups : i == axis + 1 ? width : t->shape[from];
        to->strides[i] = t->strides ? t->strides[from] : 0;
    }
    if (__builtin_mul_overflow(to->strides[axis], width ? width : 1, &to->strides[axis]))
        return fail(error, PLANISH_ERROR_STRIDES,
                    "%s has stride %lld between channels; wanted addresses that fit in 64 bits",
                    name, (long long)t->strides[axis]);
    to->tensor = *t;
    to->tensor.ndim = t->ndim + 1;
    to->tensor.shape = to->shape;
    to->tensor.strides = t->strides ? to->strides : NULL;
    *tensor = &to->tensor;
    return PLANISH_OK;
}

static planish_status split_all(split_tensors *to, int64_t groups, const planish_tensors *given,
                                message error) {
    const DLTensor *t[ROLE_COUNT];
    tensors_by_role(given, t);
    for (role r = 0; r < ROLE_COUNT; r++) {
        const role_axes axes = axes_of(r);
        if (axes != AXES_FULL && axes != AXES_AFFINE && axes != AXES_COLUMN)
            continue;
        const int32_t axis = axes == AXES_FULL ? 1 : 0;
        planish_status status = split(&t[r], &to->storage[r], role_name(r), axis, groups, error);
        if (status)
            return status;
    }
    to->tensors = tensors_of_roles(t);
    to->ndim = t[ROLE_X] ? t[ROLE_X]->ndim : t[ROLE_Y] ? t[ROLE_Y]->ndim : 0;
    return PLANISH_OK;
}

/* ---- Entries -------------------------------------------------------------------------------- */

static planish_status see(split_tensors *seen, int64_t groups, const planish_tensors *tensors,
                          const planish_exec *exec) {
    planish_exec own;
    planish_tensors given;
    planish_status status = read_exec(&own, exec);
    if (!status)
        status = read_tensors(&given, tensors, message_of(&own));
    return status ? status : split_all(seen, groups, &given, message_of(&own));
}

planish_status planish_group_norm_run(int64_t groups, double eps, planish_activation activation,
                                      planish_pass pass, const planish_tensors *tensors,
                                      const planish_exec *exec) {
    split_tensors seen;
    planish_status status = see(&seen, groups, tensors, exec);
    if (status)
        return status;
    planish_norm op = planish_group_norm_op(seen.ndim, eps);
    op.activation = activation;
    return planish_norm_run(&op, pass, &seen.tensors, exec);
}

planish_status planish_group_norm_workspace_bytes(int64_t groups, planish_activation activation,
                                                  planish_pass pass, const planish_tensors *tensors,
                                                  size_t *bytes, const planish_exec *exec) {
    split_tensors seen;
    planish_status status = see(&seen, groups, tensors, exec);
    if (status)
        return status;
    planish_norm op = planish_group_norm_op(seen.ndim, 0);
    op.activation = activation;
    return planish_norm_workspace_bytes(&op, pass, &seen.tensors, bytes, exec);
}

planish_status planish_group_norm_forward(int64_t groups, double eps, planish_activation activation,
                                          const DLTensor *x, const DLTensor *weight,
                                          const DLTensor *bias, const DLTensor *y,
                                          const DLTensor *mean, const DLTensor *rstd,
                                          const planish_exec *exec) {
    const planish_tensors tensors = tensors_of_forward(x, weight, bias, y, mean, rstd);
    return planish_group_norm_run(groups, eps, activation, PLANISH_FORWARD, &tensors, exec);
}

planish_status planish_group_norm_backward(int64_t groups, planish_activation activation,
                                           const DLTensor *dy, const DLTensor *x,
                                           const DLTensor *mean, const DLTensor *rstd,
                                           const DLTensor *weight, const DLTensor *bias,
                                           const DLTensor *dx, const DLTensor *dweight,
                                           const DLTensor *dbias, const planish_exec *exec) {
    const planish_tensors tensors =
        tensors_of_backward(dy, x, mean, rstd, weight, bias, dx, dweight, dbias);
    return planish_group_norm_run(groups, 0, activation, PLANISH_BACKWARD, &tensors, exec);
}
