/* Cases of single numbers: a bundle's elements one by one, and a run that must go well. */
#ifndef VALUES_H
#define VALUES_H

#include "cases.h"

/* Runs, and expects that it goes well. */
void bundle_run_well(bundle *b);

/* Element `index` of a tensor, in the order of the axes. */
real bundle_get(const bundle *b, part p, int64_t index);
void bundle_set(bundle *b, part p, int64_t index, real value);
void bundle_set_all(bundle *b, part p, real value);

#endif
