/* Groups of channels of an image stored by pixel: a unit of kernels (cpu/unit.h). */
#include "cpu/rows.h"

#include "cpu/epilogue.h"

#include "cpu/pixels.h"

DECLARE_GROUPS(ELEMENT, WEIGHT, TIER)
strip_forward_kernel *const EXPORT(strip_forward)[KERNEL_KINDS] = {
    NAME(strip_forward_layer),
    NAME(strip_forward_rms),
    NAME(strip_forward_fused),
};
strip_backward_kernel *const EXPORT(strip_backward)[KERNEL_KINDS] = {
    NAME(strip_backward_layer),
    NAME(strip_backward_rms),
    NAME(strip_backward_fused),
};
