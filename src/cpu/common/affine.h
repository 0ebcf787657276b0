/* Elements of weight, bias, dweight and dbias, wherever they lie. */
#ifndef PLANISH_CPU_AFFINE_H
#define PLANISH_CPU_AFFINE_H

#include "cpu/common/job.h"

/* The most elements store_affine takes at once. */
enum { SUM_TILE = 4096 };

/* The address of affine element i, counted over the affine kept axes and then the affine reduced
 * ones. */
char *affine_element(const cpu_job *job, role r, int64_t i);

/* Whether the affine elements lie one behind the other, in that order. */
bool affine_is_dense(const problem *p, role r);

/* All of weight or bias, dense and in the compute type. */
void load_affine(const cpu_job *job, role r, void *to);

/* Elements of dweight or dbias from `first` on. Where they are known to be dense they are rounded
 * to f32 first, in vectors. */
void store_affine(const cpu_job *job, role r, int64_t first, int64_t count, const double values[],
                  bool is_dense);

#endif
