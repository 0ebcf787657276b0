/*
 * Every pass straight from the formulas in planish.h, in long double, over any strided tensors and
 * any axes, with what stands around the norm: a norm alone is one without stages. Written to be
 * read, not to be fast.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "element.h"
#include "parts.h"

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

/* Exact outputs of a pass, in row-major order of their part's axes. */
typedef struct reference {
    geometry geometry;
    bool is_double; /* the arithmetic is f64: a tensor other than what is kept for a row is */
    bool has_stages;
    bool exact_sum; /* s is what the library must have, bit by bit: no silu is in it */
    /* What the pass computes, and NULL what it does not. The sum s is always rounded as planish.h
     * has it, in the compute type in between; y is not rounded. */
    real *value[PARTS];
    /* Magnitudes that errors are measured against (docs/guide/reproducibility.md), NULL for the
     * value's own: the largest value in the row or term that it is the sum of; for sums of rows,
     * of channels and the like the sum of the magnitudes added. */
    real *scale[PARTS];
} reference;

/*
 * Computes what the pass would write, from the tensors it reads (those it writes are not looked
 * at, so that this may come before the run, which may write over inputs). What is given is taken
 * as exact: rstd and the mean. PLANISH_BACKWARD takes the mean from x where the one given is within
 * mean_reach of that, for that is what a rounded one stands for; the halves of a backward, which
 * make or are given c1 and c2, take it as it is.
 */
reference reference_run(const planish_norm *op, planish_pass pass, const planish_tensors *t);
void reference_free(reference *r);

/* The forward again, of the sum that the run wrote. */
void reference_of_sum(reference *r, const planish_norm *op, const planish_tensors *t);

#endif
