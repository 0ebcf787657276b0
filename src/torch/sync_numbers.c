/*
 * Numbers of channels; see sync_numbers.h.
 */
#include "sync_numbers.h"

#include <math.h>

#include "run.h"
#include "stack.h"
#include "sync_call.h"

/* A vector as x of one sample. */
typedef struct one_sample {
    int64_t shape[2], strides[2];
    DLTensor view;
} one_sample;

static const DLTensor *as_sample(const DLTensor *vector, one_sample *s) {
    const int64_t channels = vector->shape[0], stride = vector->strides[0];
    s->shape[0] = 1;
    s->shape[1] = channels;
    s->strides[0] = channels * stride;
    s->strides[1] = stride;
    s->view = *vector;
    s->view.ndim = 2;
    s->view.shape = s->shape;
    s->view.strides = s->strides;
    return &s->view;
}

void sync_new_vector(const batch *b, int32_t dtype, sync_vector *made) {
    made->size = b->channels;
    made->tensor = new_dense_tensor(&b->x, 1, &made->size, dtype, &made->stride, &made->view);
}

static void fill(sync_vector *v, double value) {
    if (v->view.device.device_type == kDLCUDA) {
        torch_check(torch.cuda_fill(handle_of(&v->tensor), value));
        return;
    }
    for (int64_t i = 0; i < v->size; i++)
        if (view_is_double(&v->view))
            ((double *)v->view.data)[i] = value;
        else
            ((float *)v->view.data)[i] = (float)value;
}

/* sqrt(n) / sqrt(m2 + n * eps): the gradient of a norm of one sample whose running variance is m2,
 * where the one that comes in is sqrt(n). */
reason sync_rstd(const batch *b, const DLTensor *m2, double eps, const DLTensor *rstd) {
    const double n = (double)view_elements(&b->x) / (double)b->channels;
    const planish_norm op = planish_batch_norm_op(2, n * eps, 0);
    SYNC_VECTOR roots = {.tensor = {NULL}};
    sync_new_vector(b, b->statistics_dtype, &roots);
    fill(&roots, sqrt(n));
    one_sample dy, variance, dx;
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = as_sample(&roots.view, &dy),
        .dy = &dy.view,
        .running_mean = as_sample(m2, &variance),
        .running_var = &variance.view,
        .dx = as_sample(rstd, &dx),
    };
    return sync_reason(run_norm(&op, PLANISH_BACKWARD, &tensors, (message){0}));
}

/* An operator of torch's of one or two tensors; the second may be NULL: None. */
static new_tensor call(const char *name, const char *overload, tensor_handle first,
                       tensor_handle second) {
    /* The dispatcher owns what is on the stack, so it gets references of its own. */
    stack_value stack[2] = {0};
    OWNED_TENSOR one = NULL;
    OWNED_TENSOR other = NULL;
    torch_check(torch.new_handle(first, &one));
    if (second)
        torch_check(torch.new_handle(second, &other));
    stack[0] = give_handle(&one);
    stack[1] = give_handle(&other);
    torch_check(torch.call_dispatcher(name, overload, stack, TORCH_BUILD_VERSION));
    OWNED_TENSOR made = take_tensor(stack[0]);
    new_tensor found = {*(void **)made};
    *(void **)made = torch.undefined;
    return found;
}

new_tensor sync_quotient(tensor_handle numerator, tensor_handle denominator) {
    return call("aten::div", "Tensor", numerator, denominator);
}

/* y = x * factor * weight, of each channel; weight may be NULL: a norm of one sample by the rstd
 * that it is given. */
static reason multiply(const DLTensor *x, const DLTensor *factor, const DLTensor *weight,
                       const DLTensor *y) {
    planish_norm op = planish_batch_norm_op(2, 0, 0);
    op.kind = PLANISH_RMS;
    one_sample given, result, scale;
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = as_sample(x, &given),
        .weight = weight,
        .y = as_sample(y, &result),
        .rstd = as_sample(factor, &scale),
    };
    return sync_reason(run_norm(&op, PLANISH_APPLY, &tensors, (message){0}));
}

static void see(sync_vector *v) {
    v->view = view_input(handle_of(&v->tensor));
}

/* n: `count` itself where that is the vector of one process. */
static tensor_handle total_of(tensor_handle count, new_tensor *made) {
    DLTensor view;
    if (view_description(count, &view) && view.ndim == 1 && view.shape[0] == 1)
        return count;
    *made = call("aten::sum", "", count, NULL);
    return handle_of(made);
}

reason sync_means(const batch *b, const sync_sums *s, sync_vector *c1, sync_vector *c2) {
    NEW_TENSOR sum = {NULL};
    const tensor_handle n = total_of(s->count, &sum);
    sync_new_vector(b, b->statistics_dtype, c2);
    SYNC_VECTOR part = {.tensor = {NULL}};
    if (!s->weight) {
        c1->tensor = sync_quotient(s->sum_dy, n);
        see(c1);
        part.tensor = sync_quotient(s->sum_dy_xmu, n);
        see(&part);
        return multiply(&part.view, &s->rstd, NULL, &c2->view);
    }
    part.tensor = sync_quotient(s->weight, n);
    see(&part);
    sync_new_vector(b, b->statistics_dtype, c1);
    const DLTensor sum_dy = view_input(s->sum_dy), sum_dy_xmu = view_input(s->sum_dy_xmu);
    const reason why = multiply(&sum_dy, &part.view, NULL, &c1->view);
    return why == SUPPORTED ? multiply(&sum_dy_xmu, &s->rstd, &part.view, &c2->view) : why;
}
