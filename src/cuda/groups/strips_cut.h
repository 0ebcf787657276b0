/* What a block of a strip has, and what that takes of its multiprocessor. Pure. */
#ifndef PLANISH_CUDA_STRIPS_CUT_H
#define PLANISH_CUDA_STRIPS_CUT_H

#include "cuda/tuning.h"

#include "cuda/spec.h"

struct cuda_limits;

enum {
    LANES = WARP,
    SECTOR = 32,
    LINE_BYTES = 128 /* of a pixel in a strip, where a cluster holds that */
};

/* Channels of a chunk that have their sums together: neighbours, of one group wherever they lie. */
int strips_together(const cuda_spec *spec);

/* What blocks tell each other of a group: four values, of which one is unused. */
size_t strips_message_bytes(const cuda_spec *spec);

/* Channels of a strip: the fewest that are whole groups and chunks and `bytes` of a pixel, best
 * such that strips are alike and end with a sector; 0 where a warp does not hold a pixel of it. */
int strips_tile(const cuda_spec *spec, int bytes);

/* What a block takes of its multiprocessor's shared memory, and how much there is of that. */
int strips_block_bytes(const cuda_spec *spec);
int strips_room(const struct cuda_limits *limits);

/* Cuts strips of `tile` channels into `cluster` pieces. Returns a block's bytes of shared memory; 0
 * where a block would be without a pixel. */
int strips_pieces(const strips_tuning *t, cuda_spec *spec, int tile, int cluster);

/* Warps of a multiprocessor whose registers do not spill: fewer where a chunk has columns of its
 * own for every channel, with weights and biases for an activation even more, or may be summed
 * again by lanes that a warp is no multiple of, or goes through the normal distribution, and by
 * assemblers other than sm_90's. */
int strips_most_warps(const strips_tuning *t, const cuda_spec *spec);

#endif
