/*
 * Backward of rows too long for backward.cu, in two kernels that both read x and dy: planish_sums
 * takes each row's sums piece by piece, planish_apply then makes dx and, each thread for the columns
 * it keeps, the sums for dweight and dbias. Right for every length; 5 tensors' traffic where
 * backward.cu has 3. Sums, names and the formula are as there.
 *
 * planish_sums: blockIdx.x is the piece of LONG_PIECE elements, blockIdx.y strides over the rows.
 * planish_apply: blockIdx.x is the strip of THREADS * WIDTH columns, blockIdx.y strides over the rows
 * and is the row of partial sums.
 *
 * Constants: KIND COLS X_TYPE DY_TYPE DX_TYPE WEIGHT_TYPE MEAN_TYPE RSTD_TYPE WEIGHT_OFFSET WIDTH WARPS
 * WANT_DWEIGHT WANT_DBIAS X_ACCESS DY_ACCESS DX_ACCESS WEIGHT_ACCESS.
 */
#include "../arguments/row_args.h"

#include "../common/saved_mean.cu"

#include "../common/rule.cu"
constexpr bool WANT_DX = DX_TYPE != NONE;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int WEIGHT_BYTES = WIDTH * bytes_of(WEIGHT_TYPE);
constexpr bool HAS_DSUM = DSUM_TYPE != NONE;
constexpr int DSUM_BYTES = WIDTH * bytes_of(DSUM_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int THREADS = WARPS * WARP;
constexpr int LONG_PIECE = 8192;
constexpr int PIECES = ceil_div(COLS, LONG_PIECE);

__device__ __forceinline__ void weights_at(const row_long_args &args, int chunk_index, real *w) {
    if constexpr (WEIGHT_TYPE != NONE) {
        auto c = load_chunk<WEIGHT_BYTES, WEIGHT_ACCESS>((const char *)args.weight +
                                               (i64)chunk_index * WEIGHT_BYTES);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            w[i] = element<WEIGHT_TYPE>(c.word, i);
            if (WEIGHT_OFFSET)
                w[i] += (real)WEIGHT_OFFSET;
        }
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            w[i] = 1;
    }
}

__device__ __forceinline__ stored_mean mean_of(const row_long_args &args, i64 row) {
    if constexpr (LAYER)
        return load_mean((const char *)args.mean + row * args.mean_stride);
    else
        return 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_sums(const row_long_args args) {
    __shared__ real room[3][WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int first = blockIdx.x * (LONG_PIECE / WIDTH), last = least(first + LONG_PIECE / WIDTH, CHUNKS);
    release_stream();
    wait_for_stream();
    for (i64 row = blockIdx.y; row < args.rows; row += gridDim.y) {
        const char *x = (const char *)args.x + row * args.x_stride;
        const char *dy = (const char *)args.dy + row * args.dy_stride;
        const real mean = (real)mean_of(args, row);
        real sum[3] = {0, 0, 0};
#pragma unroll 4
        for (int c = first + threadIdx.x; c < last; c += THREADS) {
            auto xs = load_chunk<X_BYTES, X_ACCESS>(x + (i64)c * X_BYTES);
            auto gs = load_chunk<DY_BYTES, DY_ACCESS>(dy + (i64)c * DY_BYTES);
            real w[WIDTH], g[WIDTH], d[WIDTH], product[WIDTH];
            weights_at(args, c, w);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                d[i] = element<X_TYPE>(xs.word, i) - mean;
                g[i] = element<DY_TYPE>(gs.word, i) * w[i];
                product[i] = g[i] * d[i];
            }
            sum[0] += tree_sum<WIDTH>(g);
            sum[1] += tree_sum<WIDTH>(product);
            sum[2] += tree_sum<WIDTH>(d);
        }
#pragma unroll
        for (int j = 0; j < 3; j++) {
            sum[j] = sum_over_lanes<WARP>(sum[j], lane);
            if (lane == 0)
                room[j][warp] = sum[j];
        }
        __syncthreads();
        if (threadIdx.x < 3) {
            real all = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                all += room[threadIdx.x][w];
            args.sums[(row * PIECES + blockIdx.x) * 4 + threadIdx.x] = all;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_apply(const row_long_args args) {
    const int lane = threadIdx.x % WARP;
    const int c = blockIdx.x * THREADS + threadIdx.x;
    const bool has = c < CHUNKS;
    real w[WIDTH], dweight[WIDTH], dbias[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        w[i] = dweight[i] = dbias[i] = 0;
    release_stream();
    wait_for_stream();
    if (has)
        weights_at(args, c, w);
    for (i64 row = blockIdx.y; row < args.rows; row += gridDim.y) {
        auto xs = zero_chunk<X_BYTES>();
        auto gs = zero_chunk<DY_BYTES>();
        auto dsums = zero_chunk<DSUM_BYTES>();
        if (has) {
            xs = load_chunk<X_BYTES, X_ACCESS>((const char *)args.x + row * args.x_stride +
                                               (i64)c * X_BYTES);
            gs = load_chunk<DY_BYTES, DY_ACCESS>((const char *)args.dy + row * args.dy_stride +
                                               (i64)c * DY_BYTES);
            if constexpr (HAS_DSUM)
                dsums = load_chunk<DSUM_BYTES, DSUM_ACCESS>((const char *)args.dsum + row * args.dsum_stride +
                                                            (i64)c * DSUM_BYTES);
        }
        const stored_mean saved = mean_of(args, row);
        const real mean = (real)saved;
        const real rstd =
            load_element<RSTD_TYPE>((const char *)args.rstd + row * args.rstd_stride, 0);
        real sum[3] = {0, 0, 0};
        for (int s = lane; s < PIECES; s += WARP)
#pragma unroll
            for (int j = 0; j < 3; j++)
                sum[j] += args.sums[(row * PIECES + s) * 4 + j];
#pragma unroll
        for (int j = 0; j < 3; j++)
            sum[j] = sum_over_lanes<WARP>(sum[j], lane);
        const real delta = LAYER ? rest_of_mean(saved, sum[2] * (real)(1.0 / count_of(COLS))) : 0;
        const real back = -delta * rstd;
        const real c1 = LAYER ? sum[0] * (real)(1.0 / count_of(COLS)) : 0;
        const real both = multiply_add(-delta, sum[0], sum[1]) * (real)(1.0 / count_of(COLS)) * rstd;
        const real c2 = c2_of(both, rstd, args.clamped);
        const real by_xhat = -c2 * rstd, constant = -c1 * rstd;
        real out[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            real d = element<X_TYPE>(xs.word, i), g = element<DY_TYPE>(gs.word, i);
            real xhat = multiply_add(d - mean, rstd, back);
            dweight[i] = multiply_add(g, xhat, dweight[i]);
            dbias[i] += g;
            out[i] = multiply_add(g * w[i], rstd, multiply_add(xhat, by_xhat, constant));
            if constexpr (HAS_DSUM)
                out[i] += element<DSUM_TYPE>(dsums.word, i);
        }
        if constexpr (WANT_DX) {
            constexpr int DX_BYTES = WIDTH * bytes_of(DX_TYPE);
            if (has)
                store_chunk<DX_BYTES, DX_ACCESS>((char *)args.dx + row * args.dx_stride +
                                                   (i64)c * DX_BYTES,
                                               pack<DX_TYPE, WIDTH>(out));
        }
    }
    if (has) {
        const i64 at = (i64)blockIdx.y * COLS + (i64)c * WIDTH;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (WANT_DWEIGHT)
                args.partial_weight[at + i] = dweight[i];
            if (WANT_DBIAS)
                args.partial_bias[at + i] = dbias[i];
        }
    }
}
