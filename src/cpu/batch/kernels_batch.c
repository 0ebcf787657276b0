/* Batch norms: a unit of kernels (cpu/common/unit.h). */
#include "cpu/batch/batch_kernels.h"

#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"

#include "cpu/batch/batch.h"

#include "cpu/batch/batch_moments.h"

#include "cpu/batch/batch_sums.h"

#include "cpu/batch/batch_finish.h"

#include "cpu/batch/batch_apply.h"

#include "cpu/batch/batch_gradient.h"

DECLARE_BATCH(ELEMENT, WEIGHT, TIER)
const batch_kernels EXPORT(batch) = {
    .moments = NAME(batch_moments),
    .finish_forward = NAME(finish_forward),
    .apply = NAME(batch_apply),
    .sums = NAME(batch_sums),
    .finish_backward = NAME(finish_backward),
    .gradient = NAME(batch_gradient),
};
