/* The families of norms at run time: each sees the tensors as planish's, makes the outputs, and
 * runs. */
#ifndef PLANISH_ORT_FAMILIES_H
#define PLANISH_ORT_FAMILIES_H

#include "run.h"

planish_status run_rows(norm_run *run);
planish_status run_groups(norm_run *run);
planish_status run_instance(norm_run *run);
planish_status run_batch(norm_run *run);

/* One number for each index along these axes of x: a tensor that is there is seen so. */
planish_status run_see_channels(norm_run *run, slot s, const char *name, uint64_t axes);
/* Weight and bias likewise. */
planish_status run_see_affine(norm_run *run, uint64_t axes);

#endif
