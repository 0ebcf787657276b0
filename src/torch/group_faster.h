/* Where torch's own group norm on the CPU is faster than planish's: measured, and kept as data. */
#ifndef PLANISH_TORCH_GROUP_FASTER_H
#define PLANISH_TORCH_GROUP_FASTER_H

#include "group_views.h"

/* `dy` NULL: forward. x and dy are on the CPU. */
bool torch_is_faster(const group *g, const DLTensor *dy);

#endif
