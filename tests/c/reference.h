/*
 * The general operator straight from the formula in planish.h, in long double, over any strided
 * tensors and any axes. Written to be read, not to be fast.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdbool.h>

#include "element.h"

/* Where each element of x, in row-major order, belongs. */
typedef struct geometry {
    int64_t elements;
    int64_t rows;     /* index tuples of the axes that are kept */
    int64_t cols;     /* index tuples of the axes that are reduced */
    int64_t channels; /* index tuples of the affine axes */
    int64_t *row, *channel;
} geometry;

geometry geometry_make(int ndim, const int64_t *shape, uint64_t reduce_axes, uint64_t affine_axes);
void geometry_free(geometry *g);

/* How far from a row's own mean a saved one may be to be taken for that, rounded
 * (docs/guide/reproducibility.md). */
real mean_reach(element type, real mean);

/* Exact outputs of a pass: NULL where the pass does not compute it. */
typedef struct reference {
    geometry geometry;
    real *y, *mean, *rstd, *m2, *dx, *dweight, *dbias, *c1, *c2;
    bool is_double; /* the arithmetic is f64: a tensor other than mean, rstd and m2 is */
    /* Magnitudes that errors are measured against (docs/guide/reproducibility.md): the largest
     * value in the row or term that it is the sum of; for dweight, dbias, c1 and c2 the sum
     * of the magnitudes added. */
    real *y_scale, *dx_scale, *mean_scale, *dweight_scale, *dbias_scale, *c1_scale, *c2_scale;
} reference;

/*
 * Computes what the pass would write, from the tensors it reads (those it writes are not looked
 * at). What is given is taken as exact: rstd and the mean. PLANISH_BACKWARD takes the mean from x
 * where the one given is within mean_reach of that, for that is what a rounded one stands for; the
 * halves of a backward, which make or are given c1 and c2, take it as it is.
 */
reference reference_run(const planish_norm *op, planish_pass pass, const planish_tensors *t);
void reference_free(reference *r);

#endif
