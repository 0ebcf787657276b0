/*
 * What is known of channels between the steps of a batch norm: arrays, one element for each of some
 * rows, in the workspace or of one tile on the stack. How they come from tensors and go to them.
 */
#ifndef PLANISH_CPU_BATCH_NUMBERS_H
#define PLANISH_CPU_BATCH_NUMBERS_H

#include "cpu/batch/batch_kernels.h"
#include "cpu/common/job.h"

typedef struct batch_numbers {
    double *record[RECORDS];
    double *mean, *rstd, *c1, *c2, *dweight, *dbias;
    char *weight, *bias, *factor[BATCH_FACTORS]; /* real */
    unsigned char *wide;
} batch_numbers;

/* The same of one tile that is done at once. */
typedef struct batch_tile_room {
    double doubles[RECORDS + 6][BATCH_TILE_CHANNELS];
    double reals[2 + BATCH_FACTORS][BATCH_TILE_CHANNELS];
    unsigned char wide[BATCH_TILE_CHANNELS];
} batch_tile_room;

static inline bool batch_is_backward(const problem *p) {
    return p->pass == PLANISH_BACKWARD;
}

/* Of all rows, in the workspace; of a tile that is done at once; of those from row `first` on. */
batch_numbers batch_numbers_of_all(const cpu_job *job);
batch_numbers batch_numbers_of_tile(batch_tile_room *room);
batch_numbers batch_numbers_at(const cpu_job *job, const batch_numbers *all, int64_t first);

/* weight and bias, and the statistics that are given, of the rows of a run. */
void batch_load_rows(const cpu_job *job, const row_run *run, const batch_numbers *n);
/* The statistics that were made, those that are kept, dweight and dbias. */
void batch_store_rows(const problem *p, const row_run *run, const batch_numbers *n);

#endif
