/*
 * Backward of what modulated_forward.cu makes: that of ../rows/backward.cu with scale as weight, WEIGHT_OFFSET 1,
 * and shift as bias, sample by sample. What is dweight and dbias there are a sample's dscale and dshift: a block
 * has rows of one sample, blockIdx.y, and leaves a row of partial sums, which stages_samples.cu adds up; where it
 * has all rows of the sample (args.rows.alone), its sums are the result.
 *
 * Constants: those of backward.cu, of which weight, bias, dweight and dbias stand for scale, shift, dscale and
 * dshift.
 */
#include "../rows/backward_rows.cu"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_modulated_backward(const modulated_backward_args args) {
    const i64 sample = blockIdx.y;
    row_args own = args.rows;
    own.x = (const char *)own.x + sample * args.rows.x_slice;
    own.dy = (const char *)own.dy + sample * args.rows.dy_slice;
    own.rstd = (const char *)own.rstd + sample * args.rows.rstd_slice;
    if (WANT_DX)
        own.dx = (char *)own.dx + sample * args.rows.dx_slice;
    if (LAYER)
        own.mean = (const char *)own.mean + sample * args.rows.mean_slice;
    if (WEIGHT_TYPE != NONE)
        own.weight = (const char *)own.weight + sample * args.rows.weight_slice;
    if (BIAS_TYPE != NONE)
        own.bias = (const char *)own.bias + sample * args.rows.bias_slice;
    if (WANT_DWEIGHT) {
        own.partial_weight += sample * args.partial_slice;
        own.dweight = (char *)own.dweight + sample * args.rows.dweight_slice;
    }
    if (WANT_DBIAS) {
        own.partial_bias += sample * args.partial_slice;
        own.dbias = (char *)own.dbias + sample * args.rows.dbias_slice;
    }
    rows_of_block(own);
}
