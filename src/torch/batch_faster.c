/*
 * Where torch's own batch norm on the CPU is faster; see batch_faster.h.
 */
#include "batch_faster.h"

bool batch_torch_is_faster(const batch *b, const DLTensor *dy, bool training) {
    (void)b, (void)dy, (void)training;
    return false;
}
