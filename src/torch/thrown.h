/*
 * What planish's own operators throw where libplanish refuses: a sentence for people, and the
 * status for whoever catches it. A C++ exception of torch's has a text alone, so the status is kept
 * for the thread that threw (planish_torch_take_thrown).
 */
#ifndef PLANISH_TORCH_THROWN_H
#define PLANISH_TORCH_THROWN_H

#include "planish.h"

/* Throws what became of a run, in the words of a Python function's arguments: without the struct of
 * the C API that holds them. */
void throw_status(planish_status status, const char *text);

#endif
