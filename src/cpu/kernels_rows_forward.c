/* Forward of rows: a unit of kernels (cpu/unit.h). */
#include "cpu/rows.h"

#include "cpu/rows_moments.h"
#include "cpu/rows_scale.h"

#include "cpu/rows_forward.h"

DECLARE_ROWS(ELEMENT, WEIGHT, TIER)
forward_kernel *const EXPORT(rows_forward)[KINDS] = {
    NAME(forward_layer),
    NAME(forward_rms),
};
