/*
 * planish under JAX: handlers of XLA's FFI, which python/planish/jax registers by their addresses.
 *
 * A call is one pass of planish_norm_run. Its attributes are scalars: `pass`, the fields of
 * planish_norm by their names (those that are absent are 0), and `given` and `made`, the sets of
 * roles (bit i: the tensor that planish_tensor_name(i) names) of which there are arguments and
 * results, in the order of their bits. Buffers are dense and row-major. The handler of CUDA takes
 * one more result behind them, the workspace, in bytes.
 *
 * Errors are XLA's, with planish's sentence. Threads are those of XLA's pool; work is queued on
 * XLA's stream. A handler may be called from any thread at any time.
 */
#ifndef PLANISH_JAX_H
#define PLANISH_JAX_H

#include "planish.h"

struct xla_error;
struct xla_frame;

PLANISH_API struct xla_error *planish_jax_cpu(struct xla_frame *frame);
PLANISH_API struct xla_error *planish_jax_cuda(struct xla_frame *frame);

#endif
