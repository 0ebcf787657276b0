/* A tensor of the runtime as a DLTensor, and how it is seen as a norm's. */
#ifndef PLANISH_ORT_TENSOR_VIEW_H
#define PLANISH_ORT_TENSOR_VIEW_H

#include <stdbool.h>

#include "planish.h"

/* A DLTensor and its sizes and strides, which it points to: it must not be moved. */
typedef struct tensor_view {
    DLTensor tensor;
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} tensor_view;

void view_dense(tensor_view *view, void *data, DLDataType dtype, const int64_t *sizes, int rank);
/* Another view of the same. */
void view_copy(tensor_view *to, const tensor_view *from);
/* As numpy broadcasts; false where it cannot be. */
bool view_broadcast(tensor_view *view, const int64_t *sizes, int rank);
/* Channels, axis 1 or the last one, become axes 1 and 2: groups and the channels of each. */
void view_split(tensor_view *view, int64_t groups, bool channels_last);
/* A dense tensor of any sizes whose elements belong to these axes of x, of size 1 along the others;
 * false where it has another number of elements. */
bool view_along(tensor_view *view, const tensor_view *x, uint64_t axes);

#endif
