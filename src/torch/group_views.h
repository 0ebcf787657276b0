/*
 * The tensors of a group norm as planish sees them: x (N, C, ...) as (N, groups, C / groups, ...),
 * whatever its strides, and results in torch's layout.
 */
#ifndef PLANISH_TORCH_GROUP_VIEWS_H
#define PLANISH_TORCH_GROUP_VIEWS_H

#include "calls.h"
#include "fallback.h"
#include "tensor.h"

/* A tensor seen with its channels split into groups. */
typedef struct split_view {
    DLTensor view;
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} split_view;

typedef struct group {
    tensor_handle input, weight, bias; /* weight and bias may be NULL */
    group_sizes sizes;
    backend whose; /* the key the call came in by */
    DLTensor x, w, b;
    int64_t *dense; /* room for the strides of x's layout in torch's results, if channels last */
    bool flat;  /* x, y, dy, dx are dense and seen as (N, C, pixels), their own shape set aside */
    bool mixed; /* half x with float parameters */
    bool channels_last; /* how torch lays out y and dx */
    bool own;           /* a call of planish's own, or its derivative (own_call.h) */
} group;

/* Fills the views; anything but SUPPORTED is for torch. */
reason group_examine(group *g);

/* Whether a tensor of x's shape is dense in the order that torch has x's results in. */
bool group_is_laid_out(const group *g, const DLTensor *view);

/* Sees x, y, dy or dx with its channels split. */
reason group_split(const group *g, const DLTensor *whole, split_view *s);

/* Sees weight, bias, dweight or dbias as (groups, C / groups). */
const DLTensor *group_split_parameter(const group *g, const DLTensor *whole, split_view *s);

/* y or dx: x's shape, in torch's layout. `keep`: with x's strides if x is laid out so, those of
 * axes of size 1 included. */
new_tensor group_new_like_x(const group *g, bool keep, int64_t *strides, DLTensor *view);

/* A copy of x or dy, of x's shape, in the layout that torch copies it to. */
new_tensor group_new_copy(const group *g, tensor_handle tensor, int64_t *strides, DLTensor *view);

#endif
