/*
 * The cases whose bits are compared: every pass, kind and mix of dtypes over rows, the same with an
 * activation behind them, and layers over images. Of each list every `step`th is made.
 */
#ifndef BITS_CASES_H
#define BITS_CASES_H

#include "cases.h"

void every_case(int step, void (*each)(const norm_case *c));

/* The same with an activation, where a pass may have one. */
void every_fused(int step, void (*each)(const norm_case *c));

/* The same for layers over images, whose tiles and rows of channels are cut in other ways. */
void every_image(int step, void (*each)(const norm_case *c));

#endif
