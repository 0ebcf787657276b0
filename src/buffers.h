/* The data of a problem's tensors: whether it is there, and apart. */
#ifndef PLANISH_BUFFERS_H
#define PLANISH_BUFFERS_H

#include "problem.h"

/* Where each tensor's elements begin; NULL where there is no tensor, or no data. */
void buffers_of(const planish_tensors *tensors, void *buffers[ROLE_COUNT]);

/*
 * Checks that buffers are there where the problem has elements, that they suit their dtypes, and
 * that outputs share no memory with any other tensor beyond what planish_tensors allows: the last
 * is taken as known where `apart`.
 */
planish_status buffers_check(const problem *p, void *const buffers[ROLE_COUNT], bool apart,
                             message error);

#endif
