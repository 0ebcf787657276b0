/* The kernel that adds up a backward's partial sums of each sample
 * (kernels/stages/stages_samples.cu). Pure. */
#ifndef PLANISH_CUDA_SAMPLES_H
#define PLANISH_CUDA_SAMPLES_H

#include "cuda/launches.h"

/* The specialisation for `samples` samples of `parts` rows of sums each. `main` says what is
 * wanted, and the dtypes. */
void samples_describe(cuda_spec *spec, const cuda_spec *main, int cols, int64_t samples,
                      int64_t parts);

/* The grid of such a launch. */
void samples_grid(cuda_launch *l, int64_t samples);

unsigned samples_threads(const cuda_spec *spec);

/* How many blocks (or clusters of them) share a sample's rows, of which each takes `block_rows` at
 * a time, on a device that holds `resident` at once: so many that few are idle, and no more, for
 * each leaves a row of sums. */
int64_t samples_parts(int64_t samples, int64_t rows, int64_t block_rows, int64_t resident);

#endif
