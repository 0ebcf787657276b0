/* See attributes.h. Each attribute is a field, told by name in one table. */
#include "attributes.h"

/* What a call has beside planish_norm. */
typedef struct header {
    int32_t pass;
    uint64_t given, made;
    planish_norm op;
} header;

typedef struct field {
    const char *name;
    int32_t dtype; /* XLA's, of the attribute; the field is as wide */
    size_t at;
} field;

#define OF_OP(name, dtype) {#name, dtype, offsetof(header, op) + offsetof(planish_norm, name)}
/* Enumerations are ints. */
enum { XLA_S32 = 4 };
static const field fields[] = {
    {"pass", XLA_S32, offsetof(header, pass)},
    {"given", XLA_U64, offsetof(header, given)},
    {"made", XLA_U64, offsetof(header, made)},
    OF_OP(kind, XLA_S32),
    OF_OP(weight_offset, XLA_S32),
    OF_OP(reduce_axes, XLA_U64),
    OF_OP(affine_axes, XLA_U64),
    OF_OP(eps, XLA_F64),
    OF_OP(activation, XLA_S32),
    OF_OP(modulation_axes, XLA_U64),
    OF_OP(column_axes, XLA_U64),
    OF_OP(gate, XLA_S32),
    OF_OP(rounding, XLA_S32),
    OF_OP(dropout_p, XLA_F64),
    OF_OP(scale_block, XLA_S64),
    OF_OP(scale_format, XLA_S32),
    OF_OP(scale_least, XLA_F64),
    OF_OP(scale_most, XLA_F64),
    OF_OP(momentum, XLA_F64),
};
_Static_assert(sizeof(planish_kind) == 4 && sizeof(planish_gate) == 4, "enumerations are ints");

static const field *field_named(const xla_span *name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strlen(fields[i].name) == name->length &&
            memcmp(fields[i].name, name->text, name->length) == 0)
            return &fields[i];
    return NULL;
}

static planish_status read_header(header *h, const xla_attributes *given, message error) {
    *h = (header){.op.struct_size = sizeof h->op};
    for (int64_t i = 0; i < given->count; i++) {
        const xla_span *name = given->names[i];
        const field *f = field_named(name);
        if (!f)
            return fail(error, PLANISH_ERROR_ARGUMENT,
                        "attribute %.*s: planish has none of this name", (int)name->length,
                        name->text);
        const xla_scalar *scalar = given->values[i];
        if (given->types[i] != XLA_ATTRIBUTE_SCALAR || scalar->dtype != f->dtype)
            return fail(error, PLANISH_ERROR_ARGUMENT,
                        "attribute %s: found another type, wanted a scalar of XLA's dtype %d",
                        f->name, f->dtype);
        memcpy((char *)h + f->at, scalar->value, f->dtype == XLA_S32 ? 4 : 8);
    }
    return PLANISH_OK;
}

/* That of DLPack; bits 0: there is none. */
static DLDataType dlpack_dtype(int32_t dtype) {
    static const DLDataType known[] = {
        [XLA_PRED] = {kDLBool, 8, 1},
        [XLA_S8] = {kDLInt, 8, 1},
        [XLA_S64] = {kDLInt, 64, 1},
        [XLA_U8] = {kDLUInt, 8, 1},
        [XLA_U64] = {kDLUInt, 64, 1},
        [XLA_F16] = {kDLFloat, 16, 1},
        [XLA_F32] = {kDLFloat, 32, 1},
        [XLA_F64] = {kDLFloat, 64, 1},
        [XLA_BF16] = {kDLBfloat, 16, 1},
        [XLA_F8E5M2] = {kDLFloat8_e5m2, 8, 1},
        [XLA_F8E4M3FN] = {kDLFloat8_e4m3fn, 8, 1},
        [XLA_F8E8M0FNU] = {kDLFloat8_e8m0fnu, 8, 1},
    };
    const bool is_known = dtype >= 0 && (size_t)dtype < sizeof known / sizeof *known;
    return is_known ? known[dtype] : (DLDataType){0};
}

static planish_status view_of(jax_call *call, role r, const xla_buffer *buffer, DLDevice device,
                              message error) {
    const DLDataType dtype = dlpack_dtype(buffer->dtype);
    if (dtype.bits == 0)
        return fail(error, PLANISH_ERROR_DTYPE,
                    "%s has XLA's dtype %d, which planish does not take", role_name(r),
                    buffer->dtype);
    if (buffer->rank > PLANISH_MAX_NDIM)
        return fail(error, PLANISH_ERROR_SHAPE, "%s has %lld axes, at most %d are taken",
                    role_name(r), (long long)buffer->rank, PLANISH_MAX_NDIM);
    int64_t stride = 1;
    for (int64_t i = buffer->rank - 1; i >= 0; i--) {
        call->strides[r][i] = stride;
        stride *= buffer->dims[i];
    }
    call->views[r] = (DLTensor){
        .data = buffer->data,
        .device = device,
        .ndim = (int32_t)buffer->rank,
        .dtype = dtype,
        .shape = buffer->dims,
        .strides = call->strides[r],
    };
    return PLANISH_OK;
}

/* The views of one side's buffers: those of `set`, in the order of its bits. */
static planish_status read_side(jax_call *call, const char *side, const xla_values *values,
                                role_set set, int64_t more, DLDevice device,
                                const DLTensor *list[ROLE_COUNT], message error) {
    if (set >> (ROLE_COUNT - 1) > 1)
        return fail(error, PLANISH_ERROR_ARGUMENT, "attribute %s names tensors that are not known",
                    side);
    const int64_t wanted = __builtin_popcountll(set), most = wanted + more;
    if (values->count < wanted || values->count > most)
        return fail(error, PLANISH_ERROR_ARGUMENT, "%s: found %lld buffers, wanted %lld", side,
                    (long long)values->count, (long long)most);
    for (int64_t i = 0; set; set &= set - 1, i++) {
        const role r = first_role(set);
        const planish_status status = view_of(call, r, values->values[i], device, error);
        if (status != PLANISH_OK)
            return status;
        list[r] = &call->views[r];
    }
    return PLANISH_OK;
}

planish_status jax_call_read(jax_call *call, const xla_frame *frame, DLDevice device,
                             message error) {
    header h;
    planish_status status = read_header(&h, &frame->attributes, error);
    if (status != PLANISH_OK)
        return status;
    call->op = h.op;
    call->pass = (planish_pass)h.pass;
    const DLTensor *list[ROLE_COUNT] = {NULL};
    const int64_t more = device.device_type == kDLCUDA;
    status = read_side(call, "given", &frame->arguments, h.given, 0, device, list, error);
    if (status == PLANISH_OK)
        status = read_side(call, "made", &frame->results, h.made, more, device, list, error);
    if (status != PLANISH_OK)
        return status;
    const int64_t results = frame->results.count;
    call->workspace =
        results > __builtin_popcountll(h.made) ? frame->results.values[results - 1] : NULL;
    call->tensors = tensors_of_roles(list);
    return PLANISH_OK;
}
