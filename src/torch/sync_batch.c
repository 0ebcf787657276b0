/*
 * The forward of SyncBatchNorm on planish: aten::batch_norm_stats, batch_norm_elemt and its .out;
 * sync_backward.c has the rest. What merges the messages of processes
 * (batch_norm_gather_stats_with_counts) stays torch's.
 *
 * Results are torch's: statistics in f32 (f64 of f64), y laid out as x. What planish does not run
 * goes to torch's kernel. For the CPU torch has none: there planish's are all that is, in any
 * layout, and what they do not take raises.
 */
#include "kernels.h"
#include "run.h"
#include "stack.h"
#include "sync_call.h"
#include "sync_numbers.h"

/* ---- batch_norm_stats ------------------------------------------------------------------------ */

static reason find_statistics(batch_habit habit, const sync_arguments *a, sync_results *made) {
    batch b = {.habit = habit};
    const reason why = sync_examine(&b, a, SYNC_STATISTICS, NULL);
    if (why != SUPPORTED)
        return why;
    SYNC_VECTOR mean = {.tensor = {NULL}};
    SYNC_VECTOR rstd = {.tensor = {NULL}};
    SYNC_VECTOR m2 = {.tensor = {NULL}};
    sync_new_vector(&b, b.statistics_dtype, &mean);
    sync_new_vector(&b, b.statistics_dtype, &rstd);
    sync_new_vector(&b, torch.f64, &m2);
    const planish_norm op = planish_batch_norm_op(b.x.ndim, a->eps, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors, .x = &b.x, .mean = &mean.view, .m2 = &m2.view};
    const planish_status status = run_norm_if_fast(&op, PLANISH_STATISTICS, &tensors, (message){0});
    if (status != PLANISH_OK)
        return refusal(status);
    made->list[0].impl = give_tensor(&mean.tensor);
    made->list[1].impl = give_tensor(&rstd.tensor);
    return sync_rstd(&b, &m2.view, a->eps, &rstd.view);
}

/* input, eps */
static void statistics(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(BATCH_NORM_STATS, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    const sync_arguments a = {.input = input, .eps = take_double(stack[1])};
    SYNC_RESULTS made = {{{NULL}}};
    const reason why = find_statistics(habit, &a, &made);
    if (sync_is_served(call, why, &made)) {
        sync_give_results(stack, &made, 2);
        return;
    }
    const returned_tensors torchs = torch_sync_statistics(habit, &a, why);
    give_returned(stack, &torchs, 2);
}

/* ---- batch_norm_elemt ------------------------------------------------------------------------ */

static reason apply_by(const batch *b, const DLTensor saved[2], const DLTensor *y, bool into) {
    const planish_norm op = planish_batch_norm_op(b->x.ndim, 0, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &b->x,
        .weight = b->weight ? &b->w : NULL,
        .bias = b->bias ? &b->b : NULL,
        .y = y,
        .mean = &saved[0],
        .rstd = &saved[1],
    };
    return sync_reason(
        (into ? run_norm_into : run_norm_if_fast)(&op, PLANISH_APPLY, &tensors, (message){0}));
}

static reason apply(batch_habit habit, const sync_arguments *a, sync_results *made) {
    batch b = {.habit = habit};
    int64_t strides[PLANISH_MAX_NDIM];
    DLTensor saved[2], y;
    const reason why = sync_examine(&b, a, SYNC_APPLY, saved);
    if (why != SUPPORTED)
        return why;
    made->list[0] = batch_new_result(&b, &b.x, true, strides, &y);
    return apply_by(&b, saved, &y, false);
}

static reason apply_out(batch_habit habit, const sync_arguments *a) {
    batch b = {.habit = habit};
    DLTensor saved[2], y;
    const reason why = sync_examine(&b, a, SYNC_APPLY, saved);
    if (why != SUPPORTED)
        return why;
    const reason other = sync_examine_full(&b, a->out, &y);
    return other == SUPPORTED ? apply_by(&b, saved, &y, true) : other;
}

/* input, weight?, bias?, mean, invstd, eps; with .out also out, which is returned. */
static void elemt(batch_habit habit, stack_value *stack, bool into) {
    INSIDE call = call_enter(BATCH_NORM_ELEMT, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_TENSOR mean = take_tensor(stack[3]);
    OWNED_TENSOR rstd = take_tensor(stack[4]);
    OWNED_TENSOR out = into ? take_tensor(stack[6]) : NULL;
    const sync_arguments a = {.input = input,
                              .weight = weight,
                              .bias = bias,
                              .mean = mean,
                              .rstd = rstd,
                              .out = out,
                              .eps = take_double(stack[5])};
    SYNC_RESULTS made = {{{NULL}}};
    const reason why = into ? apply_out(habit, &a) : apply(habit, &a, &made);
    const bool is_served = sync_is_served(call, why, &made);
    if (into) {
        if (!is_served)
            torch_sync_apply_out(habit, &a, why);
        stack[0] = give_handle(&out);
    } else if (is_served) {
        sync_give_results(stack, &made, 1);
    } else {
        const returned_tensors torchs = torch_sync_apply(habit, &a, why);
        give_returned(stack, &torchs, 1);
    }
}

/* ---- Each for the CPU and for CUDA ----------------------------------------------------------- */

void batch_norm_stats(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    statistics(HABIT_CPU, stack);
}

void batch_norm_stats_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    statistics(HABIT_CUDA, stack);
}

void batch_norm_elemt(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    elemt(HABIT_CPU, stack, false);
}

void batch_norm_elemt_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    elemt(HABIT_CUDA, stack, false);
}

void batch_norm_elemt_out(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    elemt(HABIT_CPU, stack, true);
}

void batch_norm_elemt_out_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    elemt(HABIT_CUDA, stack, true);
}
