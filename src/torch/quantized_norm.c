/*
 * planish::quantized_norm and norm_into: norms whose result is quantised, and norms whose results
 * go into tensors that are given, for inference. python/planish/_staged_ops.py gives them their
 * fake implementations.
 *
 *     quantized_norm(x, residual?, weight?, bias?, y_scale?, int[] reduce, int[] affine, float eps,
 *                    bool rms, int weight_offset, ScalarType q_dtype, int block,
 *                    bool power_of_two, bool as_bytes, bool transposed, float least, float most,
 *                    ScalarType? sum_dtype)
 *         -> (q, y_scales, sum)     (y_scales undefined beside y_scale, sum without sum_dtype)
 *     norm_into(x, residual?, weight?, bias?, y_scale?, int[] reduce, int[] affine, float eps,
 *               bool rms, int weight_offset, out!, sum!?) -> ()
 *
 * y_scales: one for a row, with x's rank; with a block, the axes that are not reduced and the
 * blocks of a row; `transposed`: (blocks, rows padded to 16 bytes), of which the padding is not
 * written. f32, or with as_bytes u8 in the format f8_e8m0. norm_into writes y, or with y_scale what
 * is quantised with it; out may be x and sum may be residual or x.
 */
#include "staged.h"

#include "calls.h"
#include "kernels.h"

enum { INPUTS = 5, COLUMN_BYTES = 16 };

static const role inputs[INPUTS] = {ROLE_X, ROLE_RESIDUAL, ROLE_WEIGHT, ROLE_BIAS, ROLE_Y_SCALE};

typedef struct scale_options {
    int64_t block;
    bool as_bytes, transposed;
} scale_options;

/* The scales that are made. `shown` is how the library sees transposed ones. */
static void make_scales(staged *s, const scale_options *options, layout *made, layout *shown) {
    const DLTensor *x = &s->view[ROLE_X];
    const uint64_t kept = (PLANISH_AXIS(x->ndim) - 1) & ~s->op.reduce_axes;
    const int32_t dtype = options->as_bytes ? TORCH_U8 : torch.f32;
    DLTensor *view = &s->view[ROLE_Y_SCALES];
    if (!options->block) {
        staged_make_dense(s, ROLE_Y_SCALES, kept, true, dtype, made);
        return;
    }
    int64_t rows = 1, columns = 1;
    int32_t ndim = 0;
    for (int32_t i = 0; i < x->ndim; i++) {
        if (!(kept & PLANISH_AXIS(i))) {
            columns *= x->shape[i];
            continue;
        }
        rows *= x->shape[i];
        shown->sizes[ndim++] = x->shape[i];
    }
    const int64_t blocks = (columns + options->block - 1) / options->block;
    shown->sizes[ndim++] = blocks;
    if (ndim > PLANISH_MAX_NDIM)
        torch_throw("planish: x has too many axes for scales of blocks");
    if (!options->transposed) {
        s->made[ROLE_Y_SCALES] =
            new_dense_tensor(x, ndim, shown->sizes, dtype, shown->strides, view);
    } else {
        const int64_t step = options->as_bytes ? COLUMN_BYTES : COLUMN_BYTES / 4;
        made->sizes[0] = blocks;
        made->sizes[1] = (rows + step - 1) / step * step;
        s->made[ROLE_Y_SCALES] = new_dense_tensor(x, 2, made->sizes, dtype, made->strides, view);
        contiguous_strides(ndim - 1, shown->sizes, shown->strides);
        shown->strides[ndim - 1] = made->sizes[1];
        view->ndim = ndim;
        view->shape = shown->sizes;
        view->strides = shown->strides;
    }
    s->list[ROLE_Y_SCALES] = view;
}

void quantized_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(QUANTIZED_NORM, BOXED);
    static const role outputs[3] = {ROLE_Q, ROLE_Y_SCALES, ROLE_SUM};
    STAGED s = {.op.struct_size = sizeof s.op};
    staged_take(&s, stack, inputs, INPUTS, 1);
    OWNED_LIST reduce = take_list(stack[5]);
    OWNED_LIST affine = take_list(stack[6]);
    s.op.eps = take_double(stack[7]);
    s.op.kind = take_bool(stack[8]) ? PLANISH_RMS : PLANISH_LAYER;
    const int32_t q_dtype = (int32_t)stack[10];
    const scale_options options = {
        .block = (int64_t)stack[11],
        .as_bytes = take_bool(stack[13]),
        .transposed = take_bool(stack[14]),
    };
    s.op.scale_block = options.block;
    s.op.scale_format = take_bool(stack[12]) ? PLANISH_SCALE_POWER_OF_TWO : PLANISH_SCALE_FLOAT;
    s.op.scale_least = take_double(stack[15]);
    s.op.scale_most = take_double(stack[16]);
    stack_value sum_dtype = 0;
    const bool has_sum = take_optional(stack[17], &sum_dtype);
    s.op.weight_offset = take_small(stack[9]);

    staged_view(&s);
    const DLTensor *x = &s.view[ROLE_X];
    s.op.reduce_axes = read_axes(reduce, x->ndim);
    s.op.affine_axes = read_axes(affine, x->ndim);
    if (options.block < 0)
        torch_throw("planish: block is negative");
    layout q, scales, shown, sum;
    staged_make_full(&s, ROLE_Q, q_dtype, &q);
    if (has_sum)
        staged_make_full(&s, ROLE_SUM, (int32_t)sum_dtype, &sum);
    if (!s.given[ROLE_Y_SCALE]) {
        make_scales(&s, &options, &scales, &shown);
        if (options.as_bytes)
            s.view[ROLE_Y_SCALES].dtype = (DLDataType){kDLFloat8_e8m0fnu, 8, 1};
    }
    staged_run(&s, PLANISH_FORWARD, false);
    staged_give(&s, stack, outputs, 3);
}

void norm_into(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_INTO, BOXED);
    STAGED s = {.op.struct_size = sizeof s.op};
    staged_take(&s, stack, inputs, INPUTS, 1);
    OWNED_LIST reduce = take_list(stack[5]);
    OWNED_LIST affine = take_list(stack[6]);
    s.op.eps = take_double(stack[7]);
    s.op.kind = take_bool(stack[8]) ? PLANISH_RMS : PLANISH_LAYER;
    const role out = s.given[ROLE_Y_SCALE] ? ROLE_Q : ROLE_Y;
    s.given[out] = take_tensor(stack[10]);
    s.given[ROLE_SUM] = take_optional_tensor(stack[11]);
    s.op.weight_offset = take_small(stack[9]);

    /* First: a tensor that shares its memory lazily gets its own now, also as an input. */
    void *own = NULL;
    torch_check(torch.get_mutable_data_ptr(s.given[out], &own));
    if (s.given[ROLE_SUM])
        torch_check(torch.get_mutable_data_ptr(s.given[ROLE_SUM], &own));
    staged_view(&s);
    const int32_t ndim = s.view[ROLE_X].ndim;
    s.op.reduce_axes = read_axes(reduce, ndim);
    s.op.affine_axes = read_axes(affine, ndim);
    staged_run(&s, PLANISH_FORWARD, true);
}
