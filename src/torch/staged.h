/*
 * One pass of a norm with stages around it, as the operators of torch have it: the tensors that
 * were given and those that are made, each at the place of its role.
 */
#ifndef PLANISH_TORCH_STAGED_H
#define PLANISH_TORCH_STAGED_H

#include "../roles.h"
#include "stack.h"
#include "tensor.h"

/* torch's numbers of the dtypes that only stages have (c10::ScalarType, which files of tensors keep
 * stable). */
enum { TORCH_U8 = 0, TORCH_I8 = 1, TORCH_I64 = 4, TORCH_E5M2 = 23, TORCH_E4M3 = 24 };

typedef struct staged {
    planish_norm op;
    tensor_handle given[ROLE_COUNT]; /* owned */
    new_tensor made[ROLE_COUNT];     /* likewise */
    new_tensor copies[ROLE_COUNT];   /* likewise: dense copies of what was given */
    DLTensor view[ROLE_COUNT];
    const DLTensor *list[ROLE_COUNT]; /* the views of what is there */
} staged;

/* Frees what was given, and what was made and is not returned. */
void staged_free(staged *s);

#define STAGED __attribute__((cleanup(staged_free))) staged

/* Sizes and strides of a tensor that is made. */
typedef struct layout {
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} layout;

/* Takes the tensors of these roles off the stack, in their order; the first `required` are not
 * optional. Nothing is looked at yet. */
void staged_take(staged *s, stack_value *stack, const role roles[], int count, int required);

/* Looks at what was taken. Throws for what planish has no dtype or device for. */
void staged_view(staged *s);

/* A new output of this role, of a dtype by torch's number: of x's shape and laid out as
 * torch.empty_like(x), */
void staged_make_full(staged *s, role r, int32_t dtype, layout *made);
/* or dense, with the sizes of x's axes in `axes`; `whole`: with x's rank, 1 elsewhere. */
void staged_make_dense(staged *s, role r, uint64_t axes, bool whole, int32_t dtype, layout *made);

/* Runs the pass over all that is there; throws what the library says. On a GPU, what only the
 * general kernels would take as it is gets dense first. `into`: outputs were given, and may
 * overlap. */
void staged_run(staged *s, planish_pass pass, bool into);

/* The same of two, by one run where that can be; the outputs are torch's own. */
void staged_run_pair(staged *first, staged *second, planish_pass pass);

/* Puts the outputs of these roles on the stack, undefined ones where there is none. */
void staged_give(staged *s, stack_value *stack, const role roles[], int count);

/* Whether any tensor of numbers that was given is f64, and so the arithmetic. */
bool staged_is_double(const staged *s);

/* An enumerator or a small number off the stack; throws for what an int would cut off. */
static inline int take_small(stack_value value) {
    if (value > INT32_MAX)
        torch_throw("planish: an option is out of range");
    return (int)value;
}

#endif
