/* What a DLTensor's sizes and strides say, which are both there. */
#ifndef PLANISH_VIEWS_H
#define PLANISH_VIEWS_H

#include <stdbool.h>

#include "planish.h"

static inline int64_t view_elements(const DLTensor *view) {
    int64_t elements = 1;
    for (int32_t i = 0; i < view->ndim; i++)
        elements *= view->shape[i];
    return elements;
}

/* Without elements it is, as torch has it. */
static inline bool view_is_contiguous(const DLTensor *view) {
    int64_t stride = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && view->strides[i] != stride)
            return view_elements(view) == 0;
        stride *= view->shape[i];
    }
    return true;
}

#endif
