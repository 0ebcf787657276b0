/*
 * planish: fused normalization layers, forward and backward, at the speed of memory.
 *
 * This is the whole public C API. It covers LayerNorm, RMSNorm, L2 normalization, GroupNorm,
 * InstanceNorm, BatchNorm, channel LayerNorm and weight standardization by one operator over two
 * sets of axes:
 *
 *     reduce axes R    the moments are taken over these
 *     affine axes A    weight and bias vary along these and are broadcast along the others
 *
 * Forward, with n the number of elements in R:
 *
 *     mu   = (1/n) sum over R of x                      (RMS: 0)
 *     var  = (1/n) sum over R of (x - mu)^2             (biased)
 *     rstd = 1 / sqrt(var + eps)
 *     xhat = (x - mu) * rstd
 *     y    = xhat * (weight_offset + weight) + bias     (an absent weight is 1, an absent bias 0)
 *
 * Backward:
 *
 *     g       = dy * (weight_offset + weight)
 *     c1      = (1/n) sum over R of g                   (RMS: 0)
 *     c2      = (1/n) sum over R of g * xhat
 *     dx      = rstd * (g - c1 - xhat * c2)
 *     dweight = sum of dy * xhat over all axes that are not in A
 *     dbias   = sum of dy        over all axes that are not in A
 *
 * An L2 norm is an RMS norm but for two lines; what is told below of RMS norms holds for it:
 *
 *     rstd = 1 / max(length, eps)                       length = sqrt(sum over R of x^2)
 *     c2   = sum over R of g * xhat                     (0 where the length is less than eps)
 *
 * BACKWARD sees by rstd that a length was less than eps: rstd is 1 / eps then, to 4 ULP of the
 * arithmetic, or to its own rounding where it has 16 bits. Lengths so little above eps count as
 * less.
 *
 * Where an activation f follows, z above in place of y and
 *
 *     y  = f(z)
 *     dy is f'(z) times the gradient that comes in, wherever the formulas of backward have it
 *
 * Stages may stand around the norm, in one order; each is optional (planish_tensors says which
 * tensor brings which), and keep is 1 or 0, drawn from rng:
 *
 *     u    = x * silu(gate)                             a gate before the norm
 *            * column_scale * row_scale * keep / (1 - dropout_p)
 *     s    = u + residual                               rounded once; written as `sum`
 *     z    = the norm of s, as above
 *     m    = z * (1 + scale) + shift                    modulation
 *     a    = m + addend                                 a residual behind the norm
 *     v    = f(a)
 *     y    = v * silu(gate)                             a gate behind the norm
 *     q    = y / y_scale, rounded and saturated         quantisation
 *
 * and backward, of all sums over axes those that the result has not:
 *
 *     dm        = dy * silu(gate) * f'(a)               dgate  = dy * v * silu'(gate)
 *     daddend   = dm
 *     dshift    = sum of dm                             dscale = sum of dm * z
 *     ds        = the norm's dx of dm * (1 + scale), + dsum
 *     dresidual = ds
 *     dx        = ds * (what x was multiplied by)
 *     dcolumn_scale = sum of ds * x * (what x was multiplied by, but column_scale)
 *     dgate     = ds * x * silu'(gate) * (the other factors of x)          a gate before the norm
 *
 * Statistics may be kept over many calls (LAYER norms; BatchNorm, where R is all axes but the
 * channels and A the channels). FORWARD brings them up to date where they are there, after all of
 * them was read, in f64, rounded once:
 *
 *     running_mean = (1 - momentum) * running_mean + momentum * mu
 *     running_var  = (1 - momentum) * running_var  + momentum * var * n / (n - 1)
 *
 * Where R has no elements they stay; where it has one, running_var becomes NaN. APPLY and BACKWARD
 * take them in place of mean and rstd: mu is running_mean, rstd is 1 / sqrt(running_var + eps), and
 * as these do not depend on x, c1 and c2 are 0 in backward: dx = dy * (weight_offset + weight) *
 * rstd. A batch norm depends on the whole batch: what is told below of rows holds for channels.
 *
 * Sources: Ba, Kiros, Hinton 2016 (LayerNorm); Zhang, Sennrich 2019 (RMSNorm);
 * torch.nn.functional.normalize, whose gradient at a clamped length this is (L2); Wu, He 2018
 * (GroupNorm); Chan, Golub, LeVeque 1983 (corrected sums of squares).
 *
 * What holds for every function here:
 *
 * Tensors are DLPack's DLTensor: a C struct with data pointer, device, dtype, shape, strides (in
 * elements; NULL means dense row-major) and byte offset. planish reads the descriptor during the
 * call only and never keeps, frees or changes it. Any strides are accepted for inputs, 0 and
 * negative ones included; an output must not overlap itself. Any alignment of the data that suits
 * its dtype is accepted. A tensor with no elements may have a NULL data pointer.
 *
 * Dtypes: f16, bf16, f32 and f64, each tensor its own. If one of x, y, dy, dx, weight, bias,
 * dweight and dbias is f64 the arithmetic is f64, otherwise f32; mean, rstd and m2 are as good as
 * the arithmetic, whatever their dtype. Sums are never kept in 16 bits. Results are rounded once,
 * to nearest even; subnormals are kept.
 *
 * Precision: 16-bit outputs equal the exact result rounded once, or its neighbour in at most 1 of
 * 1000 elements; f32 outputs are within 4 ULP of the largest magnitude in their row, for any mean
 * up to 1e4 standard deviations and magnitudes from 1e-30 to 1e30 (docs/guide/reproducibility.md).
 *
 * Determinism: the result for a row depends on that row alone, not on the number of rows or
 * threads, the instruction set, or the run. dweight and dbias depend on the problem and the inputs
 * alone.
 *
 * Threads: every function may be called from any thread at any time. planish keeps no hidden state
 * beyond one table of kernels, chosen once for this CPU, its cache of compiled GPU kernels, and the
 * packs of them that were loaded.
 *
 * Memory: running allocates nothing on the CPU. Workspace comes from the caller; its size is asked
 * first and is a pure function of the arguments. Its contents are undefined before and after.
 *
 * Failure: a status other than PLANISH_OK, and in planish_exec.message one sentence that names the
 * argument, what was found and what was wanted. Outputs are then as they were. Nothing aborts,
 * exits or prints.
 *
 * Environment: PLANISH_CPU_TIER (portable, avx2, avx512, avx512bf16, neon) caps the instruction set
 * used, PLANISH_CPU (zen4, ...: src/cpu/tuning.c) names the CPU whose tuning is taken. Both are
 * read once, at the first call; an unknown or unavailable name is ignored. The variables of the GPU
 * kernels' cache and pack are in docs/guide/gpu.md.
 */
#ifndef PLANISH_H
#define PLANISH_H

#include <stddef.h>
#include <stdint.h>

#include "planish/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define PLANISH_API
#else
#define PLANISH_API __attribute__((visibility("default")))
#endif

#define PLANISH_VERSION_MAJOR 0
#define PLANISH_VERSION_MINOR 1
#define PLANISH_VERSION_PATCH 0
/* One number that grows with every release: 10000 * major + 100 * minor + patch. */
#define PLANISH_VERSION                                                                            \
    (10000 * PLANISH_VERSION_MAJOR + 100 * PLANISH_VERSION_MINOR + PLANISH_VERSION_PATCH)

/* The most axes a tensor may have. */
#define PLANISH_MAX_NDIM 16

/* ---- Status ------------------------------------------------------------------------------- */

typedef enum planish_status {
    PLANISH_OK = 0,
    PLANISH_ERROR_NULL_POINTER = 1, /* a required argument or its data is NULL */
    PLANISH_ERROR_STRUCT_SIZE = 2,  /* a struct_size field was not set, or fields of a newer header
                                       are used */
    PLANISH_ERROR_ARGUMENT = 3,     /* kind, pass, eps or weight_offset is not one of its values */
    PLANISH_ERROR_AXES = 4,         /* an axis is out of range, or a set of axes makes no sense */
    PLANISH_ERROR_SHAPE = 5,        /* a rank or a size does not match */
    PLANISH_ERROR_STRIDES = 6,      /* an output overlaps itself, or addresses overflow 64 bits */
    PLANISH_ERROR_DTYPE = 7,        /* not f16, bf16, f32 or f64, or more than one lane */
    PLANISH_ERROR_DEVICE = 8,       /* tensors on different devices, or on one planish cannot use */
    PLANISH_ERROR_OVERLAP = 9,      /* an output shares memory with another tensor */
    PLANISH_ERROR_WORKSPACE = 10,   /* the workspace is missing or too small */
    PLANISH_ERROR_OUT_OF_MEMORY = 11,
    PLANISH_ERROR_UNAVAILABLE = 12, /* a library or device this needs is not there */
    PLANISH_ERROR_DRIVER = 13,      /* a call into the GPU driver or compiler failed */
    PLANISH_ERROR_FILE = 14, /* a file is missing, is not what was wanted, or was not written */
    PLANISH_ERROR_NO_FAST_KERNEL = 15 /* only the general kernels take such a problem */
} planish_status;

/* The name of a status, such as "PLANISH_ERROR_SHAPE"; never NULL. */
PLANISH_API const char *planish_status_name(planish_status status);

/* PLANISH_VERSION of the library that is loaded. */
PLANISH_API int planish_version(void);

/* ---- The operator ------------------------------------------------------------------------- */

typedef enum planish_kind {
    PLANISH_LAYER = 0, /* subtract the mean, divide by the standard deviation */
    PLANISH_RMS = 1,   /* divide by the root mean square */
    PLANISH_L2 = 2     /* divide by the length, or by eps where that is more */
} planish_kind;

/* What follows the norm in the same pass over memory: y = f(z). */
typedef enum planish_activation {
    PLANISH_IDENTITY = 0,
    PLANISH_SILU = 1, /* z / (1 + exp(-z)), also called swish. Below -87 (f64: -708), where it is
                         less than 2e-36 (f64: 3e-305), it is taken as what it is there */
    PLANISH_RELU = 2, /* z where it is more than 0, else 0. NaN stays, and has slope 1 */
    PLANISH_GELU = 3, /* z P(X <= z), X of the standard normal distribution: z (1 + erf(z /
                         sqrt(2))) / 2. Below -13 (f64: -37), where it is less than 1e-37 (f64:
                         1e-305), it is taken as what it is there */
    PLANISH_GELU_TANH = 4, /* z (1 + tanh(sqrt(2 / pi) (z + .044715 z^3))) / 2. Below -9.97 (f64:
                              -21.1), where it is less than 1e-36 (f64: 1e-303), likewise */
    PLANISH_RELU6 = 5,    /* min(max(z, 0), 6); slope 0 at 0 and at 6. NaN stays, and has slope 1 */
    PLANISH_HARDSWISH = 6 /* z min(max(z + 3, 0), 6) / 6; slope 0 at -3 and below, 1 from 3 on */
} planish_activation;

/*
 * Structs grow from release to release, by fields at their end; 0 in a new field always means what
 * was before it. struct_size tells the library which fields the caller knows: those behind it count
 * as 0. A struct of a newer header than the library's is accepted while all that the library does
 * not know is 0. So a program works with a library older or newer than its header.
 */

/* A set of axes is a bit mask: bit i stands for axis i of x. */
#define PLANISH_AXIS(i) ((uint64_t)1 << (i))

/* Where the gate multiplies. */
typedef enum planish_gate {
    PLANISH_GATE_AFTER = 0, /* the norm's result: y = v * silu(gate) */
    PLANISH_GATE_BEFORE = 1 /* what it reads: s = x * silu(gate). Not with a residual. In BACKWARD x
                               is then FORWARD's x, from which s is made again, not rounded */
} planish_gate;

/* Where xhat is rounded. */
typedef enum planish_rounding {
    PLANISH_ROUND_ONCE = 0, /* nowhere: y is rounded at the end, once */
    PLANISH_ROUND_XHAT = 1  /* to x's dtype before it meets the weight, and their product once more:
                               what models do whose RMSNorm is written so. The backward takes the
                               rounding for the identity */
} planish_rounding;

/* What y_scales holds. */
typedef enum planish_scale_format {
    PLANISH_SCALE_FLOAT = 0,        /* amax / the largest number of q's dtype */
    PLANISH_SCALE_POWER_OF_TWO = 1, /* the same, made larger to the next power of two, from 2^-126
                                       to 2^127. In f32, or in f8_e8m0 */
} planish_scale_format;

typedef struct planish_norm {
    size_t struct_size; /* sizeof(planish_norm) */
    planish_kind kind;
    int32_t
        weight_offset; /* 0, or 1 for weights stored around zero: y = xhat * (1 + weight) + bias */
    uint64_t reduce_axes; /* R; not empty */
    uint64_t affine_axes; /* A; used only by weight, bias, dweight and dbias */
    double eps;           /* added to the variance; finite. Negative is allowed: where var + eps < 0
                             the row becomes NaN. Of L2 the least length: 0 and less have no effect,
                             and a row of zeros becomes NaN */
    planish_activation activation; /* of y; not with PLANISH_BACKWARD_FROM_Y, without effect on
                                      PLANISH_STATISTICS. Fast where the norm alone is, but on a GPU
                                      in the backward of rows that a cluster does not hold, and of
                                      groups of channels of a LayerNorm kind with an f32 tensor
                                      whose mean was not saved in f64: right but slow there. On the
                                      CPU, too, that mean makes the backward faster */
    /* ---- The stages around the norm; 0 means none of it. FORWARD and BACKWARD have them ---- */
    uint64_t modulation_axes; /* scale, shift, dscale and dshift vary along these */
    uint64_t column_axes;     /* column_scale and dcolumn_scale vary along these; 0: along A */
    planish_gate gate;        /* where the gate stands, if there is one */
    planish_rounding rounding;
    double dropout_p;    /* the probability that an element of x is dropped; at least 0, below 1 */
    int64_t scale_block; /* y_scales has one scale for each so many elements of a row (the last one
                            may be of fewer); 0: one for a row */
    planish_scale_format scale_format; /* of y_scales */
    int32_t reserved;                  /* 0 */
    double scale_least, scale_most;    /* bounds of a scale that is made, before it becomes a power
                                          of two; 0: none. In that order: where they contradict,
                                          scale_most holds. A scale of 0 is made 1 before that */
    /* ---- Statistics that are kept over many calls ---- */
    double momentum; /* the share of the new ones in running_mean and running_var; finite. A
                        cumulative average has 1 / (calls so far, this one included) */
} planish_norm;

/* The operator over these axes, with everything else 0. (These makers are part of the caller, not
 * of the library, so that what they return is as large as the caller's planish_norm.) */
static inline planish_norm planish_norm_op(planish_kind kind, uint64_t reduce_axes,
                                           uint64_t affine_axes, double eps) {
    planish_norm op = {sizeof(planish_norm),
                       kind,
                       0,
                       reduce_axes,
                       affine_axes,
                       eps,
                       PLANISH_IDENTITY,
                       0,
                       0,
                       PLANISH_GATE_AFTER,
                       PLANISH_ROUND_ONCE,
                       0,
                       0,
                       PLANISH_SCALE_FLOAT,
                       0,
                       0,
                       0,
                       0};
    return op;
}

/*
 * The operator of LayerNorm / RMSNorm over the last `normalized_ndim` of `ndim` axes, with the
 * affine axes the same. Where the numbers make no sense the axes are empty, and the call that uses
 * the operator says so.
 */
static inline planish_norm planish_last_axes_op(planish_kind kind, int32_t ndim,
                                                int32_t normalized_ndim, double eps) {
    uint64_t axes = 0;
    if (normalized_ndim > 0 && normalized_ndim <= ndim && ndim <= PLANISH_MAX_NDIM)
        axes = (PLANISH_AXIS(normalized_ndim) - 1) << (ndim - normalized_ndim);
    return planish_norm_op(kind, axes, axes, eps);
}

static inline planish_norm planish_layer_norm_op(int32_t ndim, int32_t normalized_ndim,
                                                 double eps) {
    return planish_last_axes_op(PLANISH_LAYER, ndim, normalized_ndim, eps);
}

static inline planish_norm planish_rms_norm_op(int32_t ndim, int32_t normalized_ndim, double eps) {
    return planish_last_axes_op(PLANISH_RMS, ndim, normalized_ndim, eps);
}

/*
 * The operators of layers over channels, which are axis 1 of `ndim` axes.
 *   group     x seen as (N, groups, C / groups, ...), 3 axes or more: R is all but the first two, A
 *             the second and third. planish_group_norm_run sees x so by itself.
 *   instance  x (N, C, ...), 3 axes or more: R is all but the first two, A the channels
 *   channel   x (N, C, ...), 2 axes or more, of either kind: R and A are the channels. LayerNorm2d
 *             without a permute.
 *   batch     x (N, C, ...), 2 axes or more: R is all but the channels, which are A.
 * Where the numbers make no sense the axes are empty, as above.
 */
static inline uint64_t planish_axes_from_2(int32_t ndim) {
    return ndim > 2 && ndim <= PLANISH_MAX_NDIM ? (PLANISH_AXIS(ndim) - 1) & ~(uint64_t)3 : 0;
}

static inline planish_norm planish_group_norm_op(int32_t ndim, double eps) {
    const uint64_t reduce = planish_axes_from_2(ndim);
    return planish_norm_op(PLANISH_LAYER, reduce, reduce ? PLANISH_AXIS(1) | PLANISH_AXIS(2) : 0,
                           eps);
}

static inline planish_norm planish_instance_norm_op(int32_t ndim, double eps) {
    const uint64_t reduce = planish_axes_from_2(ndim);
    return planish_norm_op(PLANISH_LAYER, reduce, reduce ? PLANISH_AXIS(1) : 0, eps);
}

static inline planish_norm planish_channel_norm_op(planish_kind kind, int32_t ndim, double eps) {
    const uint64_t axes = ndim > 1 && ndim <= PLANISH_MAX_NDIM ? PLANISH_AXIS(1) : 0;
    return planish_norm_op(kind, axes, axes, eps);
}

static inline planish_norm planish_batch_norm_op(int32_t ndim, double eps, double momentum) {
    const uint64_t channels = ndim > 1 && ndim <= PLANISH_MAX_NDIM ? PLANISH_AXIS(1) : 0;
    const uint64_t reduce = channels ? (PLANISH_AXIS(ndim) - 1) & ~channels : 0;
    planish_norm op = planish_norm_op(PLANISH_LAYER, reduce, channels, eps);
    op.momentum = momentum;
    return op;
}

/* ---- Passes and their tensors ------------------------------------------------------------- */

typedef enum planish_pass {
    /* x, weight?, bias? -> y, mean?, rstd?, and the stages' tensors (planish_tensors);
     * running_mean?, running_var? are read and written */
    PLANISH_FORWARD = 0,
    /* dy, x, mean, rstd, weight? -> dx?, dweight?, dbias?     (RMS: no mean)
     * or, of a norm by kept statistics, running_mean and running_var in place of mean and rstd;
     * and c1?, c2?: both or none (RMS: c2? alone), used in place of what the formula makes of this
     * part, where a reduced axis is split over processes. In f32 and less dy * (weight_offset +
     * weight) then has to be within f32's range;
     * and bias? where an activation, scale or gate follows, the one of the forward. Save the mean
     * in f64 then: with x, y and weight of less it is taken for the mean itself, where any other
     * costs a sweep over x that finds what its rounding lost. mean and rstd are used as they are
     * given, be they x's own or not. A mean within a few ULP of x's own, in the mean's dtype, is
     * that, rounded, and what rounding took from it is mended; docs/internals/numerics.md has the
     * bound. */
    PLANISH_BACKWARD = 1,
    /* dy, y, rstd, weight?, bias? -> dx?, dweight?, dbias?
     * The memory-efficient backward: xhat = (y - bias) / (weight_offset + weight), so x need not be
     * kept. Where |weight_offset + weight| <= u * |bias|, with u one ULP of y's dtype at 1, or is
     * 0, y holds no digit of xhat, and xhat is taken as 0 there. */
    PLANISH_BACKWARD_FROM_Y = 2,
    /* x -> mean, m2: the mean over R (RMS: not allowed) and the sum over R of (x - mean)^2
     * (RMS: of x^2). For a reduced axis that is split over processes: merge the parts, then apply.
     * Parts a and b of n_a and n_b elements merge as
     *     mean = (n_a mean_a + n_b mean_b) / (n_a + n_b)
     *     m2   = m2_a + m2_b + (mean_a - mean_b)^2 n_a n_b / (n_a + n_b)
     * and rstd = 1 / sqrt(m2 / n + eps) (L2: 1 / max(sqrt(m2), eps)). Keep mean, m2 and rstd in
     * f64: a mean in f32 is rounded,
     * and apply cannot mend it. */
    PLANISH_STATISTICS = 3,
    /* x, mean, rstd, weight?, bias?, addend? -> y     (RMS: no mean; eps is not used)
     * or running_mean and running_var in place of mean and rstd, with eps: inference */
    PLANISH_APPLY = 4,
    /* dy, x, mean, rstd, weight? -> c1, c2, dweight?, dbias?     (RMS: neither mean nor c1)
     * The first half of a backward whose reduced axis is split over processes: c1 and c2 of the
     * part, by the mean and rstd of the whole, which are used as they are given. Parts a and b
     * merge as c1 = (n_a c1_a + n_b c1_b) / (n_a + n_b) and c2 likewise, L2's as their sum; a part
     * without elements
     * has 0. PLANISH_BACKWARD with c1 and c2 then gives dx. Keep all four in f64. dweight and dbias
     * are those of the part. Not with an activation. */
    PLANISH_BACKWARD_STATISTICS = 5
} planish_pass;

/*
 * The tensors of one pass; NULL means absent. In the table above "?" marks what may be absent, and
 * what a pass does not name must be NULL. The backward passes need at least one output.
 *
 * x, y, dy, dx             the same shape, of rank up to PLANISH_MAX_NDIM and up to 2^48 elements
 * weight, bias, dweight,   the sizes of the affine axes in their order, or x's rank with 1 on every
 *   dbias                  other axis
 * mean, rstd, m2, c1, c2,  the sizes of the axes not reduced in their order, or x's rank with 1 on
 *   running_mean,          every reduced axis
 *   running_var
 *
 * Of the stages around the norm, FORWARD and BACKWARD may have any; APPLY addend; every other pass
 * none:
 *
 * residual, sum, gate, mask, q, branch,   x's shape
 *   dsum, dresidual, dgate, addend,
 *   daddend
 * row_scale               as mean
 * column_scale, scale,    the sizes of planish_norm.column_axes or modulation_axes in their order,
 *   shift and gradients     or x's rank with 1 on every other axis
 * rng                     2 elements of u64 or i64, in the tensors' memory: the seed and the offset
 * mask                    u8 or bool
 * q                       f8_e4m3fn, f8_e5m2 or i8; y_scale or y_scales stands beside it
 * y_scale, amax           1 element of f32, in the tensors' memory
 * y_scales                f32, or f8_e8m0 for powers of two. Sizes as mean, or, with scale_block,
 *                         those and one more axis behind: the blocks of a row
 *
 * s is rounded to sum's dtype; where there is no sum, to residual's; else it stays in the type of
 * the arithmetic. In BACKWARD x is s: what FORWARD wrote as sum (but see PLANISH_GATE_BEFORE).
 *
 * Dropout is Philox4x32-10 with the seed as its key. Element i of x, counted in row-major order of
 * its axes, takes word i % 4 of the block whose counter is (i / 4, offset), each of two words, the
 * lower first; it is kept where that is at least dropout_p * 2^32. So the mask depends on seed,
 * offset and place alone, and BACKWARD draws it again.
 *
 * In BACKWARD, where f is not the identity, addend is FORWARD's, of which a is made again. Or, with
 * PLANISH_RELU and no gate behind the norm, y is FORWARD's y, whatever was added to it: where it is
 * more than 0, or NaN, f' is 1, and elsewhere 0; bias and addend are then not needed, and addend
 * must be NULL. Without y the mask of a ReLU behind an addend, or of a norm whose affine axes are
 * kept ones (BatchNorm), is that of a as FORWARD rounded it, to dy's dtype: where a is too small
 * for y not to be 0, f' is 0.
 *
 * q is rounded to nearest, ties to even, and saturated: to 448 (f8_e4m3fn), 57344 (f8_e5m2), 127
 * and -127 (i8). NaN stays NaN; in i8 it becomes 0. It is made of y before that is rounded. amax
 * and the scales that are made pass over NaN.
 *
 * Aliasing: y may be x itself, and dx may be dy, x or y itself (same data, dtype and strides); sum
 * may be x or residual, dresidual may be x, dy or dsum, dgate may be gate or dy, dx may be dsum or
 * branch. Any other sharing of memory with an output is refused.
 *
 * If R has 0 elements or there are 0 rows, y and dx are empty, dweight and dbias become 0, and with
 * 0 elements mean and rstd become NaN (m2, c1 and c2 become 0).
 */
typedef struct planish_tensors {
    size_t struct_size; /* sizeof(planish_tensors) */
    const DLTensor *x;
    const DLTensor *weight;
    const DLTensor *bias;
    const DLTensor *y;
    const DLTensor *mean;
    const DLTensor *rstd;
    const DLTensor *m2;
    const DLTensor *dy;
    const DLTensor *dx;
    const DLTensor *dweight;
    const DLTensor *dbias;
    /* ---- The stages around the norm ---- */
    const DLTensor *residual;     /* added to x; its own dtype */
    const DLTensor *sum;          /* s is written here, in its dtype */
    const DLTensor *row_scale;    /* x is multiplied by it: stochastic depth */
    const DLTensor *column_scale; /* likewise: LayerScale, the gate of a diffusion transformer */
    const DLTensor *scale;        /* modulation: m = z * (1 + scale) + shift */
    const DLTensor *shift;
    const DLTensor *gate;      /* planish_norm.gate says where it multiplies */
    const DLTensor *rng;       /* dropout's seed and offset */
    const DLTensor *mask;      /* keep is written here: 1 or 0 */
    const DLTensor *q;         /* y quantised. y itself may be NULL then */
    const DLTensor *y_scale;   /* the scale that q is made with: one number that is read */
    const DLTensor *y_scales;  /* or scales that are made of y and written */
    const DLTensor *amax;      /* the largest |y| is written here */
    const DLTensor *branch;    /* FORWARD's x, for dcolumn_scale */
    const DLTensor *dsum;      /* the gradient that reaches s by another way */
    const DLTensor *dresidual; /* ds is written here */
    const DLTensor *dscale;
    const DLTensor *dshift;
    const DLTensor *dgate;
    const DLTensor *dcolumn_scale;
    const DLTensor *addend;  /* added behind the norm, before the activation; its own dtype */
    const DLTensor *daddend; /* dm is written here */
    /* ---- Statistics ---- */
    const DLTensor *c1; /* the means over all of R of dy * (weight_offset + weight), */
    const DLTensor *c2; /* and of that times xhat (L2: its sum) */
    const DLTensor *running_mean;
    const DLTensor *running_var; /* unbiased */
} planish_tensors;

/* The name of the field at this place behind struct_size, in planish_tensors and in
 * planish_buffers: "x", "weight" and so on; NULL beyond the last. For bindings, which need no list
 * of their own. */
PLANISH_API const char *planish_tensor_name(int index);

/* ---- Execution ---------------------------------------------------------------------------- */

/* Does the work items [begin, end). */
typedef void (*planish_task)(void *task_data, int64_t begin, int64_t end);

/*
 * Calls `task` on disjoint ranges that together cover [0, count), on any threads and in any order,
 * and returns when all are done. Every item must be run exactly once. It is called only where the
 * work is worth a fork, at most twice per pass, and never for GPU tensors.
 */
typedef void (*planish_parallel_for)(void *context, int64_t count, planish_task task,
                                     void *task_data);

/* How to run. A NULL planish_exec pointer stands for one with every field 0. */
typedef struct planish_exec {
    size_t struct_size;                /* sizeof(planish_exec) */
    planish_parallel_for parallel_for; /* NULL: OpenMP's where found, else the calling thread */
    void *parallel_context;            /* handed to parallel_for */
    void *stream;                      /* GPU: the CUstream / cudaStream_t to launch on; NULL is the
                                          default stream. Ignored on the CPU */
    void *workspace; /* on the tensors' device, aligned to 64 bytes, on a GPU to 256 */
    size_t workspace_bytes;
    char *message;        /* where an error's sentence goes; may be NULL. Untouched on
                             success */
    size_t message_bytes; /* its room, the closing 0 included */
    /* Not 0: the caller knows that no output shares memory with another tensor beyond what
     * planish_tensors allows, so that this is not looked at: a little time saved on small rows. */
    int apart;
    int not_read; /* callers compiled with an earlier header have any number here */
    /* Not 0: a GPU's kernels for the run are found, compiled and loaded, and nothing runs or is
     * written; the CPU has nothing to load. Then a run of the same plan on buffers with the same
     * alignment asks the driver for nothing but launches, as a stream that is being captured needs.
     */
    int load_only;
    int reserved; /* 0 */
} planish_exec;

/*
 * Runs one pass of `op` on `tensors`: checks, plans, runs. On the CPU it returns when the outputs
 * are written; on a GPU when the work is queued on the stream.
 *
 * Errors: any planish_status; see there. Outputs are untouched unless PLANISH_OK is returned; only
 * a fault of the GPU while it runs can come later, through the driver.
 */
PLANISH_API planish_status planish_norm_run(const planish_norm *op, planish_pass pass,
                                            const planish_tensors *tensors,
                                            const planish_exec *exec);

/*
 * Writes to *bytes the workspace that planish_norm_run needs for these arguments; data pointers may
 * be NULL. At least 0; forward needs none for dense rows. Same checks and errors as
 * planish_norm_run.
 */
PLANISH_API planish_status planish_norm_workspace_bytes(const planish_norm *op, planish_pass pass,
                                                        const planish_tensors *tensors,
                                                        size_t *bytes, const planish_exec *exec);

/* PLANISH_FORWARD with its tensors in line; weight, bias, mean and rstd may be NULL. */
PLANISH_API planish_status planish_norm_forward(const planish_norm *op, const DLTensor *x,
                                                const DLTensor *weight, const DLTensor *bias,
                                                const DLTensor *y, const DLTensor *mean,
                                                const DLTensor *rstd, const planish_exec *exec);

/* PLANISH_BACKWARD with its tensors in line; weight and any but one of dx, dweight, dbias may be
 * NULL; mean must be NULL for RMS. */
PLANISH_API planish_status planish_norm_backward(const planish_norm *op, const DLTensor *dy,
                                                 const DLTensor *x, const DLTensor *mean,
                                                 const DLTensor *rstd, const DLTensor *weight,
                                                 const DLTensor *dx, const DLTensor *dweight,
                                                 const DLTensor *dbias, const planish_exec *exec);

/* LayerNorm and RMSNorm over the last `normalized_ndim` axes of x, weight_offset 0. */
PLANISH_API planish_status planish_layer_norm_forward(int32_t normalized_ndim, double eps,
                                                      const DLTensor *x, const DLTensor *weight,
                                                      const DLTensor *bias, const DLTensor *y,
                                                      const DLTensor *mean, const DLTensor *rstd,
                                                      const planish_exec *exec);
PLANISH_API planish_status planish_layer_norm_backward(int32_t normalized_ndim, const DLTensor *dy,
                                                       const DLTensor *x, const DLTensor *mean,
                                                       const DLTensor *rstd, const DLTensor *weight,
                                                       const DLTensor *dx, const DLTensor *dweight,
                                                       const DLTensor *dbias,
                                                       const planish_exec *exec);
PLANISH_API planish_status planish_rms_norm_forward(int32_t normalized_ndim, double eps,
                                                    const DLTensor *x, const DLTensor *weight,
                                                    const DLTensor *y, const DLTensor *rstd,
                                                    const planish_exec *exec);
PLANISH_API planish_status planish_rms_norm_backward(int32_t normalized_ndim, const DLTensor *dy,
                                                     const DLTensor *x, const DLTensor *rstd,
                                                     const DLTensor *weight, const DLTensor *dx,
                                                     const DLTensor *dweight,
                                                     const planish_exec *exec);

/*
 * LayerNorm (PLANISH_LAYER) or RMSNorm (PLANISH_RMS, without bias, mean and dbias) over the
 * channels of x (N, C, ...), NCHW or any other strides, by planish_channel_norm_op. mean and rstd:
 * (N, ...).
 */
PLANISH_API planish_status planish_channel_norm_forward(planish_kind kind, double eps,
                                                        const DLTensor *x, const DLTensor *weight,
                                                        const DLTensor *bias, const DLTensor *y,
                                                        const DLTensor *mean, const DLTensor *rstd,
                                                        const planish_exec *exec);
PLANISH_API planish_status planish_channel_norm_backward(
    planish_kind kind, const DLTensor *dy, const DLTensor *x, const DLTensor *mean,
    const DLTensor *rstd, const DLTensor *weight, const DLTensor *dx, const DLTensor *dweight,
    const DLTensor *dbias, const planish_exec *exec);

/* ---- Groups of channels ------------------------------------------------------------------- */

/*
 * One pass of GroupNorm of x (N, C, ...) in `groups` groups of neighbouring channels, weight_offset
 * 0, and the activation that follows. R is a group's channels and all axes after them; weight and
 * bias vary along C. One group is LayerNorm over all but axis 0 with weights of channels, C groups
 * are InstanceNorm.
 *
 *   x, y, dy, dx                   (N, C, ...), 2 to PLANISH_MAX_NDIM - 1 axes, any strides
 *   weight, bias, dweight, dbias   (C)
 *   mean, rstd, m2                 (N, groups)
 *
 * It is planish_norm_run with axis 1 of the first and axis 0 of the second kind split in two, which
 * needs neither a copy nor an allocation: passes, aliasing, precision, determinism, threads and
 * errors are those of planish_norm_run, whose sentences count the split axes. ARGUMENT: groups does
 * not divide the channels; SHAPE: fewer or more axes.
 *
 * eps is used by PLANISH_FORWARD only.
 */
PLANISH_API planish_status planish_group_norm_run(int64_t groups, double eps,
                                                  planish_activation activation, planish_pass pass,
                                                  const planish_tensors *tensors,
                                                  const planish_exec *exec);

/* What planish_norm_workspace_bytes is to planish_norm_run. */
PLANISH_API planish_status planish_group_norm_workspace_bytes(
    int64_t groups, planish_activation activation, planish_pass pass,
    const planish_tensors *tensors, size_t *bytes, const planish_exec *exec);

/* PLANISH_FORWARD and PLANISH_BACKWARD of it with their tensors in line; which may be NULL is told
 * at planish_norm_forward and planish_norm_backward. Without an activation backward's bias must be
 * NULL. */
PLANISH_API planish_status planish_group_norm_forward(int64_t groups, double eps,
                                                      planish_activation activation,
                                                      const DLTensor *x, const DLTensor *weight,
                                                      const DLTensor *bias, const DLTensor *y,
                                                      const DLTensor *mean, const DLTensor *rstd,
                                                      const planish_exec *exec);
PLANISH_API planish_status planish_group_norm_backward(
    int64_t groups, planish_activation activation, const DLTensor *dy, const DLTensor *x,
    const DLTensor *mean, const DLTensor *rstd, const DLTensor *weight, const DLTensor *bias,
    const DLTensor *dx, const DLTensor *dweight, const DLTensor *dbias, const planish_exec *exec);

/* ---- Plans: decide once, run often -------------------------------------------------------- */

/* What planish_norm_run decides before it runs. Immutable: share it between threads, cache it. */
typedef struct planish_plan planish_plan;

/* The data of the tensors of one run; byte_offset already added. The fields are those of
 * planish_tensors, in their order. */
typedef struct planish_buffers {
    size_t struct_size; /* sizeof(planish_buffers) */
    void *x, *weight, *bias, *y, *mean, *rstd, *m2, *dy, *dx, *dweight, *dbias;
    void *residual, *sum, *row_scale, *column_scale, *scale, *shift, *gate, *rng, *mask, *q;
    void *y_scale, *y_scales, *amax, *branch, *dsum, *dresidual, *dscale, *dshift, *dgate;
    void *dcolumn_scale;
    void *addend, *daddend, *c1, *c2, *running_mean, *running_var;
} planish_buffers;

/*
 * Makes a plan for tensors like these: it holds for any data with these shapes, strides, dtypes and
 * device; data pointers are not looked at. *plan is written on success only. message may be NULL.
 * Errors: as planish_norm_run, and PLANISH_ERROR_OUT_OF_MEMORY.
 */
PLANISH_API planish_status planish_plan_create(const planish_norm *op, planish_pass pass,
                                               const planish_tensors *tensors, planish_plan **plan,
                                               char *message, size_t message_bytes);

/* The workspace a run of the plan needs; 0 for a NULL plan. */
PLANISH_API size_t planish_plan_workspace_bytes(const planish_plan *plan);

/*
 * Runs the plan. Buffers of tensors that the plan has must not be NULL (unless empty) and must keep
 * the aliasing rules above. Errors: NULL_POINTER, STRUCT_SIZE, OVERLAP, WORKSPACE, DRIVER.
 */
PLANISH_API planish_status planish_plan_run(const planish_plan *plan,
                                            const planish_buffers *buffers,
                                            const planish_exec *exec);

/* Frees the plan; NULL is allowed. No run of it may be under way. */
PLANISH_API void planish_plan_destroy(planish_plan *plan);

/* 1 where the plan copies elements to and fro for want of kernels made for tensors like these: any
 * axes, strides and dtypes, right but slow. 0 otherwise, and for a NULL plan. */
PLANISH_API int planish_plan_is_general(const planish_plan *plan);

/*
 * Whether kernels made for tensors like these run the pass: planned as by planish_plan_create, and
 * dropped again. Data is not looked at, and may be NULL. OK: they do. NO_FAST_KERNEL: the plan is
 * one for which planish_plan_is_general is 1, and the message says what in the problem is the
 * reason. Other errors: as planish_norm_run; UNAVAILABLE: the device's driver is not there. Nothing
 * is allocated.
 */
PLANISH_API planish_status planish_norm_supports(const planish_norm *op, planish_pass pass,
                                                 const planish_tensors *tensors, char *message,
                                                 size_t message_bytes);

/*
 * Writes one line about what the plan does, such as "rows/avx2 layer forward f32 8192x1024", closed
 * by 0 and cut to `bytes`. Returns the length of the whole line, as snprintf does.
 */
PLANISH_API int planish_plan_describe(const planish_plan *plan, char *text, size_t bytes);

/* ---- Two norms at once --------------------------------------------------------------------
 *
 * Two problems of one operator, such as the norms of queries and keys: what planish_norm_run gives
 * for each, bit for bit, whatever the other is. On a GPU one launch can do for both, and one more
 * adds up the sums for their dweight and dbias. Both problems have to fit each other:
 *
 *   - both are short rows that the lanes of a warp share evenly, such as those of 64, 96, 128 or
 *     256 columns, and
 *   - they have the same number of columns, dtypes and tensors, alignments up to 16 bytes, and as
 *     many axes that no single stride leads through.
 *
 * How many rows, weights of their own and strides each has is free: 32 heads of queries and 8 of
 * keys, slices of one packed tensor. Sums over sets of columns of different sizes, such as the
 * gradients of a weight for each head, take a launch for each. What does not fit runs as two, and
 * so does every pair on the CPU, and one whose common kernel can neither be compiled nor found.
 */

/*
 * Runs one pass of `op` on `first` and on `second`. Shapes, dtypes, NULL tensors, precision,
 * determinism and thread safety are those of planish_norm_run, of each alone; the bits of `op`
 * stand for axes of x in both. Both are on one device. Inputs of the two may share memory, and so
 * may outputs whose elements lie between each other's, such as the gradients of two slices of a
 * packed tensor; but no element of an output of one may be an element of a tensor of the other,
 * which is not looked at.
 *
 * exec->workspace has planish_norm_pair_workspace_bytes.
 *
 * Errors: those of planish_norm_run; a sentence about a tensor names it as "first.x" or "second.x".
 * DEVICE: they are on two. Outputs are untouched unless PLANISH_OK is returned, but for faults of
 * the driver.
 */
PLANISH_API planish_status planish_norm_pair_run(const planish_norm *op, planish_pass pass,
                                                 const planish_tensors *first,
                                                 const planish_tensors *second,
                                                 const planish_exec *exec);

/* What planish_norm_workspace_bytes is to planish_norm_run: the first's workspace up to a multiple
 * of 256 bytes, and the second's behind it. */
PLANISH_API planish_status planish_norm_pair_workspace_bytes(
    const planish_norm *op, planish_pass pass, const planish_tensors *first,
    const planish_tensors *second, size_t *bytes, const planish_exec *exec);

/* The same for plans that were made before, of one device; 0 where either is NULL. */
PLANISH_API size_t planish_plan_pair_workspace_bytes(const planish_plan *first,
                                                     const planish_plan *second);

/* planish_norm_pair_run of two plans. Errors: as planish_plan_run, and DEVICE. */
PLANISH_API planish_status planish_plan_pair_run(const planish_plan *first,
                                                 const planish_plan *second,
                                                 const planish_buffers *first_buffers,
                                                 const planish_buffers *second_buffers,
                                                 const planish_exec *exec);

/* ---- GPU kernels compiled ahead of time --------------------------------------------------- */

/*
 * Loads a pack: a file of compiled GPU kernels, made by the command `planish pack`
 * (docs/guide/gpu.md). From then on, and until the process ends, kernels are looked for in it
 * before the disk, and what it holds needs no NVRTC. The file is read once and may change or go
 * afterwards. What is damaged, or of other kernel texts than this library's, is left out. Loading
 * the same pack again does nothing. message may be NULL.
 * Errors: NULL_POINTER; OUT_OF_MEMORY; FILE: it cannot be read, is no pack, or holds no kernel of
 * this version of planish.
 */
PLANISH_API planish_status planish_pack_load(const char *path, char *message, size_t message_bytes);

/* ---- What is there ------------------------------------------------------------------------ */

/* The CPU tier in use: "portable", "avx2", "avx512", "avx512bf16" or "neon". */
PLANISH_API const char *planish_cpu_tier(void);

/*
 * Writes what planish finds for GPUs as one JSON object, closed by 0 and cut to `bytes`: the
 * driver, its devices, NVRTC, the packs that are loaded, the folder of the kernel cache, and a
 * "problem" where one cannot be used. It loads the driver and NVRTC. Returns the length of the
 * whole text, as snprintf does.
 */
PLANISH_API int planish_gpu_report(char *text, size_t bytes);

/*
 * Writes the folder in which compiled GPU kernels are kept, closed by 0 and cut to `bytes`; an
 * empty text where none is kept (docs/guide/gpu.md). Returns the length of the whole path, as
 * snprintf does.
 */
PLANISH_API int planish_cache_path(char *path, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
