/*
 * The two passes of a norm once its tensors were taken off a stack: what planish::norm_forward and
 * norm_backward have in common with the operators of compiled graphs (graph_norms.c).
 */
#ifndef PLANISH_TORCH_NORM_OPERATORS_H
#define PLANISH_TORCH_NORM_OPERATORS_H

#include "norm_call.h"

enum { FORWARD_INPUTS = 10, FORWARD_OUTPUTS = 4, BACKWARD_INPUTS = 14, BACKWARD_OUTPUTS = 8 };

/* The tensors of both operators, in the order of their schemas. */
extern const role forward_inputs[FORWARD_INPUTS], forward_outputs[FORWARD_OUTPUTS];
extern const role backward_inputs[BACKWARD_INPUTS], backward_outputs[BACKWARD_OUTPUTS];

/* Make what the options ask for, and run; `split` is that of options.h. */
void norm_forward_taken(norm_call *c, int64_t split);
void norm_backward_taken(norm_call *c, int64_t split);

#endif
