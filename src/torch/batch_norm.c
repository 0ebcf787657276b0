/*
 * The forwards of batch norm on planish: aten::native_batch_norm, _native_batch_norm_legit and its
 * no_stats, _batch_norm_with_update and cudnn_batch_norm. What torch makes of these
 * (_native_batch_norm_legit_functional, _native_batch_norm_legit_no_training) ends in one of them.
 *
 * Results are torch's: y laid out as x or dense, the statistics saved by the channel in the dtype
 * and of the size that this operator saves on this device; the running statistics are written where
 * they lie, and as in torch's kernels no version counts it. What torch refuses, and what planish
 * does not run, goes to torch's kernel.
 */
#include "batch_faster.h"
#include "batch_views.h"
#include "kernels.h"
#include "own_call.h"
#include "run.h"
#include "stack.h"

/* What a forward returns, in its order. */
typedef struct results {
    new_tensor y, mean, rstd;
} results;

static void free_results(results *r) {
    free_new_tensor(&r->y);
    free_new_tensor(&r->mean);
    free_new_tensor(&r->rstd);
}

#define RESULTS __attribute__((cleanup(free_results))) results

/* Out of training nothing is saved, as on the CPU and by cuDNN; all backwards take that. */
static void make_statistics(const batch *b, bool training, results *made, channel_view views[2]) {
    const int64_t saved = training ? b->channels : 0;
    if (b->own) {
        new_tensor both[2] = {{NULL}, {NULL}};
        batch_new_own_statistics(b, saved, both, views);
        made->mean = both[0];
        made->rstd = both[1];
        return;
    }
    made->mean = batch_new_channels(b, saved, b->statistics_dtype, &views[0]);
    made->rstd = batch_new_channels(b, saved, b->statistics_dtype, &views[1]);
}

static reason forward_on_planish(batch *b, const batch_arguments *a, results *made) {
    int64_t strides[PLANISH_MAX_NDIM];
    channel_view saved[2];
    DLTensor y;
    if (b->habit == HABIT_CPU && !b->own && batch_torch_is_faster(b, NULL, a->training))
        return TORCH_IS_FASTER;
    made->y = batch_new_result(b, &b->x, b->habit == HABIT_CUDA, strides, &y);
    const bool saves = saves_statistics(b->own), wanted = saves && a->training;
    if (saves)
        make_statistics(b, a->training, made, saved);

    const planish_norm op = planish_batch_norm_op(b->x.ndim, a->eps, a->momentum);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &b->x,
        .weight = b->weight ? &b->w : NULL,
        .bias = b->bias ? &b->b : NULL,
        .y = &y,
        .mean = wanted ? &saved[0].view : NULL,
        .rstd = wanted ? &saved[1].view : NULL,
        .running_mean = b->running_mean ? &b->mean : NULL,
        .running_var = b->running_var ? &b->var : NULL,
    };
    const planish_pass pass = a->training ? PLANISH_FORWARD : PLANISH_APPLY;
    const planish_status status = b->own ? own_call_run(&op, pass, &tensors)
                                         : run_norm_if_faster(&op, pass, &tensors, (message){0});
    return status == PLANISH_OK ? SUPPORTED : refusal(status);
}

/* Whether planish made the results; else the reason was counted. */
static bool is_served(operation_counts *call, const batch_arguments *a, batch_habit habit, bool own,
                      results *made) {
    batch b = {
        .input = a->input,
        .weight = a->weight,
        .bias = a->bias,
        .running_mean = a->running_mean,
        .running_var = a->running_var,
        .habit = habit,
        .own = own,
    };
    const uint32_t group = batch_group(habit);
    reason why = own || group_is_active(group) ? batch_examine(&b) : idle_reason(group);
    if (why == SUPPORTED && (a->training ? habit == HABIT_CUDNN && !a->bias : !a->running_mean))
        why = WRONG_SHAPE;
    if (why == SUPPORTED)
        why = forward_on_planish(&b, a, made);
    if (why != SUPPORTED)
        count_reason(call, why);
    return why == SUPPORTED;
}

static returned_tensors native(operation_counts *call, const batch_arguments *a, batch_habit habit,
                               bool own) {
    RESULTS made = {{NULL}, {NULL}, {NULL}};
    if (is_served(call, a, habit, own, &made))
        return give_tensors(&made.y, &made.mean, &made.rstd);
    free_results(&made); /* before torch's kernel makes its own */
    made = (results){{NULL}, {NULL}, {NULL}};
    return torch_batch_norm(batch_backend(habit), a);
}

static void give_four(stack_value *stack, const returned_four *made) {
    for (int i = 0; i < 4; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = made->impl[3 - i];
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}

static new_tensor new_reserve(const batch_arguments *a, int32_t ndim) {
    int64_t sizes[2] = {0, 0}, strides[2];
    const DLTensor x = view_input(a->input);
    DLTensor view;
    return new_dense_tensor(&x, ndim, sizes, torch.u8, strides, &view);
}

static returned_four with_reserve(results *made, const batch_arguments *a, bool marked) {
    NEW_TENSOR reserve = new_reserve(a, marked ? BATCH_RESERVE_NDIM : 1);
    return (returned_four){{give_tensor(&reserve), give_tensor(&made->rstd),
                            give_tensor(&made->mean), give_tensor(&made->y)}};
}

/* ---- The operators -------------------------------------------------------------------------- */

static operation native_operation(batch_habit habit, bool own, bool training) {
    return operation_of(own, batch_group(habit), NATIVE_BATCH_NORM,
                        training ? BATCH_NORM : NORM_APPLY);
}

/* input, weight?, bias?, running_mean?, running_var?, training, momentum, eps */
static void native_batch_norm(batch_habit habit, stack_value *stack) {
    running_pair beside = {NULL, NULL};
    const bool own = own_call_take_running(&beside);
    const bool training = take_bool(stack[5]);
    INSIDE call = call_enter(native_operation(habit, own, training), BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_optional_tensor(stack[3]);
    OWNED_TENSOR running_var = take_optional_tensor(stack[4]);
    const batch_arguments a = {input,
                               weight,
                               bias,
                               beside.mean ? beside.mean : running_mean,
                               beside.var ? beside.var : running_var,
                               training,
                               take_double(stack[6]),
                               take_double(stack[7])};
    const returned_tensors made = native(call, &a, habit, own);
    give_returned(stack, &made, 3);
}

void batch_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    native_batch_norm(HABIT_CPU, stack);
}

void batch_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    native_batch_norm(HABIT_CUDA, stack);
}

returned_tensors batch_norm_at_once(backend whose, bool own, const batch_arguments *a) {
    const batch_habit habit = whose == BACKEND_CPU ? HABIT_CPU : HABIT_CUDA;
    INSIDE call = call_enter(native_operation(habit, own, a->training), UNBOXED);
    return native(call, a, habit, own);
}

returned_tensors batch_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            const optional_tensor *weight,
                                            const optional_tensor *bias,
                                            const optional_tensor *running_mean,
                                            const optional_tensor *running_var, bool training,
                                            double momentum, double eps) {
    (void)functor, (void)keys;
    running_pair beside;
    const bool own = own_call_take_running(&beside);
    const batch_arguments a = {input,
                               optional_handle(weight),
                               optional_handle(bias),
                               beside.mean ? beside.mean : optional_handle(running_mean),
                               beside.var ? beside.var : optional_handle(running_var),
                               training,
                               momentum,
                               eps};
    return batch_norm_at_once(BACKEND_CPU, own, &a);
}

/* input, weight?, bias?, running_mean, running_var, training, momentum, eps */
static void legit(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(NATIVE_BATCH_NORM_LEGIT, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_tensor(stack[3]);
    OWNED_TENSOR running_var = take_tensor(stack[4]);
    const batch_arguments a = {input,
                               weight,
                               bias,
                               running_mean,
                               running_var,
                               take_bool(stack[5]),
                               take_double(stack[6]),
                               take_double(stack[7])};
    const returned_tensors made = native(call, &a, habit, false);
    give_returned(stack, &made, 3);
}

void batch_norm_legit(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    legit(HABIT_CPU, stack);
}

void batch_norm_legit_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    legit(HABIT_CUDA, stack);
}

/* input, weight?, bias?, training, momentum, eps */
static void legit_no_stats(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(NATIVE_BATCH_NORM_NO_STATS, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    const batch_arguments a = {input,
                               weight,
                               bias,
                               NULL,
                               NULL,
                               take_bool(stack[3]),
                               take_double(stack[4]),
                               take_double(stack[5])};
    const returned_tensors made = native(call, &a, habit, false);
    give_returned(stack, &made, 3);
}

void batch_norm_no_stats(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    legit_no_stats(HABIT_CPU, stack);
}

void batch_norm_no_stats_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    legit_no_stats(HABIT_CUDA, stack);
}

/* input, weight?, bias?, running_mean, running_var, momentum, eps */
static void with_update(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(BATCH_NORM_WITH_UPDATE, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_tensor(stack[3]);
    OWNED_TENSOR running_var = take_tensor(stack[4]);
    const batch_arguments a = {input,
                               weight,
                               bias,
                               running_mean,
                               running_var,
                               true,
                               take_double(stack[5]),
                               take_double(stack[6])};
    returned_four made;
    RESULTS mine = {{NULL}, {NULL}, {NULL}};
    if (is_served(call, &a, habit, false, &mine))
        made = with_reserve(&mine, &a, habit == HABIT_CUDA);
    else
        made = torch_batch_norm_with_update(batch_backend(habit), &a);
    give_four(stack, &made);
}

void batch_norm_with_update(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    with_update(HABIT_CPU, stack);
}

void batch_norm_with_update_cuda(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count) {
    (void)argument_count, (void)return_count;
    with_update(HABIT_CUDA, stack);
}

/* input, weight, bias?, running_mean?, running_var?, training, momentum, eps */
void batch_norm_cudnn(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(CUDNN_BATCH_NORM, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_optional_tensor(stack[3]);
    OWNED_TENSOR running_var = take_optional_tensor(stack[4]);
    const batch_arguments a = {input,
                               weight,
                               bias,
                               running_mean,
                               running_var,
                               take_bool(stack[5]),
                               take_double(stack[6]),
                               take_double(stack[7])};
    returned_four made;
    RESULTS mine = {{NULL}, {NULL}, {NULL}};
    if (is_served(call, &a, HABIT_CUDNN, false, &mine))
        made = with_reserve(&mine, &a, a.training);
    else
        made = torch_cudnn_batch_norm(&a);
    give_four(stack, &made);
}
