/*
 * Backward of dense rows in one read: dx, and the sums for dweight and dbias, from a single pass
 * over x and dy. Persistent: a fixed share of the rows for each team of threads, each keeping the
 * sums of its columns in registers; at the end a block writes one row of partial sums, which
 * finish.cu adds up. Where one block, cluster or group takes all rows (args.alone) its sums are the
 * result. No atomics: the order of every sum is fixed by the launch.
 *
 * Chunks, THREADS_PER_ROW, CHUNKS_PER_THREAD, CLUSTER and ROWS are as in forward.cu. A team is a warp
 * (THREADS_PER_ROW up to WARP; it takes WARP / THREADS_PER_ROW * ROWS rows at a time) or one of TEAMS groups of
 * THREADS_PER_ROW threads in the block, which take one row each and exchange their sums apart from each other, so
 * that one team's exchange hides behind another's arithmetic.
 *
 * Rows come through a ring of RING_SLOTS slots in shared memory by asynchronous copies. Each thread
 * reads back only the bytes it copied itself, so the ring needs no barrier; a slot is refilled as
 * soon as its row is in registers. RING_SLOTS 0 loads straight to registers: for elements that
 * asynchronous copies cannot move (alignment below 4 bytes). HOLD_IN_RING: a row stays in the ring for its
 * output and is read again, and the weights wait in shared memory too, converted once for all rows, so
 * that a thread has registers for the sums of more columns.
 *
 *     g = dy * w    d = x - mean    delta = mean of d    c1 = mean of g
 *     xhat = (d - delta) * rstd     c2 = mean of g * xhat
 *     dx = rstd * (g - c1 - xhat * c2)
 *
 * With f16 x nothing leaves float's range whichever product comes first, and rstd goes to dy:
 * dx = (dy * rstd) * w - c1 * rstd - (d - delta) * (c2 * rstd^2), an instruction less for an element.
 *
 * ROWS_TILED: short rows of 16 bits through tiles (row_tiles.cu), read twice; weights in shared memory.
 * ROWS_IN_RUNS: longer ones through tiles: their sums by runs of words, then the output column by column
 * (backward_runs.cu), by PLANES parts of the block that take rows apart.
 *
 * delta mends the rounding of the saved mean (CORRECT 0 leaves it out), or is 0 (saved_mean.cu).
 *
 * COOPERATING_BLOCKS > 1 (a cooperative launch): COOPERATING_BLOCKS blocks anywhere on the device share each row, as in
 * forward.cu: a row's output comes DELAY turns after its sums, and an extra warp of each block
 * exchanges the sums in between. HOLD_THE_NEXT: the row that is put out next waits in registers.
 *
 * DSUM_TYPE not NONE: dsum, the gradient that comes by the residual stream, is added to dx. It comes by the ring, too,
 * where it stays until dx is made (DSUM_IN_RING), or straight from memory. Only of ROWS_PLAIN.
 *
 * An activation behind the norm (backward_activation.cu): dy stands for dy * f'(z) above.
 *
 * PASS 5: rows of which each device has a part: c1 and c2 of this one are written, and no dx; or they are given
 * (TYPES of c2), and nothing is summed but columns (backward_halves.cu). Else PASS is 0.
 *
 * Constants: PASS KIND ACTIVATION COLS X_TYPE DY_TYPE DX_TYPE WEIGHT_TYPE BIAS_TYPE MEAN_TYPE RSTD_TYPE DWEIGHT_TYPE
 * DBIAS_TYPE WEIGHT_OFFSET WIDTH THREADS_PER_ROW CHUNKS_PER_THREAD ROWS WARPS TEAMS CLUSTER COOPERATING_BLOCKS HOLD
 * RING_SLOTS DELAY CORRECT MIN_BLOCKS LEVELS SLICED DSUM_TYPE DSUM_ACCESS DSUM_IN_RING WANT_DWEIGHT WANT_DBIAS
 * VARIANT, with it PLANES, DENSE (1 x, 2 dy, 4 dx), and the alignments X_ACCESS DY_ACCESS DX_ACCESS WEIGHT_ACCESS
 * BIAS_ACCESS. DX_TYPE NONE: no dx.
 *
 * LEVELS SLICED: rows that do not lie one stride apart, and those with weights of their own (row_levels.cu); of such
 * there is neither dsum nor COOPERATING_BLOCKS > 1. A slice's partial rows lie behind those of the slices before it,
 * block by block.
 */
#include "backward_rows.cu"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS) planish_backward(const row_args args) {
    rows_of_block(args);
}
