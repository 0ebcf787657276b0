/*
 * Norms over channels whose pixels are dense: x[image][channel][pixel] is reduced over the channels,
 * a row for each pixel. Forward (PASS 0) and backward (PASS 1), each tensor read and written once.
 *
 * A block (or a cluster of CLUSTER blocks, each with DEPTH of the COLS channels) takes TILE_PIXELS pixels
 * of an image at a time, brought to shared memory by asynchronous copies; then the next tile. TILE_PIXELS
 * is PIXELS where the whole image does: then a block's part is one run of bytes, whatever PIXELS is.
 *
 * The channels lie in lines of LINE_CHANNELS each: one, or in whole images of few odd pixels as many as make
 * whole chunks of WIDTH elements. Thread (lane, plane) of LANES x PLANES has a chunk of every
 * PLANES-th line, EACH of them: the sums of an element of a line are made of PLANES parts, each about
 * a pivot of its own (forward), merged in their order by one thread, then those of a pixel's LINE_CHANNELS
 * elements, then CLUSTER parts in their order. The mean stays a pair. Where squares leave float's range
 * the sums are made again, scaled by a power of two, which the pixel alone decides.
 *
 * A whole image comes in phases, a quarter of every thread's lines each, and is summed as it comes.
 * Weights are asked for before it where the compiler lets them be: loads come back in the order of asking,
 * so that a wait for weights asked for later is a wait for the image.
 *
 * The backward keeps the sums of dweight and dbias of its channels in registers from tile to tile and
 * writes one row of partial sums at the end. It has a ring of RING_SLOTS tiles, or the next image comes
 * phase by phase to the place of those that are done with. Its grid stays, and is as large as finds
 * room at once. Where a chunk is of two channels, what the second adds is kept in shared memory.
 *
 * LAST (forward): y is dense over channels, then pixels. OUT_THROUGH_SHARED: the output goes through shared memory,
 * where a thread's pixels are too few bytes for a store of their own; in tiles of an odd number of 16-bit
 * pixels only where x and the output lie alike to 16 bytes.
 *
 * Constants: PASS KIND COLS PIXELS TILE_PIXELS DEPTH LINE_CHANNELS WIDTH LANES PLANES WARPS CLUSTER RING_SLOTS LAST
 * OUT_THROUGH_SHARED CORRECT WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS DY_ACCESS
 * Y_ACCESS DX_ACCESS DSUM_ACCESS (alignments of the parts of an image and their rows, in bytes). DSUM_TYPE not NONE:
 * dsum joins dx (channel_dsum.cu).
 */
#include "channel_tiles.cu"
#include "channel_shifted.cu"
#include "channel_copies.cu"
#include "channel_output.cu"
#include "channel_forward.cu"
#include "channel_dsum.cu"
#include "channel_backward.cu"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_channels(const channels_args args) {
    __shared__ u64 byte_barriers[2];
    __shared__ int again;
    place p;
    p.lane = threadIdx.x % LANES;
    p.plane = threadIdx.x / LANES;
    p.row = LINE_CHANNELS > 1 ? p.lane * WIDTH / TILE_PIXELS : 0;
    p.pixel = p.lane * WIDTH - p.row * TILE_PIXELS;
    p.active = p.plane < PLANES;
    p.block = CLUSTER > 1 ? (int)cluster_rank() : 0;
    p.first = p.block * DEPTH;
    p.channels = p.block < CLUSTER - 1 ? DEPTH : FEWEST;
    p.room = shared_address(dynamic_shared);
    p.x_shift = p.dy_shift = 0;
    p.round = 0;
    p.byte_barriers = byte_barriers;
    p.parts = (float *)(dynamic_shared + PARTS_AT);
    p.moments = (four_floats *)(dynamic_shared + MOMENTS_AT);
    p.saved = (float *)(dynamic_shared + SAVED_AT);
    p.weight = (float *)(dynamic_shared + WEIGHT_AT);
    p.bias = (float *)(dynamic_shared + BIAS_AT);
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    gradients sums;
    if constexpr (!FORWARD)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            sums.weight[e] = sums.bias[e] = 0;
    if constexpr (!FORWARD && LINE_CHANNELS > 1)
        for (int i = threadIdx.x; i < (LINE_CHANNELS - 1) * LINES * 2; i += THREADS)
            cut_of(0, 0)[i] = 0; /* before the first barrier of a unit */
    if constexpr (FORWARD) {
        forward_units(args, p, &again);
    } else {
        backward_units(args, p, sums);
        __syncthreads();
    }
    if constexpr (!FORWARD && WANT_DWEIGHT)
        write_partials(p, sums.weight, 0, args.partial_weight);
    if constexpr (!FORWARD && WANT_DBIAS)
        write_partials(p, sums.bias, 1, args.partial_bias);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}
