/*
 * Adds up the partial rows of dweight and dbias in their order and rounds once. A warp's lanes take
 * neighbouring columns, SLICES warps every SLICES-th row; then the slices are added in order.
 * blockIdx.y 0 is dweight, 1 dbias.
 *
 * Constants: COLS DW_TYPE DB_TYPE SLICES (a NONE type: that one is not wanted).
 */
struct finish_args {
    const real *partial_weight, *partial_bias; /* [count][COLS] */
    void *dweight, *dbias;
    i64 count;
};

extern "C" __global__ void __launch_bounds__(32 * SLICES) planish_finish(const finish_args args) {
    __shared__ double room[SLICES][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int column = blockIdx.x * 32 + lane;
    const bool weight = DW_TYPE != NONE && (DB_TYPE == NONE || blockIdx.y == 0);
    const real *from = weight ? args.partial_weight : args.partial_bias;
    double sum = 0;
    release_stream();
    wait_for_stream();
    if (column < COLS) {
        /* All loads under way before the first is used: a few rows at most are left over. */
        constexpr int AT_ONCE = 10;
        for (i64 p = slice; p < args.count; p += AT_ONCE * SLICES) {
            real v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const i64 row = p + j * SLICES;
                v[j] = row < args.count ? from[row * COLS + column] : 0;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                sum += v[j];
        }
    }
    room[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && column < COLS) {
        sum = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            sum += room[s][lane];
        if (weight)
            store_element<DW_TYPE>(args.dweight, column, (real)sum);
        else
            store_element<DB_TYPE>(args.dbias, column, (real)sum);
    }
}
