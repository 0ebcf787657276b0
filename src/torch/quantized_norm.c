/*
 * planish::quantized_norm and norm_into: norms whose result is quantised, and norms whose results
 * go into tensors that are given, for inference. python/planish/operators/ops.py gives them their
 * fake implementations; axes and options are those of options.h.
 *
 *     quantized_norm(x, residual?, weight?, bias?, y_scale?, int axes, int options, float eps,
 *                    int block, float least, float most)
 *         -> (q, y_scales, sum)     (y_scales undefined beside y_scale, sum without its dtype)
 *     norm_into(x, residual?, weight?, bias?, y_scale?, int axes, int options, float eps, out!,
 *               sum!?) -> ()
 *
 * y_scales: one for a row, with x's rank; with a block, the axes that are not reduced and the
 * blocks of a row; `transposed`: (blocks, rows padded to 16 bytes), of which the padding is not
 * written. f32, or as bytes u8 in the format f8_e8m0. norm_into writes y, or with y_scale what
 * is quantised with it; out may be x and sum may be residual or x.
 */
#include "norm_call.h"

#include "calls.h"
#include "kernels.h"

enum { INPUTS = 5, COLUMN_BYTES = 16 };

static const role inputs[INPUTS] = {ROLE_X, ROLE_RESIDUAL, ROLE_WEIGHT, ROLE_BIAS, ROLE_Y_SCALE};

/* The scales that are made. `made` is for transposed ones, which the library sees otherwise. */
static void make_scales(norm_call *c, layout *made) {
    const DLTensor *x = &c->view[ROLE_X];
    const uint64_t kept = norm_call_kept_axes(c);
    const int64_t block = c->op.scale_block;
    const bool as_bytes = c->options & OPTION_SCALES_AS_BYTES;
    const int32_t dtype = as_bytes ? TORCH_U8 : torch.f32;
    DLTensor *view = &c->view[ROLE_Y_SCALES];
    layout *shown = &c->rooms[ROLE_Y_SCALES];
    if (!block) {
        norm_call_make_dense(c, ROLE_Y_SCALES, kept, true, dtype);
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
    const int64_t blocks = (columns + block - 1) / block;
    shown->sizes[ndim++] = blocks;
    if (ndim > PLANISH_MAX_NDIM)
        torch_throw("planish: x has too many axes for scales of blocks");
    if (!(c->options & OPTION_TRANSPOSED)) {
        c->made[ROLE_Y_SCALES] =
            new_dense_tensor(x, ndim, shown->sizes, dtype, shown->strides, view);
    } else {
        const int64_t step = as_bytes ? COLUMN_BYTES : COLUMN_BYTES / 4;
        made->sizes[0] = blocks;
        made->sizes[1] = (rows + step - 1) / step * step;
        c->made[ROLE_Y_SCALES] = new_dense_tensor(x, 2, made->sizes, dtype, made->strides, view);
        contiguous_strides(ndim - 1, shown->sizes, shown->strides);
        shown->strides[ndim - 1] = made->sizes[1];
        view->ndim = ndim;
        view->shape = shown->sizes;
        view->strides = shown->strides;
    }
    c->list[ROLE_Y_SCALES] = view;
}

void quantized_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(QUANTIZED_NORM, BOXED);
    static const role outputs[3] = {ROLE_Q, ROLE_Y_SCALES, ROLE_SUM};
    layout rooms[ROLE_COUNT], scales;
    NORM_CALL c = {.op = op_of(stack[5], stack[6]), .options = stack[6], .rooms = rooms};
    c.op.eps = take_double(stack[7]);
    c.op.scale_block = (int64_t)stack[8];
    c.op.scale_least = take_double(stack[9]);
    c.op.scale_most = take_double(stack[10]);
    norm_call_take(&c, stack, inputs, INPUTS, 1);
    norm_call_view(&c, 0);
    if (c.op.scale_block < 0)
        torch_throw("planish: block is negative");
    norm_call_make_full(&c, ROLE_Q, norm_call_dtype(&c, DTYPE_AT), false);
    if (option_field(c.options, SUM_DTYPE_AT, BYTE_BITS))
        norm_call_make_full(&c, ROLE_SUM, norm_call_dtype(&c, SUM_DTYPE_AT), false);
    if (!c.given[ROLE_Y_SCALE]) {
        make_scales(&c, &scales);
        if (c.options & OPTION_SCALES_AS_BYTES)
            c.view[ROLE_Y_SCALES].dtype = (DLDataType){kDLFloat8_e8m0fnu, 8, 1};
    }
    norm_call_run(&c, PLANISH_FORWARD, false);
    norm_call_give(&c, stack, outputs, 3);
}

void norm_into(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_INTO, BOXED);
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[5], stack[6]), .options = stack[6], .rooms = rooms};
    c.op.eps = take_double(stack[7]);
    norm_call_take(&c, stack, inputs, INPUTS, 1);
    const role out = c.given[ROLE_Y_SCALE] ? ROLE_Q : ROLE_Y;
    c.given[out] = take_tensor(stack[8]);
    c.given[ROLE_SUM] = take_optional_tensor(stack[9]);

    /* First: a tensor that shares its memory lazily gets its own now, also as an input. */
    void *own = NULL;
    torch_check(torch.get_mutable_data_ptr(c.given[out], &own));
    if (c.given[ROLE_SUM])
        torch_check(torch.get_mutable_data_ptr(c.given[ROLE_SUM], &own));
    norm_call_view(&c, 0);
    norm_call_run(&c, PLANISH_FORWARD, true);
}
