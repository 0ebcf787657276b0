/* Groups of channels of an image stored by pixel: a unit of kernels (cpu/common/unit.h). */
#include "cpu/rows/rows.h"

#include "cpu/common/epilogue.h"

#include "cpu/groups/pixels.h"

DECLARE_GROUPS(ELEMENT, WEIGHT, TIER)
strip_forward_kernel *const EXPORT(strip_forward)[KERNEL_KINDS] = {
    NAME(strip_forward_layer),
    NAME(strip_forward_rms),
    NAME(strip_forward_activated),
};
strip_backward_kernel *const EXPORT(strip_backward)[KERNEL_KINDS] = {
    NAME(strip_backward_layer),
    NAME(strip_backward_rms),
    NAME(strip_backward_activated),
};
