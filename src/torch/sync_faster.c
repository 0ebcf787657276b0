/*
 * Where torch's own SyncBatchNorm operators are faster; see sync_faster.h. A row is what
 * tests/cuda/check_sync_batch.py measures.
 */
#include "sync_faster.h"

/* With fewer bytes of x torch's one kernel is done before planish's kernel and the small ones that
 * convert numbers of channels around it. */
typedef struct least_bytes {
    int64_t channels_first, channels_last;
} least_bytes;

enum { HALVES, FLOATS, SIZES };

#define MB (1 << 20)

/* Read off bench/results/gpu-34/sync.csv (H200): by the GPU's time, and below 1 MB by the host's.
 */
static const least_bytes table[SYNC_OPERATORS][SIZES] = {
    [SYNC_STATISTICS] = {{1 * MB, 1 * MB}, {1 * MB, 1 * MB}},
    [SYNC_APPLY] = {{0, 0}, {0, 0}},
    [SYNC_SUMS] = {{1 * MB, 1 * MB}, {16 * MB, 1 * MB}},
    [SYNC_GRADIENT] = {{12 * MB, 64 * MB}, {24 * MB, 64 * MB}},
};

bool sync_torch_is_faster(sync_operator op, const batch *b) {
    const least_bytes *least = &table[op][view_is_half(&b->x) ? HALVES : FLOATS];
    const int64_t bytes = view_elements(&b->x) * (b->x.dtype.bits / 8);
    return bytes < (b->channels_last ? least->channels_last : least->channels_first);
}
