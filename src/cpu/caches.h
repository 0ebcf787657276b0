/* Caches of this CPU, as plans want to know them. */
#ifndef PLANISH_CPU_CACHES_H
#define PLANISH_CPU_CACHES_H

#include <stddef.h>

/* Bytes of a core's first-level data cache, and of one third-level cache, which some cores share; 0
 * where it is not known. Found once. */
size_t cpu_first_cache(void);
size_t cpu_shared_cache(void);

#endif
