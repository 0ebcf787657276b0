/* Backward of rows of few columns: a unit of kernels (cpu/common/unit.h), for those of rows
 * backward. */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"
#include "cpu/rows/rows_gradient_sums.h"

DECLARE_FEW(ELEMENT, WEIGHT, TIER)

#include "cpu/rows/rows_few.h"
#include "cpu/rows/rows_step_backward.h"

#include "cpu/rows/rows_short_backward.h"

INLINE int64_t NAME(few)(const backward_args *a, const bool rms) {
    if (!NAME(usual_gradients)(a, rms))
        return 0;
    if (!a->dsum && NAME(SHORT_COLS) && a->cols <= NAME(short_gradient_cols)(a) &&
        a->rows >= SHORT_ROWS)
        return NAME(short_rows_backward)(a, rms);
    /* Longer rows of 16 bits wait for their conversions, not for what a step has once; past the
     * cache those of `most` do. */
    const int64_t most = 4 * NAME(SHORT_COLS);
    const bool large = a->cols > most || (a->cols == most && a->traffic == TRAFFIC_STREAM);
    if (NAME(CONVERTS) && large)
        return 0;
    return a->dsum ? NAME(step_rows_summed)(a, rms) : NAME(step_rows_backward)(a, rms);
}

static int64_t NAME(few_layer)(const backward_args *a) {
    return NAME(few)(a, false);
}
static int64_t NAME(few_rms)(const backward_args *a) {
    return NAME(few)(a, true);
}

few_backward_kernel *const EXPORT(few_backward)[KINDS] = {
    NAME(few_layer),
    NAME(few_rms),
};
