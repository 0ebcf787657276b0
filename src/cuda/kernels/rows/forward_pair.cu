/*
 * Forward of two sets of dense rows in one launch, such as queries and keys: what forward.cu does with each of
 * them, bit for bit. The sets share every constant; each has arguments, a number of rows and, if they are cut into
 * slices, a number of slices of its own. A block has rows of one set alone (row_levels.cu says of which), and each
 * set has code of its own, so that the other's arguments take no registers.
 *
 * Clusters and cooperating blocks are not paired.
 *
 * Constants: those of forward.cu.
 */
#define PAIRED 1
#include "forward_rows.cu"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_forward_pair(const row_forward_pair_args args) {
    if (blockIdx.x < args.of[1].place.first_block)
        rows_of_block(args.of[0]);
    else
        rows_of_block(args.of[1]);
}
