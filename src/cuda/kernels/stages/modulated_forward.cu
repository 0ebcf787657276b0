/*
 * Forward of dense rows with a modulation behind the norm and nothing else around it (planish.h):
 *
 *     y = f(xhat * (1 + scale) + shift)
 *
 * which is the norm of ../rows/forward.cu with scale as weight, WEIGHT_OFFSET 1, and shift as bias, of rows that are
 * cut into slices, the samples, with a row of scale and shift each. A block has rows of one sample, blockIdx.y, and
 * does what a block of forward.cu does with them: so a row's bits are those of stages_forward.cu, and of no other row.
 *
 * Each sample's scale and shift are new to a multiprocessor, and to all blocks that it has then. Rows that load
 * them chunk by chunk behind their statistics would wait for memory at every chunk. So their blocks bring them to
 * the L1 at the start, while the rows themselves are under way, but where that would take registers that rows have
 * not; and the first block of each sample asks for its own and the next one's in the L2.
 *
 * Constants: those of forward.cu, of which weight and bias stand for scale and shift.
 */
#include "../rows/forward_rows.cu"

/* Rows of a warp, and those of two chunks a thread, have as many blocks as registers allow to the last. */
constexpr bool HAS_ROOM = THREADS_PER_ROW < WARP || (THREADS_PER_ROW > WARP && CHUNKS_PER_THREAD > 2);
constexpr bool BRINGS = !EARLY && !RUNS && !TILED && !COOPERATIVE && CLUSTER == 1 && HAS_ROOM &&
                        (WEIGHT_TYPE == NONE || WEIGHT_ACCESS >= 4) && (BIAS_TYPE == NONE || BIAS_ACCESS >= 4);

/* Bytes of a sample's row. */
constexpr int WEIGHTS = WEIGHT_TYPE == NONE ? 0 : COLS * bytes_of(WEIGHT_TYPE);
constexpr int BIASES = BIAS_TYPE == NONE ? 0 : COLS * bytes_of(BIAS_TYPE);

/* Asks for the lines of BYTES. */
template <int BYTES> __device__ __forceinline__ void prefetch(const void *first) {
#pragma unroll 1
    for (int at = threadIdx.x * 128; at < BYTES; at += ALL_THREADS * 128)
        prefetch_line((const char *)first + at);
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_modulated_forward(const row_forward_args args) {
    const i64 sample = blockIdx.y;
    row_args own = args;
    own.x = (const char *)own.x + sample * args.x_slice;
    own.y = (char *)own.y + sample * args.y_slice;
    if (WEIGHT_TYPE != NONE)
        own.weight = (const char *)own.weight + sample * args.weight_slice;
    if (BIAS_TYPE != NONE)
        own.bias = (const char *)own.bias + sample * args.bias_slice;
    if (MEAN_TYPE != NONE)
        own.mean = (char *)own.mean + sample * args.mean_slice;
    if (RSTD_TYPE != NONE)
        own.rstd = (char *)own.rstd + sample * args.rstd_slice;
    if (blockIdx.x == 0)
        for (int next = 0; next < 2 && sample + next < gridDim.y; next++) {
            prefetch<WEIGHTS>((const char *)own.weight + next * args.weight_slice);
            prefetch<BIASES>((const char *)own.bias + next * args.bias_slice);
        }
    if constexpr (BRINGS) {
        wait_for_stream();
        bring_parameters<WEIGHTS, BIASES, ALL_THREADS>(own.weight, own.bias);
    }
    rows_of_block(own);
    if constexpr (BRINGS)
        copy_async_wait<0>(); /* no block ends before its copies */
}
