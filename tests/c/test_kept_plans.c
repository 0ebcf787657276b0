/*
 * Plans that are kept: the copy has its parts in itself, whichever backend's it is, takes little,
 * and does the same; and which calls share one (kept_plans.h). Nothing is run on a GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#include "cuda/backend.h"
#include "kept_plans.h"
#include "plan.h"

static float x[24], residual[24], sum[24], y[24], weight[4];

typedef struct call {
    int64_t shape[3], strides[3], affine[1], one[1];
    DLTensor t[5];
    planish_norm op;
    planish_tensors tensors;
} call;

static DLTensor tensor(void *data, int ndim, int64_t *shape, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = shape,
                      .strides = strides};
}

/* RMSNorm over channels, which lie apart: (2, 4, 3), with a sum that is made first. */
static void make_call(call *c, bool stages) {
    *c = (call){.shape = {2, 4, 3}, .strides = {12, 3, 1}, .affine = {4}, .one = {1}};
    void *const data[] = {x, residual, sum, y};
    for (int i = 0; i < 4; i++)
        c->t[i] = tensor(data[i], 3, c->shape, c->strides);
    c->t[4] = tensor(weight, 1, c->affine, c->one);
    c->op = planish_channel_norm_op(PLANISH_RMS, 3, 1e-5);
    c->tensors = (planish_tensors){
        .struct_size = sizeof c->tensors, .x = &c->t[0], .weight = &c->t[4], .y = &c->t[3]};
    if (stages) {
        c->tensors.residual = &c->t[1];
        c->tensors.sum = &c->t[2];
    }
}

static bool lies_in(const void *part, const planish_plan *plan, size_t bytes) {
    const uintptr_t begin = (uintptr_t)plan, at = (uintptr_t)part;
    return at >= begin && at < begin + bytes;
}

static void expect_kept(const planish_plan *plan) {
    char was[256], is[256];
    const size_t bytes = plan_kept_bytes(plan);
    planish_plan *kept = malloc(bytes);
    plan_keep(kept, plan);
    expect(bytes <= 4096, "it takes %zu bytes", bytes);
    expect(lies_in(kept->own, kept, bytes), "the backend's plan is elsewhere");
    for (int i = 0; i < kept->steps.count; i++) {
        const problem *p = kept->steps.step[i].problem, *of = plan->steps.step[i].problem;
        expect(lies_in(p, kept, bytes), "step %d is elsewhere", i);
        expect(p->rows == of->rows && p->cols == of->cols && p->present == of->present &&
                   problem_bytes(p) == problem_bytes(of) &&
                   !memcmp(p->strides, of->strides, (size_t)of->stride_count * sizeof *p->strides),
               "step %d is of another problem", i);
    }
    planish_plan_describe(plan, was, sizeof was);
    planish_plan_describe(kept, is, sizeof is);
    expect(!strcmp(was, is), "it was '%s' and is '%s'", was, is);
    free(kept);
}

static void of_the_cpu(void) {
    for (int stages = 0; stages < 2; stages++) {
        test_case("a plan of the CPU with %d steps is kept", 1 + stages);
        static planish_plan plan;
        call c;
        make_call(&c, stages);
        char text[256] = "";
        const message error = {text, sizeof text};
        expect(!problem_make(&plan.problem, &c.op, PLANISH_FORWARD, &c.tensors, error), "%s", text);
        expect(!plan_make(&plan, error), "%s", text);
        expect(plan.steps.count == 1 + stages, "%d steps", plan.steps.count);
        expect_kept(&plan);
    }
}

/* As cuda_backend makes it, of a device that need not be there. */
static void of_a_gpu(void) {
    test_case("a plan of a GPU is kept");
    static planish_plan plan;
    const cuda_limits limits = {.arch = 90,
                                .multiprocessors = 132,
                                .shared_per_block = 232448,
                                .max_cluster = 8,
                                .cooperative = 1};
    call c;
    make_call(&c, true);
    for (int i = 0; i < 5; i++)
        c.t[i].device.device_type = kDLCUDA;
    char text[256] = "";
    expect(!problem_make(&plan.problem, &c.op, PLANISH_FORWARD, &c.tensors,
                         (message){text, sizeof text}),
           "%s", text);
    plan.backend = backend_of(plan.problem.device);
    plan.own = plan.room;
    cuda_plan_make(plan.own, &plan.steps, &plan.problem, &plan.norm, &limits);
    expect_kept(&plan);
    planish_plan *kept = malloc(plan_kept_bytes(&plan));
    plan_keep(kept, &plan);
    const cuda_plan *own = kept->own;
    expect(own->problem == steps_norm(&kept->steps)->problem, "its problem is another's");
    expect(own->sum.problem == &kept->problem, "its sum's problem is another's");
    free(kept);
}

static const planish_plan *found(const call *c) {
    return kept_plan_for(&c->op, PLANISH_FORWARD, &c->tensors);
}

static void shared(void) {
    test_case("which calls share a plan");
    call a, b;
    make_call(&a, true);
    make_call(&b, true);
    const planish_plan *plan = found(&a);
    expect(plan && found(&b) == plan, "the same call has another plan");
    b.op.eps = 1e-3;
    expect(found(&b) && found(&b) != plan, "another eps has the same plan, or none");
    make_call(&b, false);
    expect(found(&b) && found(&b) != plan, "without stages it has the same plan, or none");
    b.op.dropout_p = .5;
    expect(!found(&b), "dropout without rng has a plan");
}

static void of_forms(void) {
    test_case("rows of all shapes share a plan, with weights that fit");
    int64_t two[] = {6, 4}, two_strides[] = {4, 1}, three[] = {2, 3, 4},
            three_strides[] = {12, 4, 1}, cols[] = {4}, short_cols[] = {3}, one[] = {1};
    DLTensor a = tensor(x, 2, two, two_strides), b = tensor(x, 3, three, three_strides),
             w = tensor(weight, 1, cols, one), wrong = tensor(weight, 1, short_cols, one);
    planish_norm op = planish_rms_norm_op(2, 1, 1e-5);
    planish_tensors t = {.struct_size = sizeof t, .x = &a, .y = &a, .weight = &w};
    const planish_plan *plan = kept_plan_for(&op, PLANISH_FORWARD, &t);
    op = planish_rms_norm_op(3, 1, 1e-5);
    t.x = t.y = &b;
    expect(plan && kept_plan_for(&op, PLANISH_FORWARD, &t) == plan, "another plan for 2 x 3 rows");
    t.weight = &wrong;
    expect(!kept_plan_for(&op, PLANISH_FORWARD, &t), "a weight of 3 for rows of 4 has a plan");
    w.device = (DLDevice){kDLCUDA, 0};
    t.weight = &w;
    expect(!kept_plan_for(&op, PLANISH_FORWARD, &t), "a weight on a GPU for a CPU's x has a plan");
}

int main(void) {
    of_the_cpu();
    of_a_gpu();
    shared();
    of_forms();
    return test_finish("kept_plans");
}
