/* Backward of rows: a unit of kernels (cpu/unit.h). */
#include "cpu/rows.h"

#include "cpu/activation.h"
#include "cpu/rows_gradient_sums.h"

#include "cpu/rows_backward.h"

DECLARE_ROWS(ELEMENT, WEIGHT, TIER)
backward_kernel *const EXPORT(rows_backward)[KINDS] = {
    NAME(backward_layer),
    NAME(backward_rms),
};
