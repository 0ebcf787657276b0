/* Problems seen as rows that lie spread: neighbours of one another, or runs of neighbours. Pure. */
#ifndef PLANISH_CUDA_BATCH_VIEW_H
#define PLANISH_CUDA_BATCH_VIEW_H

#include "cuda/backend.h"

#include "cuda/kernels/arguments/batch_args.h"

typedef struct batch_view {
    bool last;                  /* rows are neighbours, their elements one stride apart */
    bool has_slabs;             /* runs of neighbouring rows follow each other in every tensor */
    int64_t rows, inner_rows;   /* of the inner of two axes that number them */
    int64_t run;                /* elements of a run; 1 of rows that are neighbours */
    batch_place at[ROLE_COUNT]; /* of each tensor, in bytes */
} batch_view;

/* Whether a problem is one. The weights of a row are the same all along it. */
bool batch_view_of(batch_view *v, const problem *p);

/* Has places in the place of rows, `run` of them each, where there are slabs. */
void batch_view_by_place(batch_view *v);

#endif
