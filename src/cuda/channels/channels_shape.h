/* Norms over channels: what follows from a specialisation's constants alone. Pure. */
#ifndef PLANISH_CUDA_CHANNELS_SHAPE_H
#define PLANISH_CUDA_CHANNELS_SHAPE_H

#include "cuda/spec.h"

enum {
    SECTOR = 32, /* bytes: tiles begin and end on one */
    LINE = 128,  /* bytes: in shared memory they begin on one */
};

/* Whether each channel of a tile lies as far within 16 bytes as it does in memory. As the kernel
 * has it. */
bool channels_is_shifted(const cuda_spec *spec);

/* Whether a tile goes on in the next image where one ends. As the kernel has it. */
bool channels_is_spanning(const cuda_spec *spec);

/* What the blocks of a cluster tell one of them of a tile. */
int64_t channels_message_bytes(const cuda_spec *spec);

/* As the kernel lays it out. */
size_t channels_shared_bytes(const cuda_spec *spec);

#endif
