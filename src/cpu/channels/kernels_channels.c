/* Norms over channels, and planes: a unit of kernels (cpu/common/unit.h). */
#include "cpu/channels/channels.h"

DECLARE_REAL(ELEMENT, TIER)
const channel_kernels EXPORT(channels) = {
    .forward = {NAME(forward_layer), NAME(forward_rms), NAME(forward_activated)},
    .backward = {NAME(backward_layer), NAME(backward_rms), NAME(backward_activated)},
};
const plane_kernels EXPORT(planes) = {
    .gather = NAME(gather_planes),
    .scatter = NAME(scatter_planes),
};
