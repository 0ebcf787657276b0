/*
 * Forward of dense rows with a modulation behind the norm and nothing else around it (planish.h):
 *
 *     y = f(xhat * (1 + scale) + shift)
 *
 * which is the norm of ../rows/forward.cu with scale as weight, WEIGHT_OFFSET 1, and shift as bias, but that rows
 * belong to samples with a row of scale and shift each. A block has rows of one sample, blockIdx.y, and does what
 * a block of forward.cu does with them: so a row's bits are those of around_forward.cu, and of no other row.
 *
 * Constants: those of forward.cu, of which weight and bias stand for scale and shift.
 */
#include "../rows/forward_rows.cu"

struct modulated_args {
    forward_args rows; /* of the first sample; rows.rows: of each */
    i64 x_sample, y_sample, mean_sample, rstd_sample, weight_sample, bias_sample; /* bytes from sample to sample */
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_modulated_forward(const modulated_args args) {
    const i64 sample = blockIdx.y;
    forward_args own = args.rows;
    own.x = (const char *)own.x + sample * args.x_sample;
    own.y = (char *)own.y + sample * args.y_sample;
    if (WEIGHT_TYPE != NONE)
        own.weight = (const char *)own.weight + sample * args.weight_sample;
    if (BIAS_TYPE != NONE)
        own.bias = (const char *)own.bias + sample * args.bias_sample;
    if (MEAN_TYPE != NONE)
        own.mean = (char *)own.mean + sample * args.mean_sample;
    if (RSTD_TYPE != NONE)
        own.rstd = (char *)own.rstd + sample * args.rstd_sample;
    rows_of_block(own);
}
