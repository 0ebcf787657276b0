/*
 * Adds up the partial rows of dweight and dbias that a backward's blocks left (finish_columns.cu).
 *
 * Constants: COLS LANES SLICES ROWS DWEIGHT_TYPE DBIAS_TYPE (a NONE type: that one is not wanted).
 */
#include "finish_columns.cu"

extern "C" __global__ void __launch_bounds__(LANES * SLICES) planish_finish(const finish_args args) {
    finish_columns(args, blockIdx.x);
}
