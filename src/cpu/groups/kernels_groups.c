/* Rows of channels: a unit of kernels (cpu/common/unit.h). */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"
#include "cpu/rows/rows_gradient_sums.h"
#include "cpu/rows/rows_moments.h"
#include "cpu/rows/rows_normalizer.h"

#include "cpu/groups/groups.h"

DECLARE_GROUPS(ELEMENT, WEIGHT, TIER)
group_forward_kernel *const EXPORT(group_forward)[KERNEL_KINDS] = {
    NAME(group_forward_layer),
    NAME(group_forward_rms),
    NAME(group_forward_activated),
};
group_backward_kernel *const EXPORT(group_backward)[KERNEL_KINDS] = {
    NAME(group_backward_layer),
    NAME(group_backward_rms),
    NAME(group_backward_activated),
};
