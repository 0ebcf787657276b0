/* A forward with a sum before its norm, held against the same done in two steps. */
#ifndef PLANISH_TESTS_APART_H
#define PLANISH_TESTS_APART_H

#include "cases.h"

/* Runs `c`, and planish's norm alone of s, which the reference makes bit by bit of x, the
 * scales and the residual; expects the same bits of sum, y, mean and rstd. */
void expect_fused_as_apart(const norm_case *c);

#endif
