/*
 * The gradients that are sums over rows, of a norm with stages around it: dweight, dbias, dscale,
 * dshift and dcolumn_scale, each along axes of its own. Rows add to a chunk, one element for each
 * of theirs, in the compute type; a chunk of a few rows is added to the block's sums in f64; those
 * of the blocks are added in their order. So the bits depend on the problem alone.
 *
 * Where the kept axes that a gradient varies along come before all others, a block has whole
 * samples but for its first and its last one: these two are left to be added to what other blocks
 * have, the others are written at once. Where they come in another order each block has sums of all
 * elements.
 */
#ifndef PLANISH_CPU_STAGES_BACKWARD_SUMS_H
#define PLANISH_CPU_STAGES_BACKWARD_SUMS_H

#include "cpu/common/job.h"

enum { GRADIENT_SUMS = 5 };

/* What a problem tells of one of them. */
typedef struct gradient_sum {
    role output;
    int64_t sample_rows; /* consecutive rows that add to the same elements; 0: see above */
    int64_t row_width;   /* elements that one row adds to */
    int64_t width;       /* of one sum: row_width, or all elements */
    int sums;            /* of a block: 1, or 3 with those of samples; 0: nothing is added */
    bool identity;       /* each element of a row has its own */
} gradient_sum;

/* Those that are wanted; returns how many. */
int gradient_sums_of(const problem *p, gradient_sum sums[GRADIENT_SUMS]);

/* Bytes of a block's part of the workspace for it. */
size_t gradient_sum_bytes(const gradient_sum *s, int64_t cols, size_t real_bytes);

/* One of them while the rows of a block are run. */
typedef struct block_sum {
    gradient_sum of;
    void *chunk;                 /* rows add to it */
    int chunk_rows;              /* that have */
    int64_t row;                 /* the first of them */
    double *sum[3];              /* of the first sample, of the last, of the one between */
    int64_t first_row, last_row; /* of the block */
} block_sum;

/* Lays it out at `at` and clears it. */
block_sum block_sum_begin(const cpu_job *job, const gradient_sum *of, char *at, int64_t first_row,
                          int64_t last_row);

/* `row` is about to add to the chunk; and it was the last one. */
void block_sum_row(const cpu_job *job, block_sum *s, int64_t row);
void block_sum_end(const cpu_job *job, block_sum *s);

/* Elements [first, first + count) of every sample's sum of all blocks, written out. `at` is the
 * block's sums: at + block * step. */
void gradient_sum_store(const cpu_job *job, const gradient_sum *s, const char *at, size_t step,
                        int64_t block_rows, int64_t first, int64_t count);

/* Zeros, for a problem without elements. */
void gradient_sums_clear(const cpu_job *job);

#endif
