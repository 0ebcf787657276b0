/*
 * Forward of dense rows: y = (x - mu) * rstd * (WEIGHT_OFFSET + weight) + bias, one read of x and
 * one write of y. Mapping of elements to threads depends on COLS and the dtypes alone, so a row's
 * result depends on nothing but the row. Knows nothing of strides inside a row.
 *
 * A row is cut into chunks of WIDTH elements. THREADS_PER_ROW threads share a row: up to WARP, then a warp is a
 * team that takes WARP / THREADS_PER_ROW * ROWS rows at a time; or whole warps, then the block is the team and
 * takes one. CLUSTER blocks share a row where one does not hold it. Thread `rank` of the THREADS_PER_ROW *
 * CLUSTER holds chunks rank, rank + THREADS_PER_ROW * CLUSTER, ...: CHUNKS_PER_THREAD of them.
 *
 * HOLD says where the row stays between the statistics and the output: in registers, in shared memory or nowhere,
 * for it is read again. Of HOLD_IN_REGISTERS with RING_SLOTS > 0 the rows to come wait in a ring of RING_SLOTS
 * slots in shared memory, filled by asynchronous copies while the present one is worked on. A thread reads back
 * from shared memory only the bytes it copied itself, so neither needs a barrier.
 *
 * Statistics, in one exchange: each thread takes sums about a pivot of its own (the mean of its
 * first chunks), moves them to a pivot of its warp, then to that of the row's first warp, and adds
 * along a fixed tree. The mean stays a pair: pivot + delta. Totals are f32 for 16-bit x (where a
 * thread has 8 elements), else f64. Where squares leave float's range (f32 and bf16) the row is
 * done again, scaled by a power of two.
 *
 * Rows of 16 bits and up to 512 columns go another way (centred_words.cu); some of them, and longer ones
 * that are no whole number of 16-byte chunks, go a third (VARIANT ROWS_TILED: tiled_words.cu) or, by a warp
 * or half of one for each, a fourth (ROWS_IN_RUNS: forward_runs.cu; HELD_AS_WORDS: registers hold a row as it
 * is in memory).
 *
 * EARLY asks for weight and bias before the statistics, where nothing else hides their latency: to registers, or
 * to the L1 (early_parameters.cu), where rows have no registers to spare.
 *
 * COOPERATING_BLOCKS > 1 (then HOLD_IN_SHARED and EARLY 1; a cooperative launch): COOPERATING_BLOCKS blocks
 * anywhere on the device share each row, more groups take further rows. Rows pass through a ring of RING_SLOTS
 * slots; a row's output comes DELAY turns after its sums, and in between an extra warp of each block sends them to
 * the others and merges what they sent, so that nobody waits for an exchange.
 *
 * GROUPS > 0: rows are groups of channels, GROUPS of them before the first comes again; weight and bias
 * have an element for each PIXELS of the row, and the row's own.
 *
 * Constants: PASS KIND ACTIVATION COLS X_TYPE Y_TYPE WEIGHT_TYPE BIAS_TYPE MEAN_TYPE RSTD_TYPE M2_TYPE
 * WEIGHT_OFFSET WIDTH THREADS_PER_ROW GROUPS PIXELS CHUNKS_PER_THREAD ROWS WARPS CLUSTER COOPERATING_BLOCKS HOLD
 * RING_SLOTS DELAY EARLY MIN_BLOCKS LEVELS SLICED VARIANT, with that HELD_AS_WORDS and DENSE (1: the rows of x follow
 * each other without a gap, 2: those of y), and alignments in bytes: X_ACCESS Y_ACCESS WEIGHT_ACCESS BIAS_ACCESS
 * (with DENSE, of the first row).
 *
 * PASS: 0; or, where each device has a part of every row, 3, statistics alone: the mean, and m2, the sum of
 * squares about it; and 4, the output by a mean and rstd that are given. Both only in warps, blocks and clusters
 * (forward_blocks.cu).
 *
 * LEVELS SLICED: rows that do not lie one stride apart, and those with weights of their own (row_levels.cu).
 */
#include "forward_rows.cu"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS) planish_forward(const row_args args) {
    if constexpr (EARLY == EARLY_TO_L1) {
        constexpr int WEIGHTS = WEIGHT_TYPE == NONE ? 0 : COLS * bytes_of(WEIGHT_TYPE);
        constexpr int BIASES = BIAS_TYPE == NONE ? 0 : COLS * bytes_of(BIAS_TYPE);
        wait_for_stream();
        bring_parameters<WEIGHTS, BIASES, ALL_THREADS>(args.weight, args.bias);
        if constexpr (WITHIN_WARP) {
            rows_of_block(args);
        } else {
            const row_args own = args; /* fewer registers than from the parameters */
            rows_of_block(own);
        }
        copy_async_wait<0>();
    } else {
        rows_of_block(args);
    }
}
