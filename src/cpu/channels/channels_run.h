/* Rows beside each other, each strided: tile by tile. */
#ifndef PLANISH_CPU_CHANNELS_RUN_H
#define PLANISH_CPU_CHANNELS_RUN_H

#include <stdint.h>

/* A planish_task over the plan's blocks. */
void channel_blocks(void *job, int64_t begin, int64_t end);

#endif
