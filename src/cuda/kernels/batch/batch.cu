/*
 * Norms whose rows lie spread over all of memory, of which the kept axis stands between two reduced ones: batch norm
 * first of all. A row is a channel of all images. It may be long where there are few, so that many blocks have to share
 * it; weight and bias are the same all along a row.
 *
 * LAST: channels are neighbours, and a row's elements lie one stride apart (images stored by pixel). A thread takes
 * WIDTH channels of every PLANES-th pixel of a piece; LANES threads have neighbouring chunks. Else: a row is runs of
 * neighbours, all of one length (images stored by channel), of which a thread takes WIDTH elements at a time. What a
 * thread takes at once is a step of it; a piece is so many steps of a row.
 *
 * Slabs, of runs too short to be read by themselves (PIXELS of them; else 0): a block has some neighbouring channels,
 * whose runs follow each other in an image. A step is an image, and a thread takes WIDTH places of the slab in every
 * PLANES-th one, whichever channels they are of; LANES threads have a slab. What counts as rows are places.
 *
 * VARIANT BATCH_SUMS, BATCH_MOMENTS, BATCH_APPLY: three kernels, one after the other: sums of each piece; what they come
 * to, by row; the output, which reads x (and dy) again. The order in which pieces are read is turned round in between,
 * so that what the L2 still has comes first. BATCH_APPLY alone (PASS 4) takes the moments that it is given.
 * BATCH_HELD: all three in one cooperative launch, of LAST; BATCH_WHOLE: a cluster of CLUSTER blocks has a row, or a
 * slab. In both the first HOLD steps of each thread wait in shared memory.
 *
 * Pieces are cut by the problem alone. Sums run along fixed trees, pieces are merged in their order. Forward sums are
 * about a pivot of each piece, the middle one of three means of few elements, and merged in f64; rows whose squares leave float's
 * range are summed again, in f64.
 *
 * Constants: VARIANT PASS KIND ACTIVATION LAST PIXELS WIDTH LANES WARPS AT_ONCE HOLD HELD_COME ASK_AHEAD CLUSTER FROZEN ALONE CORRECT
 * WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS DY_ACCESS Y_ACCESS DX_ACCESS (alignments of a step in bytes).
 */
#include "batch_words.cu"
#include "batch_steps.cu"
#include "batch_moments.cu"
#include "batch_output.cu"
#include "batch_hold.cu"
#include "batch_whole.cu"
#include "batch_held.cu"
#include "batch_slab.cu"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) planish_batch(const batch_args args) {
    if constexpr (VARIANT == BATCH_WHOLE) {
        if constexpr (BY_PLACE)
            take_slab(args);
        else
            take_whole(args);
        return;
    }
    if constexpr (VARIANT == BATCH_HELD) {
        take_held(args);
        return;
    }
    wait_for_stream();
    release_stream();
    if constexpr (VARIANT == BATCH_MOMENTS) {
        merge_rows(args);
    } else {
        const i64 strips = BY_PLACE ? (args.rows + LANES * WIDTH - 1) / (LANES * WIDTH) : args.rows;
        const i64 units = strips * args.pieces;
        for (i64 turn = blockIdx.x; turn < units; turn += gridDim.x) {
            if constexpr (VARIANT == BATCH_SUMS)
                sum_unit(args, unit_of(args, strips, turn));
            else
                put_unit(args, unit_of(args, strips, units - 1 - turn));
        }
    }
}
