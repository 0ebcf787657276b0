/* Threads and registers of dense rows with stages around the norm; see stages_registers.c. */
#ifndef PLANISH_CUDA_STAGES_REGISTERS_H
#define PLANISH_CUDA_STAGES_REGISTERS_H

#include "cuda/families.h"

/* Sets spec's blocks of a multiprocessor, and how many rows a team takes at once. */
void stages_set_blocks(const cuda_limits *limits, cuda_spec *spec);

/* Where the weights wait that are loaded early: a forward_early, or 0. */
int stages_early(const cuda_limits *limits, const cuda_spec *spec);

/* Whether the gate behind the norm may wait in shared memory. */
bool stages_gate_can_wait(const cuda_limits *limits, const cuda_spec *spec);

#endif
