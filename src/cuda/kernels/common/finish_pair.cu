/*
 * What finish.cu does, of the two sets of rows of ../rows/backward_pair.cu: the second's blocks stand behind the
 * first's along blockIdx.x.
 *
 * Constants: those of finish.cu.
 */
#include "finish_columns.cu"

extern "C" __global__ void __launch_bounds__(LANES * SLICES) planish_finish_pair(const finish_pair_args args) {
    if (blockIdx.x < args.first_block)
        finish_columns(args.of[0], blockIdx.x);
    else
        finish_columns(args.of[1], blockIdx.x - args.first_block);
}
