/*
 * What parts of rows sent, put together (cuda/kernels/common/merge.cu has the formulas), by the
 * backend of the device that it lies on.
 */
#ifndef PLANISH_MERGE_H
#define PLANISH_MERGE_H

#include "cuda/words.h"
#include "status.h"

#include "cuda/kernels/arguments/merge_args.h"

planish_status cpu_merge(const merge_args *m, int device, void *stream, message error);
/* Queued on `stream`. Finds, compiles or loads its kernel at the first call in a context. */
planish_status cuda_merge(const merge_args *m, int device, void *stream, message error);

#endif
