/* Cases of norms with stages around them; see staged_case.h. */
#include "staged_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What every pass has in common ---- */

static const uint64_t full_parts = PART(S_X) | PART(S_Y) | PART(S_DY) | PART(S_DX) |
                                   PART(S_RESIDUAL) | PART(S_SUM) | PART(S_GATE) | PART(S_MASK) |
                                   PART(S_Q) | PART(S_BRANCH) | PART(S_DSUM) | PART(S_DRESIDUAL) |
                                   PART(S_DGATE);

bool part_is_full(stage_part p) {
    return full_parts & PART(p);
}

uint64_t part_axes(const planish_norm *op, int ndim, stage_part p) {
    const uint64_t all = PLANISH_AXIS(ndim) - 1;
    switch (p) {
    case S_WEIGHT:
    case S_BIAS:
    case S_DWEIGHT:
    case S_DBIAS:
        return op->affine_axes;
    case S_COLUMN_SCALE:
    case S_DCOLUMN_SCALE:
        return op->column_axes ? op->column_axes : op->affine_axes;
    case S_SCALE:
    case S_SHIFT:
    case S_DSCALE:
    case S_DSHIFT:
        return op->modulation_axes;
    case S_MEAN:
    case S_RSTD:
    case S_ROW_SCALE:
    case S_Y_SCALES:
        return all & ~op->reduce_axes;
    default:
        return part_is_full(p) ? all : 0;
    }
}

int64_t part_count(const planish_norm *op, int ndim, const int64_t shape[], stage_part p) {
    const uint64_t axes = part_axes(op, ndim, p);
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= axes >> i & 1 ? shape[i] : 1;
    return count;
}

const DLTensor **staged_field(planish_tensors *t, stage_part p) {
    return (const DLTensor **)(void *)((char *)t + offsetof(planish_tensors, x) +
                                       (size_t)p * sizeof(void *));
}

real *part_reals(planish_tensors *t, stage_part p, int64_t count, real otherwise) {
    const DLTensor *of = *staged_field(t, p);
    real *values = malloc(((size_t)count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = otherwise;
    if (of)
        tensor_read(of, values);
    return values;
}

uint64_t parts_digest(planish_tensors *t, uint64_t parts) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (stage_part p = 0; p < STAGE_PARTS; p++) {
        const DLTensor *of = *staged_field(t, p);
        if (!of || !(parts & PART(p)))
            continue;
        cursor c = cursor_begin(of);
        for (int64_t i = 0, count = element_count(of); i < count; i++, cursor_next(&c))
            for (int k = 0; k < of->dtype.bits / 8; k++)
                hash = (hash ^ c.at[k]) * 0x100000001b3u;
    }
    return hash;
}

planish_status parts_run(const planish_norm *op, planish_pass pass, const planish_tensors *t,
                         guarded *workspace, const planish_exec *exec, char *message,
                         size_t bytes) {
    planish_exec own = exec ? *exec : (planish_exec){.struct_size = sizeof own};
    size_t wanted = 0;
    own.message = message;
    own.message_bytes = bytes;
    planish_status status = planish_norm_workspace_bytes(op, pass, t, &wanted, &own);
    if (status)
        return status;
    if (workspace->mapping)
        guarded_free(workspace);
    *workspace = guarded_make(wanted + 64, 64);
    own.workspace = workspace->data + (workspace->bytes - wanted) / 64 * 64;
    own.workspace_bytes = wanted;
    return planish_norm_run(op, pass, t, &own);
}

void parts_free(tensor parts[STAGE_PARTS], guarded *workspace) {
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        if (parts[p].memory.mapping)
            tensor_free(&parts[p]);
    if (workspace->mapping)
        guarded_free(workspace);
}

/* ---- The forward ---- */

staged_case staged_rows(planish_kind kind, int64_t rows, int64_t cols) {
    staged_case c = {.ndim = 2, .shape = {rows, cols}};
    c.op = planish_last_axes_op(kind, 2, 1, 1e-5);
    c.has = PART(S_X) | PART(S_Y) | PART(S_RSTD);
    c.sum_over = STAGE_PARTS;
    c.seed = 1;
    return c;
}

DLTensor *staged_tensor(staged_run *r, stage_part p) {
    const bool over_x = (p == S_SUM && r->c.sum_over == S_X) || (p == S_Y && r->c.y_over_x);
    if (over_x)
        return &r->parts[S_X].dl;
    return &r->parts[p == S_SUM && r->c.sum_over == S_RESIDUAL ? S_RESIDUAL : p].dl;
}

static const uint64_t written_parts = PART(S_Y) | PART(S_MEAN) | PART(S_RSTD) | PART(S_SUM) |
                                      PART(S_MASK) | PART(S_Q) | PART(S_Y_SCALES) | PART(S_AMAX);

static element type_of_part(const staged_case *c, stage_part p) {
    switch (p) {
    case S_X:
        return c->type;
    case S_RESIDUAL:
        return c->residual;
    case S_SUM:
        return c->sum;
    case S_Y:
        return c->y;
    case S_RNG:
        return F64;
    case S_MASK:
    case S_Q:
        return F16; /* of twice the bytes */
    case S_MEAN:
    case S_RSTD:
        return c->type == F64 ? F64 : F32;
    default:
        return p == S_Y_SCALE || p == S_Y_SCALES || p == S_AMAX ? F32 : c->params;
    }
}

/* Makes a tensor one of bytes, in memory for two of each. */
static void as_bytes(tensor *t, DLDataType type) {
    const int bytes = element_bytes(t->type);
    t->dl.dtype = type;
    t->dl.byte_offset /= (uint64_t)bytes;
}

static void make_part(staged_run *r, stage_part p) {
    const staged_case *c = &r->c;
    int64_t shape[PLANISH_MAX_NDIM];
    int ndim = 0;
    const uint64_t axes = part_axes(&c->op, c->ndim, p);
    int64_t cols = 1;
    for (int i = 0; i < c->ndim; i++) {
        cols *= c->op.reduce_axes >> i & 1 ? c->shape[i] : 1;
        if (axes >> i & 1 || (c->full_rank && axes && p != S_Y_SCALES))
            shape[ndim++] = axes >> i & 1 ? c->shape[i] : 1;
    }
    if (p == S_Y_SCALES && c->op.scale_block)
        shape[ndim++] = cols ? (cols + c->op.scale_block - 1) / c->op.scale_block : 1;
    if (p == S_RNG)
        shape[ndim++] = 2;
    const bool full = part_is_full(p);
    const layout l = !full ? DENSE : written_parts & PART(p) ? c->out : c->in;
    tensor_make(&r->parts[p], type_of_part(c, p), ndim, shape, l);
    if (p == S_MASK)
        as_bytes(&r->parts[p], (DLDataType){kDLBool, 8, 1});
    if (p == S_Q)
        as_bytes(&r->parts[p], c->q);
    if (p == S_Y_SCALES && c->e8m0)
        as_bytes(&r->parts[p], (DLDataType){kDLFloat8_e8m0fnu, 8, 1});
    if (p == S_RNG)
        r->parts[p].dl.dtype = (DLDataType){kDLUInt, 64, 1};
}

static void fill_part(staged_run *r, stage_part p) {
    const staged_case *c = &r->c;
    tensor *t = &r->parts[p];
    if (p == S_RNG) {
        memcpy(t->memory.data, c->draw, sizeof c->draw);
        return;
    }
    random_state state = {(c->seed * 64 + (uint64_t)p) * 0x9e3779b97f4a7c15u};
    const bool spread = c->spread != 0 && (p == S_X || p == S_RESIDUAL);
    real *values = malloc(((size_t)t->count + 1) * sizeof *values);
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = random_normal(&state) * (spread ? c->spread : 1);
        if (p == S_Y_SCALE)
            values[i] = .03125L + .001L;
    }
    tensor_write(&t->dl, values);
    free(values);
}

void staged_make(staged_run *r, const staged_case *c) {
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->tensors.struct_size = sizeof r->tensors;
    for (stage_part p = 0; p < STAGE_PARTS; p++) {
        if (!(c->has & PART(p)))
            continue;
        *staged_field(&r->tensors, p) = staged_tensor(r, p);
        if (staged_tensor(r, p) != &r->parts[p].dl)
            continue;
        make_part(r, p);
        if (!(written_parts & PART(p)))
            fill_part(r, p);
    }
}

void staged_free(staged_run *r) {
    parts_free(r->parts, &r->workspace);
}

planish_status staged_forward(staged_run *r, const planish_exec *exec, char *message,
                              size_t bytes) {
    return parts_run(&r->c.op, PLANISH_FORWARD, &r->tensors, &r->workspace, exec, message, bytes);
}

real *staged_reals(staged_run *r, stage_part p, int64_t count, real otherwise) {
    return part_reals(&r->tensors, p, count, otherwise);
}

unsigned char *staged_bytes(staged_run *r, stage_part p) {
    const DLTensor *t = staged_tensor(r, p);
    const int64_t count = element_count(t);
    unsigned char *bytes = malloc((size_t)count + 1);
    cursor c = cursor_begin(t);
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        bytes[i] = *c.at;
    return bytes;
}

uint64_t staged_digest(staged_run *r) {
    return parts_digest(&r->tensors, r->c.has & written_parts);
}
