/* Backward of rows: a unit of kernels (cpu/common/unit.h). */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"
#include "cpu/rows/rows_gradient_sums.h"

DECLARE_FEW(ELEMENT, WEIGHT, TIER)
DECLARE_FEW(ELEMENT, REAL_TOKEN, TIER)

#include "cpu/rows/rows_backward.h"

#include "cpu/rows/rows_activated_backward.h"
#include "cpu/rows/rows_halves.h"

DECLARE_ROWS(ELEMENT, WEIGHT, TIER)
backward_kernel *const EXPORT(rows_backward)[KERNEL_KINDS] = {
    NAME(backward_layer),
    NAME(backward_rms),
    NAME(backward_activated),
};

backward_kernel *const EXPORT(rows_halves)[KINDS] = {
    NAME(halves_layer),
    NAME(halves_rms),
};

void EXPORT(one_by_one)(const backward_args *a, int64_t row, int count, bool rms) {
    NAME(pair_sums)(a, true);
    for (int r = 0; r < count; r++)
        NAME(backward_row)(a, row + r, rms, TRAFFIC_CACHED);
    NAME(pair_sums)(a, false);
}
