/* cpu/rows.h for elements whose arithmetic is f32: sets what does not depend on the element. */
#define REAL float
#define REAL_TOKEN f32
#define VEC f32v
#define VEC_LANES F32V_LANES
#define LANES 32
#define BIG 3e38
#define TINY_VAR 1e-30
#define TINY_EPS 1e-22
#include "cpu/rows.h"
