/*
 * Rows of channels, each with one weight and bias (GroupNorm and InstanceNorm of images stored by
 * channel); part of cpu/rows/rows.h, whose parameters and helpers it uses, once for each element
 * dtype. The statistics of a row are those of a dense row. Backward sums over each channel first,
 * for that gives dweight, dbias and the row's constants at once.
 */

/* Elements of a row from which on the next one is not prefetched: both would not fit a cache. */
enum { NAME(GROUP_AHEAD) = 131072 / sizeof(ELEMENT_T) };

/* Non-temporal stores only where every channel of these rows is whole lines. */
INLINE traffic NAME(group_traffic)(traffic t, const char *output, int64_t pitch, int rows,
                                   int64_t span) {
    const uintptr_t bytes = (uintptr_t)span * sizeof(ELEMENT_T);
    const uintptr_t apart = rows > 1 ? (uintptr_t)pitch : 0;
    return t == TRAFFIC_STREAM && ((uintptr_t)output | apart | bytes) % 64 ? TRAFFIC_AHEAD : t;
}

#include "cpu/groups/groups_forward.h"

#include "cpu/groups/groups_backward.h"

static void NAME(group_forward_layer)(const group_forward_args *a) {
    NAME(group_forward)(a, false, PLANISH_IDENTITY);
}
static void NAME(group_forward_rms)(const group_forward_args *a) {
    NAME(group_forward)(a, true, PLANISH_IDENTITY);
}
static void NAME(group_forward_activated)(const group_forward_args *a) {
    NAME(group_forward)(a, a->kind == PLANISH_RMS, a->activation);
}
static void NAME(group_backward_layer)(const group_backward_args *a) {
    NAME(group_backward)(a, false, PLANISH_IDENTITY);
}
static void NAME(group_backward_rms)(const group_backward_args *a) {
    NAME(group_backward)(a, true, PLANISH_IDENTITY);
}
static void NAME(group_backward_activated)(const group_backward_args *a) {
    NAME(group_backward)(a, a->kind == PLANISH_RMS, a->activation);
}
