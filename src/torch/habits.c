/*
 * Small calls of torch's own group norm; see habits.h.
 */
#include "habits.h"

#include <math.h>

#include "fallback.h"
#include "stack.h"
#include "tensor.h"

torch_habits habits;

/* x of one sample, two channels and two pixels, in one group. */
static const group_sizes probe_sizes = {1, 2, 2, 1};
static const double probe_eps = 0.5;

typedef struct results {
    stack_value list[3];
} results;

static void free_results(results *r) {
    for (int i = 0; i < 3; i++)
        if (r->list[i])
            torch.delete_tensor(take_tensor(r->list[i]));
}

#define RESULTS __attribute__((cleanup(free_results))) results

static results forward(tensor_handle x) {
    results r = {{0}};
    returned_tensors made = torch_group_norm(BACKEND_CPU, x, NULL, NULL, &probe_sizes, probe_eps);
    give_returned(r.list, &made, 3);
    return r;
}

static results backward(tensor_handle x, const results *saved) {
    results r = {{0}};
    returned_tensors made =
        torch_group_norm_backward(BACKEND_CPU, x, x, take_tensor(saved->list[1]),
                                  take_tensor(saved->list[2]), NULL, &probe_sizes, (mask3){{true}});
    give_returned(r.list, &made, 3);
    return r;
}

/* x with these strides. What lies between its elements is no number that could pass for one. */
static new_tensor new_x(const int64_t *strides) {
    static const float values[4] = {1, -2, 4, 3};
    int64_t sizes[3] = {1, 2, 2}, steps[3] = {strides[0], strides[1], strides[2]};
    const int64_t room = strides[1] + strides[2] + 1;
    DLTensor like = {.device = {kDLCPU, 0}}, view;
    new_tensor x = new_strided_tensor(&like, 3, sizes, steps, torch.f32, &view);
    float *data = view.data;
    for (int64_t i = 0; i < room; i++)
        data[i] = 1000;
    for (int i = 0; i < 4; i++)
        data[i / 2 * strides[1] + i % 2 * strides[2]] = values[i];
    return x;
}

static bool same_values(stack_value one, stack_value other) {
    const DLTensor a = view_input(take_tensor(one)), b = view_input(take_tensor(other));
    for (int i = 0; i < 4; i++) {
        const int64_t c = i / 2, p = i % 2;
        const float difference = ((const float *)a.data)[c * a.strides[1] + p * a.strides[2]] -
                                 ((const float *)b.data)[c * b.strides[1] + p * b.strides[2]];
        if (!(fabsf(difference) < 1e-4F))
            return false;
    }
    return true;
}

static bool has_batch_stride(stack_value result, int64_t stride) {
    return view_input(take_tensor(result)).strides[0] == stride;
}

typedef struct asked {
    tensor_handle x;
    const results *expected;
    bool same;
} asked;

static void ask_forward(int64_t begin, int64_t end, void *context) {
    asked *a = context;
    (void)begin, (void)end;
    RESULTS r = forward(a->x);
    a->same = same_values(r.list[0], a->expected->list[0]);
}

void ask_habits(void) {
    enum { ODD = 77 };
    static const int64_t dense[3] = {4, 2, 1}, odd[3] = {ODD, 2, 1}, apart[3] = {16, 8, 3};
    NEW_TENSOR x = new_x(dense);
    RESULTS y = forward(handle_of(&x));
    RESULTS dx = backward(handle_of(&x), &y);

    NEW_TENSOR odd_x = new_x(odd);
    RESULTS odd_y = forward(handle_of(&odd_x));
    RESULTS odd_dx = backward(handle_of(&odd_x), &y);
    habits.group_norm_keeps_strides = has_batch_stride(odd_y.list[0], ODD);
    habits.group_norm_backward_keeps_strides = has_batch_stride(odd_dx.list[0], ODD);

    /* A torch whose forward raises has a backward that reads x as if it were dense, so that one
     * call tells: what a torch before 2.13 raises in C would be printed. */
    NEW_TENSOR apart_x = new_x(apart);
    RESULTS apart_dx = backward(handle_of(&apart_x), &y);
    if (!same_values(apart_dx.list[0], dx.list[0]))
        return;
    asked question = {.x = handle_of(&apart_x), .expected = &y};
    habits.group_norm_takes_strides =
        torch.parallel_for(0, 1, 1, ask_forward, &question) == 0 && question.same;
}
