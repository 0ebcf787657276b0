/*
 * What the short ways of torch's operators have in common (short_calls.c, batch_calls.c).
 */
#ifndef PLANISH_PYTHON_SHORT_CALLS_H
#define PLANISH_PYTHON_SHORT_CALLS_H

#include "../torch/aoti.h"
#include "interpreter.h"

/* Whether this is a dtype that kernels take. */
bool is_of_kernels(int32_t dtype);

/* Whether autograd can save x for a derivative, unseen: no tensor that was made in inference mode,
 * and no hooks. */
bool saves_well(tensor_handle x);

#endif
