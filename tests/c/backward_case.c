/* Cases of the backward of norms with stages around them; see backward_case.h. */
#include "backward_case.h"
#include "kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

backward_case backward_rows(planish_kind kind, int64_t rows, int64_t cols) {
    backward_case c = {.ndim = 2, .shape = {rows, cols}, .seed = 1};
    c.op = planish_last_axes_op(kind, 2, 1, 1e-5);
    c.op.modulation_axes = PLANISH_AXIS(1);
    return c;
}

static const uint64_t output_parts = PART(S_DX) | PART(S_DWEIGHT) | PART(S_DBIAS) |
                                     PART(S_DRESIDUAL) | PART(S_DSCALE) | PART(S_DSHIFT) |
                                     PART(S_DGATE) | PART(S_DCOLUMN_SCALE);

bool backward_is_output(stage_part p) {
    return output_parts & PART(p);
}

uint64_t backward_axes(const backward_case *c, stage_part p) {
    return part_axes(&c->op, c->ndim, p);
}

static element type_of(const backward_case *c, stage_part p) {
    switch (p) {
    case S_X:
        return c->x;
    case S_DY:
        return c->dy;
    case S_DX:
    case S_DRESIDUAL:
        return c->dx;
    case S_MEAN:
    case S_RSTD:
        return c->stats;
    default:
        return p == S_RNG ? F64 : part_is_full(p) ? c->stages : c->params;
    }
}

static stage_part place_of(const backward_case *c, stage_part p) {
    for (int i = 0; i < 2; i++)
        if (c->over[i].output != c->over[i].input && c->over[i].output == p)
            return c->over[i].input;
    return p;
}

DLTensor *backward_tensor(backward_run *r, stage_part p) {
    return &r->parts[place_of(&r->c, p)].dl;
}

int64_t backward_count(const backward_case *c, stage_part p) {
    return part_count(&c->op, c->ndim, c->shape, p);
}

static void make_part(backward_run *r, stage_part p) {
    const backward_case *c = &r->c;
    const uint64_t axes = backward_axes(c, p);
    int64_t shape[PLANISH_MAX_NDIM];
    int ndim = 0;
    for (int i = 0; i < c->ndim; i++)
        if (axes >> i & 1 || (c->full_rank && p != S_RNG))
            shape[ndim++] = axes >> i & 1 ? c->shape[i] : 1;
    if (p == S_RNG)
        shape[ndim++] = 2;
    const bool full = part_is_full(p);
    const layout l = !full ? DENSE : output_parts & PART(p) ? c->out : c->in;
    tensor_make(&r->parts[p], type_of(c, p), ndim, shape, l);
    if (p == S_RNG) {
        r->parts[p].dl.dtype = (DLDataType){kDLUInt, 64, 1};
        memcpy(r->parts[p].memory.data, c->draw, sizeof c->draw);
    }
}

static real *numbers(const backward_case *c, stage_part p) {
    const int64_t count = backward_count(c, p);
    random_state state = {(c->seed * 64 + (uint64_t)p) * 0x9e3779b97f4a7c15u};
    real *values = malloc(((size_t)count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = random_normal(&state);
        if (p == S_X && c->far_mean)
            values[i] += 50;
    }
    return values;
}

/* mean and rstd of s. */
static void write_statistics(backward_run *r, const real *s) {
    const backward_case *c = &r->c;
    geometry g = geometry_make(c->ndim, c->shape, c->op.reduce_axes, 0);
    real *mean = calloc((size_t)g.rows + 1, sizeof *mean);
    real *rstd = calloc((size_t)g.rows + 1, sizeof *rstd);
    for (int64_t e = 0; e < g.elements && c->op.kind == PLANISH_LAYER; e++)
        mean[g.row[e]] += s[e] / (real)g.cols;
    for (int64_t e = 0; e < g.elements; e++)
        rstd[g.row[e]] += (s[e] - mean[g.row[e]]) * (s[e] - mean[g.row[e]]);
    for (int64_t i = 0; i < g.rows; i++)
        rstd[i] = kind_rstd(&c->op, rstd[i], g.cols);
    if (c->op.kind == PLANISH_LAYER)
        tensor_write(&r->parts[S_MEAN].dl, mean);
    tensor_write(&r->parts[S_RSTD].dl, rstd);
    free(mean), free(rstd), geometry_free(&g);
}

void backward_make(backward_run *r, const backward_case *c) {
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->c.has |= PART(S_X) | PART(S_DY) | PART(S_RSTD);
    if (c->op.kind == PLANISH_LAYER)
        r->c.has |= PART(S_MEAN);
    r->tensors.struct_size = sizeof r->tensors;
    for (stage_part p = 0; p < STAGE_PARTS; p++) {
        if (!(r->c.has & PART(p)))
            continue;
        *staged_field(&r->tensors, p) = backward_tensor(r, p);
        if (place_of(c, p) != p)
            continue;
        make_part(r, p);
        if (output_parts & PART(p) || p == S_RNG)
            continue;
        real *values = numbers(c, p);
        tensor_write(&r->parts[p].dl, values);
        free(values);
    }
    r->branch = numbers(c, S_BRANCH);
    r->residual = numbers(c, S_RESIDUAL);
    for (int64_t i = 0, n = backward_count(c, S_X); i < n && !(c->has & PART(S_DRESIDUAL)); i++)
        r->residual[i] = 0;
    backward_numbers n = backward_numbers_of(r);
    const bool before = (c->has & PART(S_GATE)) && c->op.gate == PLANISH_GATE_BEFORE;
    real *s = backward_reals(r, S_X, 0);
    if (c->of_forward || before)
        backward_sum(c, &n, s);
    if (c->of_forward) {
        tensor_write(&r->parts[S_X].dl, before ? n.of[S_BRANCH] : s);
        if (!before)
            tensor_read(&r->parts[S_X].dl, s);
    }
    write_statistics(r, s);
    free(s);
    backward_numbers_free(&n);
}

void backward_free(backward_run *r) {
    parts_free(r->parts, &r->workspace);
    free(r->branch), free(r->residual);
}

real *backward_reals(backward_run *r, stage_part p, real otherwise) {
    return part_reals(&r->tensors, p, backward_count(&r->c, p), otherwise);
}

planish_status backward_do(backward_run *r, const planish_exec *exec, char *message, size_t bytes) {
    return parts_run(&r->c.op, PLANISH_BACKWARD, &r->tensors, &r->workspace, exec, message, bytes);
}

uint64_t backward_digest(backward_run *r) {
    return parts_digest(&r->tensors, r->c.has & output_parts);
}
