/*
 * Norms over groups of channels of images stored by pixel, in one read. Some blocks take a strip of an
 * image: TILE_CHANNELS channels, whole groups, of every pixel. A block has PIECE pixels of it in shared
 * memory, or most of them; a thread has a chunk of WIDTH channels of every STEP-th pixel, which it alone copies, sums and
 * writes, so that threads wait for each other only where sums meet: over the pixels of a warp by shuffles,
 * over warps by shared memory, over the strip's blocks by messages. Forward (PASS 0) or backward (1).
 *
 * COOPERATING_BLOCKS 1: the blocks are a cluster of CLUSTER, which store into each other's shared memory, and take
 * one strip; as others write, new ones start to read. Of one block there are no messages. COOPERATING_BLOCKS > 1
 * (then CLUSTER 1, a cooperative launch): they are COOPERATING_BLOCKS blocks anywhere on the device, which tell
 * each other through the L2 and live on: where a thread has written a chunk it asks for that of its next strip.
 * More strips are under way so than clusters find room for, at the price of a barrier of the grid. Both give the
 * same bits.
 *
 * Strips and pieces are cut by COLS, DEPTH, PIXELS and the dtypes alone, so that a row does not depend on
 * the others. Sums run along fixed trees. Forward sums are about pivots, and the mean stays a pair; strips
 * with a row whose squares leave float's range are summed again, such rows scaled by a power of two.
 *
 * AHEAD: of a strip's parts all but the last are summed while the one before it is written, each as the next is on its
 * way; the bits are the same. HOLD: where a block has no room for all steps of its threads, so many wait in shared memory; the others, the loose
 * ones, are read again for the output, from the L2 if they are few.
 *
 * Constants: PASS KIND ACTIVATION GROUPS DEPTH PIXELS COLS (channels of an image) TILE_CHANNELS PIECE WIDTH LANES
 * (chunks of a pixel of a strip) PLANES (pixels of a warp at a time) WARPS HOLD (0: all steps) AHEAD CLUSTER
 * COOPERATING_BLOCKS LATE_HALF (the later half of the blocks begins after the barrier) CORRECT WEIGHT_OFFSET
 * MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS DY_ACCESS Y_ACCESS DX_ACCESS DSUM_ACCESS (alignments of a
 * strip in bytes). DSUM_TYPE as in groups.cu.
 */
#include "group_words.cu"
#include "strip_tiles.cu"
#include "strip_mail.cu"
#include "strip_forward.cu"
#include "strip_dsum.cu"
#include "strip_backward.cu"

/* What a thread knows of a strip that it has not taken yet: the rows' moments (backward), and sums that were begun. */
struct known_strip {
    saved of;
    begun_squares squares;
    begun_gradients gradients;
};

__device__ __forceinline__ strip_place take_strip(const groups_args &args, const strip_place &p,
                                                  known_strip &known, i64 after, mailbox &m, u32 &round) {
    if constexpr (FORWARD)
        return forward_strip(args, p, known.squares, after, m, round);
    else
        return backward_strip(args, p, known.of, known.gradients, after, m, round);
}

/* What the pass has to know of the rows beforehand. */
__device__ __forceinline__ saved known_of(const groups_args &args, const strip_place &p) {
    if constexpr (FORWARD)
        return {};
    else
        return saved_of(args, p);
}

/* A strip for each cluster, and no more but where there are more than a grid has blocks. */
__device__ __forceinline__ void take_one(const groups_args &args, mailbox &m) {
    const i64 all = args.images * STRIPS, step = gridDim.x / CLUSTER;
    u32 round = 0;
    for (i64 unit = blockIdx.x / CLUSTER; unit < all; unit += step) {
        const strip_place p = place_of(unit);
        const staging first(args, p);
        fill_all(args, p);
        first.store();
        if (STAGED && !FORWARD)
            __syncthreads();
        known_strip known;
        known.of = known_of(args, p);
        take_strip(args, p, known, NO_STRIP, m, round);
        /* Nobody is to send what belongs to the next strip before all are done with this one. After the
         * last a block may leave at once: all that is sent to it has come. */
        if (unit + step < all) {
            __syncthreads();
            if (CLUSTER > 1)
                cluster_arrive();
        }
    }
}

/* Blocks anywhere on the device live on. With LATE_HALF the later half of them begin later, so that not
 * all read at one time and write at another. */
__device__ __forceinline__ void take_many(const groups_args &args, mailbox &m) {
    const i64 all = args.images * STRIPS, step = gridDim.x / COOPERATING_BLOCKS;
    i64 unit = blockIdx.x / COOPERATING_BLOCKS;
    u32 round = 0;
    strip_place p = place_of(unit);
    const bool late = LATE_HALF && blockIdx.x >= gridDim.x / 2;
    if (!late)
        fill_all(args, p);
    known_strip known;
    known.of = known_of(args, p);
    clear_mail(args, p);
    if (late)
        fill_all(args, p);
    if (AHEAD && FORWARD)
        begin_forward(p, known.squares);
    if (AHEAD && !FORWARD)
        begin_backward(args, p, known.of, known.gradients);
    for (; unit < all; unit += step)
        p = take_strip(args, p, known, unit + step < all ? unit + step : NO_STRIP, m, round);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_strips(const groups_args args) {
    __shared__ mailbox m;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(m.byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    if constexpr (COOPERATIVE)
        take_many(args, m);
    else
        take_one(args, m);
}
