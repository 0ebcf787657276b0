/*
 * Adds up the partial sums that a backward leaves of each sample, in their order: A of dm * xhat and B of dm give
 *
 *     dscale = w * A + bias * B    dshift = B
 *
 * and, for finish.cu to add up over the samples, (1 + scale) * A and (1 + scale) * B. A block has LANES
 * columns of one sample, neighbouring lanes neighbouring ones, and for each SLICES lanes, which take every SLICES-th
 * row of sums, ROWS of them under way at once; then the slices are added in order. blockIdx.y strides over the
 * samples.
 *
 * Constants: COLS LANES SLICES ROWS WANT_DWEIGHT WANT_DBIAS WEIGHT_OFFSET and the dtypes of weight, bias, scale,
 * dscale and dshift.
 */
#include "../arguments/finish_args.h"

constexpr int SCALE_TYPE = TYPES[ROLE_SCALE], DSCALE_TYPE = TYPES[ROLE_DSCALE], DSHIFT_TYPE = TYPES[ROLE_DSHIFT];

template <int TYPE> __device__ __forceinline__ double number_at(const void *base, i64 index, double absent) {
    if constexpr (TYPE == NONE)
        return absent;
    else
        return (double)load_element<TYPE>(base, index);
}

/* A column's sum over a slice's rows of one of the sums, the first of which is `row`; 0 where it is not wanted. */
template <bool WANTED> struct slice_sum {
    double sum = 0;
    real v[ROWS];

    __device__ __forceinline__ void ask(const real *from, int row, int count) {
        if constexpr (WANTED)
#pragma unroll
            for (int j = 0; j < ROWS; j++)
                v[j] = row + j * SLICES < count ? from[(i64)(row + j * SLICES) * COLS] : 0;
    }
    __device__ __forceinline__ void add() {
        if constexpr (WANTED)
#pragma unroll
            for (int j = 0; j < ROWS; j++)
                sum += v[j];
    }
};

extern "C" __global__ void __launch_bounds__(LANES * SLICES) planish_stages_samples(const samples_args args) {
    __shared__ double room[2][SLICES][LANES];
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES, count = (int)args.parts;
    const int column = blockIdx.x * LANES + lane;
    release_stream();
    wait_for_stream();
    for (i64 sample = blockIdx.y; sample < args.samples; sample += gridDim.y) {
        const i64 first = sample * args.parts * COLS + column;
        slice_sum<WANT_DWEIGHT != 0> weights;
        slice_sum<WANT_DBIAS != 0> biases;
        if (column < COLS)
            for (int row = slice; row < count; row += SLICES * ROWS) {
                weights.ask(args.partial_weight + first, row, count);
                biases.ask(args.partial_bias + first, row, count);
                weights.add();
                biases.add();
            }
        room[0][slice][lane] = weights.sum;
        room[1][slice][lane] = biases.sum;
        __syncthreads();
        if (slice == 0 && column < COLS) {
            double a = 0, b = 0;
#pragma unroll
            for (int s = 0; s < SLICES; s++) {
                a += room[0][s][lane];
                b += room[1][s][lane];
            }
            const char *scale = (const char *)args.scale + sample * args.scale_stride;
            const double up = 1 + number_at<SCALE_TYPE>(scale, column, 0);
            const double w = WEIGHT_OFFSET + number_at<WEIGHT_TYPE>(args.weight, column, 1 - WEIGHT_OFFSET);
            if constexpr (DSCALE_TYPE != NONE) {
                double v = w * a;
                if constexpr (BIAS_TYPE != NONE)
                    v += number_at<BIAS_TYPE>(args.bias, column, 0) * b;
                store_element<DSCALE_TYPE>((char *)args.dscale + sample * args.dscale_stride, column, (real)v);
            }
            if constexpr (DSHIFT_TYPE != NONE)
                store_element<DSHIFT_TYPE>((char *)args.dshift + sample * args.dshift_stride, column, (real)b);
            if (args.sample_weight)
                args.sample_weight[sample * COLS + column] = (real)(up * a);
            if (args.sample_bias)
                args.sample_bias[sample * COLS + column] = (real)(up * b);
        }
        __syncthreads();
    }
}
