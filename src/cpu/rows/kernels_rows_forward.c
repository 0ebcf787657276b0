/* Forward of rows: a unit of kernels (cpu/common/unit.h). */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"
#include "cpu/common/prologue.h"
#include "cpu/rows/rows_moments.h"
#include "cpu/rows/rows_normalizer.h"

DECLARE_FEW(ELEMENT, WEIGHT, TIER)
DECLARE_FEW(ELEMENT, REAL_TOKEN, TIER)

#include "cpu/rows/rows_sum_forward.h"

#include "cpu/rows/rows_forward.h"

#include "cpu/rows/rows_activated_forward.h"

DECLARE_ROWS(ELEMENT, WEIGHT, TIER)
forward_kernel *const EXPORT(rows_forward)[KERNEL_KINDS] = {
    NAME(forward_layer),
    NAME(forward_rms),
    NAME(forward_activated),
};

void EXPORT(one_row)(const forward_args *a, int64_t row, bool rms) {
    NAME(forward_row)(a, row, rms, TRAFFIC_CACHED);
}
