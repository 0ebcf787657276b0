/*
 * The backward of SyncBatchNorm on planish: aten::batch_norm_backward_reduce, the sums of one
 * process, and batch_norm_backward_elemt, dx by the sums of all. See sync_batch.c.
 */
#include "kernels.h"
#include "run.h"
#include "stack.h"
#include "sync_call.h"
#include "sync_numbers.h"

/* c10::ScalarType of counts. */
enum { TORCH_I32 = 3 };

/* ---- batch_norm_backward_reduce -------------------------------------------------------------- */

/* A copy of a vector of sums in the dtype of the parameters. */
static new_tensor gradient_of(const batch *b, sync_vector *sum) {
    SYNC_VECTOR made = {.tensor = {NULL}};
    sync_new_vector(b, b->parameter_dtype, &made);
    torch_check(torch.copy(handle_of(&made.tensor), handle_of(&sum->tensor), 0));
    return (new_tensor){give_tensor(&made.tensor)};
}

/* dweight is the sum of dy * (x - mean) times rstd, and dbias that of dy. */
static void give_sums(const batch *b, const sync_arguments *a, sync_vector *dweight,
                      sync_vector *dbias, sync_results *made) {
    const bool *wanted = a->mask.wanted;
    const bool is_one = b->parameter_dtype == b->statistics_dtype;
    if (wanted[0])
        made->list[1] = sync_quotient(handle_of(&dweight->tensor), a->rstd);
    if (wanted[1] && is_one)
        made->list[2].impl = give_tensor(&dweight->tensor);
    else if (wanted[1])
        made->list[2] = gradient_of(b, dweight);
    if (wanted[2] && (wanted[0] || !is_one))
        made->list[3] = gradient_of(b, dbias);
    if (wanted[0] || (wanted[2] && is_one))
        made->list[wanted[0] ? 0 : 3].impl = give_tensor(&dbias->tensor);
}

static reason find_sums(batch_habit habit, const sync_arguments *a, sync_results *made) {
    batch b = {.habit = habit};
    DLTensor saved[2], dy;
    const bool *wanted = a->mask.wanted;
    reason why = sync_examine(&b, a, SYNC_SUMS, saved);
    if (why == SUPPORTED)
        why = sync_examine_full(&b, a->dy, &dy);
    if (why == SUPPORTED && !a->weight && (wanted[1] || wanted[2]))
        why = ODD_GRADIENT;
    if (why != SUPPORTED || !(wanted[0] || wanted[1] || wanted[2]))
        return why;
    SYNC_VECTOR dweight = {.tensor = {NULL}};
    SYNC_VECTOR dbias = {.tensor = {NULL}};
    sync_new_vector(&b, b.statistics_dtype, &dweight);
    sync_new_vector(&b, b.statistics_dtype, &dbias);
    const planish_norm op = planish_batch_norm_op(b.x.ndim, 0, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &b.x,
        .mean = &saved[0],
        .rstd = &saved[1],
        .dy = &dy,
        .dweight = &dweight.view,
        .dbias = &dbias.view,
    };
    const planish_status status = run_norm_if_fast(&op, PLANISH_BACKWARD, &tensors, (message){0});
    if (status != PLANISH_OK)
        return refusal(status);
    give_sums(&b, a, &dweight, &dbias, made);
    return SUPPORTED;
}

/* grad_out, input, mean, invstd, weight?, input_g, weight_g, bias_g */
static void reduce(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(BATCH_NORM_BACKWARD_REDUCE, BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR mean = take_tensor(stack[2]);
    OWNED_TENSOR rstd = take_tensor(stack[3]);
    OWNED_TENSOR weight = take_optional_tensor(stack[4]);
    sync_arguments a = {
        .dy = grad_out, .input = input, .mean = mean, .rstd = rstd, .weight = weight};
    for (int i = 0; i < 3; i++)
        a.mask.wanted[i] = take_bool(stack[5 + i]);
    SYNC_RESULTS made = {{{NULL}}};
    const reason why = find_sums(habit, &a, &made);
    if (sync_is_served(call, why, &made)) {
        sync_give_results(stack, &made, 4);
        return;
    }
    const returned_four torchs = torch_sync_sums(habit, &a, why);
    for (int i = 0; i < 4; i++)
        made.list[i].impl = torchs.impl[3 - i];
    sync_give_results(stack, &made, 4);
}

/* ---- batch_norm_backward_elemt --------------------------------------------------------------- */

/* The sums of all processes, and how many values each had. */
static reason examine_sums(const batch *b, const sync_arguments *a) {
    DLTensor sums[2], count;
    int32_t dtype = 0;
    const reason why = batch_examine_statistics(b, a->sum_dy, a->sum_dy_xmu, sums);
    if (why != SUPPORTED)
        return why;
    torch_check(torch.get_dtype(a->count, &dtype));
    if (!view_description(a->count, &count) || view_elements(&count) == 0)
        return WRONG_SHAPE;
    if (!same_device(&b->x, &count))
        return OTHER_DEVICE;
    /* torch reads the weight as it reads the statistics. */
    const bool weight_fits = !b->weight || view_dtype(&b->w) == b->statistics_dtype;
    return dtype == TORCH_I32 && weight_fits ? SUPPORTED : MIXED_DTYPES;
}

static reason find_gradient(batch_habit habit, const sync_arguments *a, sync_results *made) {
    batch b = {.habit = habit};
    int64_t strides[PLANISH_MAX_NDIM];
    DLTensor saved[2], dy, dx;
    reason why = sync_examine(&b, a, SYNC_GRADIENT, saved);
    if (why == SUPPORTED)
        why = sync_examine_full(&b, a->dy, &dy);
    if (why == SUPPORTED)
        why = examine_sums(&b, a);
    if (why != SUPPORTED)
        return why;
    SYNC_VECTOR c1 = {.tensor = {NULL}};
    SYNC_VECTOR c2 = {.tensor = {NULL}};
    const sync_sums sums = {.sum_dy = a->sum_dy,
                            .sum_dy_xmu = a->sum_dy_xmu,
                            .weight = a->weight,
                            .count = a->count,
                            .rstd = saved[1]};
    why = sync_means(&b, &sums, &c1, &c2);
    if (why != SUPPORTED)
        return why;
    made->list[0] = batch_new_result(&b, &b.x, true, strides, &dx);
    const planish_norm op = planish_batch_norm_op(b.x.ndim, 0, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &b.x,
        .weight = b.weight ? &b.w : NULL,
        .mean = &saved[0],
        .rstd = &saved[1],
        .dy = &dy,
        .dx = &dx,
        .c1 = &c1.view,
        .c2 = &c2.view,
    };
    return sync_reason(run_norm_if_fast(&op, PLANISH_BACKWARD, &tensors, (message){0}));
}

/* grad_out, input, mean, invstd, weight?, sum_dy, sum_dy_xmu, count */
static void backward_elemt(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(BATCH_NORM_BACKWARD_ELEMT, BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR mean = take_tensor(stack[2]);
    OWNED_TENSOR rstd = take_tensor(stack[3]);
    OWNED_TENSOR weight = take_optional_tensor(stack[4]);
    OWNED_TENSOR sum_dy = take_tensor(stack[5]);
    OWNED_TENSOR sum_dy_xmu = take_tensor(stack[6]);
    OWNED_TENSOR count = take_tensor(stack[7]);
    const sync_arguments a = {.dy = grad_out,
                              .input = input,
                              .mean = mean,
                              .rstd = rstd,
                              .weight = weight,
                              .sum_dy = sum_dy,
                              .sum_dy_xmu = sum_dy_xmu,
                              .count = count};
    SYNC_RESULTS made = {{{NULL}}};
    const reason why = find_gradient(habit, &a, &made);
    if (sync_is_served(call, why, &made)) {
        sync_give_results(stack, &made, 1);
        return;
    }
    const returned_tensors torchs = torch_sync_gradient(habit, &a, why);
    give_returned(stack, &torchs, 1);
}

/* ---- Each for the CPU and for CUDA ----------------------------------------------------------- */

void batch_norm_backward_reduce(stack_value *stack, uint64_t argument_count,
                                uint64_t return_count) {
    (void)argument_count, (void)return_count;
    reduce(HABIT_CPU, stack);
}

void batch_norm_backward_reduce_cuda(stack_value *stack, uint64_t argument_count,
                                     uint64_t return_count) {
    (void)argument_count, (void)return_count;
    reduce(HABIT_CUDA, stack);
}

void batch_norm_backward_elemt(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    backward_elemt(HABIT_CPU, stack);
}

void batch_norm_backward_elemt_cuda(stack_value *stack, uint64_t argument_count,
                                    uint64_t return_count) {
    (void)argument_count, (void)return_count;
    backward_elemt(HABIT_CUDA, stack);
}
