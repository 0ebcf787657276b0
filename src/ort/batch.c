/* Batch norms: by the running statistics, or by the batch's own, which are then told. */
#include <math.h>
#include <stdlib.h>

#include "families.h"

static planish_status apply_running(norm_run *run, const planish_norm *op) {
    planish_tensors tensors = run_forward_tensors(run);
    tensors.running_mean = run_tensor(run, IN_MEAN);
    tensors.running_var = run_tensor(run, IN_VAR);
    return run_call(run, op, PLANISH_APPLY, &tensors);
}

static double number_at(const tensor_view *view, int64_t i) {
    return view->tensor.dtype.bits == 64 ? ((const double *)view->tensor.data)[i]
                                         : (double)((const float *)view->tensor.data)[i];
}

static void put_number(tensor_view *view, int64_t i, double number) {
    if (view->tensor.dtype.bits == 64)
        ((double *)view->tensor.data)[i] = number;
    else
        ((float *)view->tensor.data)[i] = (float)number;
}

/* ONNX's: the old one has the share `momentum`, and the variance is the biased one. */
static void tell_running(norm_run *run, slot from, slot to, const double *now, int64_t channels) {
    const double momentum = run->kernel->facts.momentum;
    for (int64_t i = 0; run->is_there[to] && i < channels; i++)
        put_number(&run->views[to], i,
                   momentum * number_at(&run->views[from], i) + (1 - momentum) * now[i]);
}

/* The batch's statistics in f64: so many means, behind them as many variances and rstds. */
static planish_status train(norm_run *run, const planish_norm *op, double *numbers,
                            int64_t channels, int64_t each) {
    const DLDataType f64 = {kDLFloat, 64, 1};
    tensor_view mean, second;
    double *var = numbers + channels, *rstd = var + channels;
    view_dense(&mean, numbers, f64, &channels, 1);
    view_dense(&second, var, f64, &channels, 1);
    const planish_tensors counted = {
        .struct_size = sizeof counted,
        .x = run_tensor(run, IN_X),
        .mean = &mean.tensor,
        .m2 = &second.tensor,
    };
    planish_status status = run_call(run, op, PLANISH_STATISTICS, &counted);
    if (status != PLANISH_OK)
        return status;
    for (int64_t i = 0; i < channels; i++) {
        var[i] /= (double)each;
        rstd[i] = 1 / sqrt(var[i] + op->eps);
    }
    tell_running(run, IN_MEAN, OUT_RUNNING_MEAN, numbers, channels);
    tell_running(run, IN_VAR, OUT_RUNNING_VAR, var, channels);
    second.tensor.data = rstd;
    planish_tensors tensors = run_forward_tensors(run);
    tensors.mean = &mean.tensor;
    tensors.rstd = &second.tensor;
    return run_call(run, op, PLANISH_APPLY, &tensors);
}

static planish_status run_training(norm_run *run, const planish_norm *op) {
    const tensor_view *x = &run->views[IN_X];
    const int64_t channels = x->sizes[1];
    int64_t each = 1;
    for (int i = 0; i < x->tensor.ndim; i++)
        each *= i == 1 ? 1 : x->sizes[i];
    planish_status status = run_make_output(run, OUT_RUNNING_MEAN, &channels, 1);
    if (status == PLANISH_OK)
        status = run_make_output(run, OUT_RUNNING_VAR, &channels, 1);
    if (status != PLANISH_OK)
        return status;
    run->on_heap = calloc((size_t)channels * 3 + 1, sizeof(double));
    if (!run->on_heap)
        return fail(run->error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for statistics");
    return train(run, op, run->on_heap, channels, each);
}

planish_status run_batch(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    const tensor_view *x = &run->views[IN_X];
    const int rank = x->tensor.ndim;
    if (rank < 2)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted at least 2", rank);
    planish_norm op = planish_batch_norm_op(rank, facts->eps, 0);
    op.activation = facts->activation;
    planish_status status = run_see_affine(run, op.affine_axes);
    if (status == PLANISH_OK)
        status = run_see_channels(run, IN_MEAN, "input_mean", op.affine_axes);
    if (status == PLANISH_OK)
        status = run_see_channels(run, IN_VAR, "input_var", op.affine_axes);
    if (status == PLANISH_OK)
        status = run_make_output(run, OUT_Y, x->sizes, rank);
    if (status != PLANISH_OK)
        return status;
    return facts->training ? run_training(run, &op) : apply_running(run, &op);
}
