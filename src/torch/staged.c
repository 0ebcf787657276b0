/*
 * The tensors of a norm with stages, from torch's stack and back; see staged.h.
 */
#include "staged.h"

#include <string.h>

#include "run.h"
#include "thrown.h"

void staged_free(staged *s) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        free_tensor(&s->given[r]);
        free_new_tensor(&s->made[r]);
        free_new_tensor(&s->copies[r]);
    }
}

void staged_take(staged *s, stack_value *stack, const role roles[], int count, int required) {
    for (int i = 0; i < count; i++)
        s->given[roles[i]] = i < required ? take_tensor(stack[i]) : take_optional_tensor(stack[i]);
}

/* That of a tensor whose view has none, being of stages alone. */
static DLDataType stages_dtype(tensor_handle tensor) {
    int32_t dtype = 0;
    torch_check(torch.get_dtype(tensor, &dtype));
    switch (dtype) {
    case TORCH_I64:
        return (DLDataType){kDLInt, 64, 1};
    case TORCH_I8:
        return (DLDataType){kDLInt, 8, 1};
    case TORCH_E4M3:
        return (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    case TORCH_E5M2:
        return (DLDataType){kDLFloat8_e5m2, 8, 1};
    default:
        return (DLDataType){kDLOpaqueHandle, 0, 1}; /* the library refuses it */
    }
}

void staged_view(staged *s) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!s->given[r])
            continue;
        s->view[r] = view_input(s->given[r]);
        if (s->view[r].dtype.bits == 0)
            s->view[r].dtype = stages_dtype(s->given[r]);
        s->list[r] = &s->view[r];
    }
    const DLTensor *x = &s->view[ROLE_X];
    if (x->ndim > PLANISH_MAX_NDIM)
        torch_throw("planish: x has more than 16 axes");
    if (x->device.device_type == kDLExtDev || view_dtype(x) < 0 || x->dtype.code == kDLInt)
        torch_throw("planish: x must be f16, bf16, f32 or f64, on the CPU or a CUDA GPU");
}

bool staged_is_double(const staged *s) {
    for (int r = 0; r < ROLE_COUNT; r++)
        if (s->given[r] && types_of((role)r) == TYPES_REAL && view_is_double(&s->view[r]))
            return true;
    return false;
}

static void made_is(staged *s, role r, new_tensor tensor) {
    s->made[r] = tensor;
    if (s->view[r].dtype.bits == 0)
        s->view[r].dtype = stages_dtype(handle_of(&s->made[r]));
    s->list[r] = &s->view[r];
}

void staged_make_full(staged *s, role r, int32_t dtype, layout *made) {
    const DLTensor *x = &s->view[ROLE_X];
    contiguous_strides(x->ndim, x->shape, made->strides);
    if (!memcmp(made->strides, x->strides, (size_t)x->ndim * sizeof *made->strides)) {
        made_is(s, r, new_dense_tensor(x, x->ndim, x->shape, dtype, made->strides, &s->view[r]));
        return;
    }
    strides_like(x, made->strides);
    made_is(s, r, new_strided_tensor(x, x->ndim, x->shape, made->strides, dtype, &s->view[r]));
}

void staged_make_dense(staged *s, role r, uint64_t axes, bool whole, int32_t dtype, layout *made) {
    const DLTensor *x = &s->view[ROLE_X];
    int32_t ndim = 0;
    for (int32_t i = 0; i < x->ndim; i++)
        if (axes & PLANISH_AXIS(i))
            made->sizes[ndim++] = x->shape[i];
        else if (whole)
            made->sizes[ndim++] = 1;
    made_is(s, r, new_dense_tensor(x, ndim, made->sizes, dtype, made->strides, &s->view[r]));
}

static void make_dense(staged *s) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!s->given[r] || types_of((role)r) != TYPES_REAL || view_is_contiguous(&s->view[r]))
            continue;
        s->copies[r] = new_dense_copy(s->given[r]);
        s->view[r] = view_input(handle_of(&s->copies[r]));
    }
}

void staged_run(staged *s, planish_pass pass, bool into) {
    char text[512] = "";
    const message error = {text, sizeof text};
    const planish_tensors tensors = tensors_of_roles(s->list);
    planish_status status = into ? run_norm_into(&s->op, pass, &tensors, error)
                                 : run_norm_if_fast(&s->op, pass, &tensors, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
        make_dense(s);
        status = run_norm(&s->op, pass, &tensors, error);
    }
    throw_status(status, text);
}

void staged_run_pair(staged *first, staged *second, planish_pass pass) {
    char text[512] = "";
    const message error = {text, sizeof text};
    const planish_tensors tensors[2] = {tensors_of_roles(first->list),
                                        tensors_of_roles(second->list)};
    const planish_norm *const ops[2] = {&first->op, &second->op};
    const planish_tensors *const both[2] = {&tensors[0], &tensors[1]};
    planish_status status = run_norm_pair(ops, pass, both, true, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
        make_dense(first);
        make_dense(second);
        status = run_norm_pair(ops, pass, both, false, error);
    }
    throw_status(status, text);
}

void staged_give(staged *s, stack_value *stack, const role roles[], int count) {
    for (int i = 0; i < count; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = give_tensor(&s->made[roles[i]]);
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}
