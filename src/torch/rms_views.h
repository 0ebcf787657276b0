/*
 * The tensors of an RMS norm as torch calls it, and the operator that planish runs for it.
 */
#ifndef PLANISH_TORCH_RMS_VIEWS_H
#define PLANISH_TORCH_RMS_VIEWS_H

#include "calls.h"
#include "fallback.h"
#include "planish_torch.h"
#include "tensor.h"

typedef struct rms {
    tensor_handle input, weight; /* weight may be NULL */
    int_array_ref shape;         /* normalized_shape */
    optional_double eps;
    backend whose; /* the key the call came in by */
    bool own;      /* a call of planish's own, or its derivative (own_call.h) */
    DLTensor x, w;
} rms;

static inline uint32_t rms_group_of(backend whose) {
    return whose == BACKEND_CUDA ? PLANISH_TORCH_CUDA_RMS_NORM : PLANISH_TORCH_RMS_NORM;
}

static inline bool rms_is_mixed(const rms *r) {
    return r->weight && !same_dtype(&r->x, &r->w);
}

/* Fills the views; anything but SUPPORTED is for torch. */
reason rms_examine(rms *r);

/* As rms_examine, for tensors that may have no data. */
reason rms_examine_descriptions(rms *r);

planish_norm rms_operator(const rms *r);

/* x's sizes with 1 on the normalized axes. */
void rms_statistics_shape(const rms *r, int64_t *sizes);

#endif
