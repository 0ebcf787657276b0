/*
 * One pass of a norm as planish's operators of torch have it: the tensors that were given and those
 * that are made, each at the place of its role.
 */
#ifndef PLANISH_TORCH_NORM_CALL_H
#define PLANISH_TORCH_NORM_CALL_H

#include "../roles.h"
#include "options.h"
#include "stack.h"
#include "tensor.h"

/* torch's numbers of the dtypes that only stages have (c10::ScalarType, which files of tensors keep
 * stable). */
enum { TORCH_U8 = 0, TORCH_I8 = 1, TORCH_I64 = 4, TORCH_E5M2 = 23, TORCH_E4M3 = 24 };

/* Sizes and strides of a tensor, where they are not torch's. */
typedef struct layout {
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} layout;

typedef struct norm_call {
    planish_norm op;
    uint64_t options;
    layout *rooms;                   /* ROLE_COUNT of them, which outlive the call */
    int64_t split_groups;            /* 0: x is seen as it is */
    int32_t split_axis;              /* of x: seen as two, of which the first has split_groups */
    tensor_handle given[ROLE_COUNT]; /* owned */
    new_tensor made[ROLE_COUNT];     /* likewise */
    new_tensor copies[ROLE_COUNT];   /* likewise: dense copies of what was given */
    DLTensor view[ROLE_COUNT];
    const DLTensor *list[ROLE_COUNT]; /* the views of what is there */
} norm_call;

/* Frees what was given, and what was made and is not returned. */
void norm_call_free(norm_call *c);

#define NORM_CALL __attribute__((cleanup(norm_call_free))) norm_call

/* Takes the tensors of these roles off the stack, in their order; the first `required` are not
 * optional. Nothing is looked at yet. */
void norm_call_take(norm_call *c, stack_value *stack, const role roles[], int count, int required);

/* Looks at what was taken, split as options.h has it. Throws for what planish has no dtype or
 * device for. */
void norm_call_view(norm_call *c, int64_t split);

/* A new output of this role, of a dtype by torch's number: of x's shape, row-major or laid out as
 * torch.empty_like(x), */
void norm_call_make_full(norm_call *c, role r, int32_t dtype, bool dense);
/* or row-major, with the sizes of these axes of x's view; `whole`: with the view's rank, 1
 * elsewhere. */
void norm_call_make_dense(norm_call *c, role r, uint64_t axes, bool whole, int32_t dtype);
/* A new f64 statistic of x's rows, with x's rank, unless the norm has none such. */
void norm_call_make_statistic(norm_call *c, role r);

/* f64 statistics of all rows, with the view's rank and 1 on every reduced axis, of these roles one
 * behind the other at `data`; returns what is behind them. */
double *norm_call_place(norm_call *c, const role roles[], int count, double *data);
/* How many rows there are. */
int64_t norm_call_rows(const norm_call *c);

/* Runs the pass over all that is there; throws what the library says. On a GPU, what only the
 * general kernels would take as it is is copied first. `into`: outputs were given, and may
 * overlap. */
void norm_call_run(norm_call *c, planish_pass pass, bool into);

/* The same of two, by one run where that can be; the outputs are torch's own. */
void norm_call_run_pair(norm_call *first, norm_call *second, planish_pass pass);

/* Puts the outputs of these roles on the stack, undefined ones where there is none. */
void norm_call_give(norm_call *c, stack_value *stack, const role roles[], int count);

/* Whether any tensor of numbers that was given is f64, and so the arithmetic. */
bool norm_call_is_double(const norm_call *c);

/* The axes that are not reduced. */
static inline uint64_t norm_call_kept_axes(const norm_call *c) {
    return (PLANISH_AXIS(c->view[ROLE_X].ndim) - 1) & ~c->op.reduce_axes;
}

/* That of a field of options; 0 stands for x's. */
static inline int32_t norm_call_dtype(const norm_call *c, int at) {
    const int field = option_field(c->options, at, BYTE_BITS);
    return field ? field - 1 : view_dtype(&c->view[ROLE_X]);
}

#endif
