/* A call of XLA's FFI as an operator, a pass and tensors of planish. */
#ifndef PLANISH_JAX_ATTRIBUTES_H
#define PLANISH_JAX_ATTRIBUTES_H

#include "../roles.h"
#include "../status.h"
#include "xla_ffi.h"

typedef struct jax_call {
    planish_norm op;
    planish_pass pass;
    planish_tensors tensors; /* of `views` */
    const xla_buffer *workspace;
    DLTensor views[ROLE_COUNT];
    int64_t strides[ROLE_COUNT][PLANISH_MAX_NDIM];
} jax_call;

/* Reads the frame; `device` is where its buffers are. A workspace is one more result. */
planish_status jax_call_read(jax_call *call, const xla_frame *frame, DLDevice device,
                             message error);

#endif
