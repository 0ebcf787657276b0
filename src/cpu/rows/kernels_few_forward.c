/* Forward of rows of few columns: a unit of kernels (cpu/common/unit.h), for those of rows forward.
 */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"
#include "cpu/common/prologue.h"
#include "cpu/rows/rows_moments.h"
#include "cpu/rows/rows_normalizer.h"

DECLARE_FEW(ELEMENT, WEIGHT, TIER)

#include "cpu/rows/rows_few.h"
#include "cpu/rows/rows_short.h"
#include "cpu/rows/rows_step.h"

INLINE int64_t NAME(few)(const forward_args *a, const bool rms) {
    /* Where y is streamed a step of so long rows is slower than smaller ones on most CPUs. */
    const bool large = a->traffic == TRAFFIC_STREAM && !a->hints->large_short_steps &&
                       a->cols == (NAME(CONVERTS) ? 4 : 2) * LANES;
    if (NAME(SHORT_COLS) && a->cols <= NAME(SHORT_VECS) * VEC_LANES && a->rows >= SHORT_ROWS &&
        !large)
        return NAME(short_rows)(a, rms);
    /* Longer rows of 16 bits wait for their conversions, not for what a step has once. */
    return NAME(CONVERTS) ? 0 : NAME(step_rows)(a, rms);
}

static int64_t NAME(few_layer)(const forward_args *a) {
    return NAME(few)(a, false);
}
static int64_t NAME(few_rms)(const forward_args *a) {
    return NAME(few)(a, true);
}

few_forward_kernel *const EXPORT(few_forward)[KINDS] = {
    NAME(few_layer),
    NAME(few_rms),
};
