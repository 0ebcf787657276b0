/*
 * A part of finish.cu and finish_pair.cu: adds up the partial rows of dweight and dbias in their order and
 * rounds once. A block has LANES columns, neighbouring lanes neighbouring ones, and for each SLICES lanes, which
 * take every SLICES-th row, ROWS of them under way at once; then the slices are added in order. blockIdx.y 0
 * is dweight, 1 dbias.
 *
 * Constants: COLS LANES SLICES ROWS DWEIGHT_TYPE DBIAS_TYPE (a NONE type: that one is not wanted).
 */
#include "../arguments/finish_args.h"

/* Adds rows row, row + SLICES ... of a lane's column: ALL that are under way at once, or those of
 * them that there are. */
template <bool ALL>
__device__ __forceinline__ void add_rows(const real *from, int row, int count, double &sum) {
    real v[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        v[j] = ALL || row + j * SLICES < count ? from[(i64)j * SLICES * COLS] : 0;
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        sum += v[j];
}

/* What block `block` of blockIdx.y does. */
__device__ __forceinline__ void finish_columns(const finish_args &args, u32 block) {
    __shared__ double room[SLICES][LANES];
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES, count = (int)args.count;
    const int column = block * LANES + lane;
    const bool weight = DWEIGHT_TYPE != NONE && (DBIAS_TYPE == NONE || blockIdx.y == 0);
    double sum = 0;
    release_stream();
    wait_for_stream();
    if (column < COLS) {
        const real *from =
            (weight ? args.partial_weight : args.partial_bias) + column + (i64)slice * COLS;
        int row = slice;
        for (; row + (ROWS - 1) * SLICES < count; row += ROWS * SLICES) {
            add_rows<true>(from, row, count, sum);
            from += (i64)ROWS * SLICES * COLS;
        }
        if (row < count)
            add_rows<false>(from, row, count, sum);
    }
    room[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && column < COLS) {
        sum = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            sum += room[s][lane];
        if (weight)
            store_element<DWEIGHT_TYPE>(args.dweight, column, (real)sum);
        else
            store_element<DBIAS_TYPE>(args.dbias, column, (real)sum);
    }
}
