/* A forward with a sum before its norm, held against the same done in two steps. */
#ifndef PLANISH_TESTS_APART_H
#define PLANISH_TESTS_APART_H

#include "staged_case.h"

/* Runs `c`, and planish's norm alone of s, which the processor's own operations make of x, the
 * scales and the residual; expects the same bits of sum, y, mean and rstd. */
void expect_fused_as_apart(const staged_case *c);

#endif
