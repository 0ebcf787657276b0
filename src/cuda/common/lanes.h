/* How a row is cut into chunks and its chunks are dealt to lanes. Pure. */
#ifndef PLANISH_CUDA_LANES_H
#define PLANISH_CUDA_LANES_H

#include <stdint.h>

#include "cuda/spec.h"

enum {
    SEGMENT_BYTES = 64, /* shortest run of bytes at full speed */
};

/* Lanes, in whole warps, that take `vecs` chunks each. */
int in_warps(int chunks, int vecs);

/* Elements of a chunk: a power of two that divides the row, at most 16 bytes of `bytes` each. */
int chunk_width(int64_t cols, int bytes, int most_elements);

/*
 * Lanes and chunks of a row that fits a warp, by the least work per row: `fixed` instructions for
 * the exchange, `each` for an element, over the rows a warp takes at once. 0 if none fits.
 */
int lanes_within_warp(int chunks, int width, int chunk_bytes, int most_elements, int roomy,
                      int fixed, int each, int *vecs);

/* Lanes (whole warps) of a block that shares a row with cluster - 1 others, and chunks per lane. */
int lanes_of_block(int chunks, int width, int cluster, int most_elements, int most_lanes,
                   int *vecs);

/* 4-byte words of a lane's run of a 16-bit row (kernels/row_runs.cu): an odd number. */
int run_words(int cols, int lanes);

#endif
