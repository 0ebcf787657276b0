/* See batch_run.h. */
#include "batch_run.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

static bool is_full(slot k) {
    return k == T_X || k == T_Y || k == T_DY || k == T_DX || k == T_ADDEND || k == T_DADDEND;
}
static bool is_affine(slot k) {
    return k == T_WEIGHT || k == T_BIAS || k == T_DWEIGHT || k == T_DBIAS;
}
static int64_t count_of(const batch_run *r, slot k) {
    return is_full(k) ? r->g.elements : is_affine(k) ? r->g.channels : r->g.rows;
}
static bool is_output(const batch_run *r, slot k) {
    const planish_pass p = r->w->pass;
    const bool forward = p == PLANISH_FORWARD;
    return ((k == T_MEAN || k == T_RSTD || k == T_RUNNING_MEAN || k == T_RUNNING_VAR) && forward) ||
           (k == T_Y && p != PLANISH_BACKWARD) || k == T_DX || k == T_DWEIGHT || k == T_DBIAS ||
           k == T_DADDEND;
}

static void add_tensor(batch_run *r, slot k, element type, layout l) {
    int64_t size[4];
    int n = 0;
    for (int i = 0; i < r->s->ndim; i++) {
        const bool has =
            is_full(k) || (is_affine(k) ? r->s->affine >> i & 1 : !(r->s->reduce >> i & 1));
        if (has)
            size[n++] = r->s->size[i];
    }
    r->has[k] = true;
    tensor_make(&r->t[k], type, n, size, is_full(k) ? l : DENSE);
    r->v[k] = calloc((size_t)count_of(r, k) + 1, sizeof(real));
    r->bound[k] = calloc((size_t)count_of(r, k) + 1, sizeof(real));
}

static void add_tensors(batch_run *r, element weight, element stats, layout l) {
    const wanted *w = r->w;
    const bool back = w->pass == PLANISH_BACKWARD,
               own = w->pass == PLANISH_FORWARD ? w->saves : !w->running;
    add_tensor(r, T_X, r->type, l);
    add_tensor(r, T_WEIGHT, weight, l);
    if (!back || (w->f && !w->mask))
        add_tensor(r, T_BIAS, weight, l);
    if (!back || w->mask)
        add_tensor(r, T_Y, r->type, l);
    if (own) {
        add_tensor(r, T_MEAN, F64, l);
        add_tensor(r, T_RSTD, F64, l);
    }
    if (w->running) {
        add_tensor(r, T_RUNNING_MEAN, stats, l);
        add_tensor(r, T_RUNNING_VAR, stats, l);
    }
    if (w->given_sums) {
        add_tensor(r, T_C1, stats, l);
        add_tensor(r, T_C2, stats, l);
    }
    if (w->addend)
        add_tensor(r, T_ADDEND, r->type, l);
    if (!back)
        return;
    add_tensor(r, T_DY, r->type, l);
    add_tensor(r, T_DX, r->type, l);
    add_tensor(r, T_DWEIGHT, weight, l);
    add_tensor(r, T_DBIAS, weight, l);
    if (w->daddend)
        add_tensor(r, T_DADDEND, r->type, l);
}

/* Numbers for all inputs, rounded to their types. */
static void fill(batch_run *r, uint64_t seed) {
    random_state random = {seed};
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || (is_output(r, k) && k != T_RUNNING_MEAN && k != T_RUNNING_VAR))
            continue;
        for (int64_t i = 0; i < count_of(r, k); i++) {
            real value = random_normal(&random);
            if (k == T_X)
                value += 3 + (real)(r->g.row[i] % 5);
            if (k == T_RUNNING_MEAN || (k == T_MEAN && r->w->pass != PLANISH_FORWARD))
                value = 3 + (real)(i % 5) + value / 8;
            if (k == T_RUNNING_VAR || k == T_RSTD)
                value = 1 + fabsl(value) / 4;
            if (k == T_C1 || k == T_C2)
                value /= 8;
            r->v[k][i] = element_round(r->t[k].type, value);
        }
        tensor_write(&r->t[k].dl, r->v[k]);
    }
}

planish_tensors tensors_of(batch_run *r) {
    planish_tensors t = {.struct_size = sizeof t};
    const DLTensor **const fields[SLOTS] = {&t.x,       &t.weight, &t.bias,         &t.y,
                                            &t.mean,    &t.rstd,   &t.dy,           &t.dx,
                                            &t.dweight, &t.dbias,  &t.addend,       &t.daddend,
                                            &t.c1,      &t.c2,     &t.running_mean, &t.running_var};
    for (slot k = 0; k < SLOTS; k++)
        *fields[k] = r->has[k] ? &r->t[k].dl : NULL;
    return t;
}

void run_begin(batch_run *r, const wanted *w, const batch_shape *s, element type, element weight,
               element stats, layout l, uint64_t seed) {
    *r = (batch_run){.w = w, .s = s, .type = type};
    r->op = planish_norm_op(PLANISH_LAYER, s->reduce, s->affine, 1e-3);
    r->op.momentum = .3;
    r->op.activation = w->f;
    r->g = geometry_make(s->ndim, s->size, s->reduce, s->affine);
    add_tensors(r, weight, stats, l);
    fill(r, seed);
}

bool run_do(batch_run *r, planish_exec exec) {
    const planish_tensors t = tensors_of(r);
    char message[512] = "";
    size_t bytes = 0;
    exec.struct_size = sizeof exec;
    exec.message = message;
    exec.message_bytes = sizeof message;
    planish_status status = planish_norm_workspace_bytes(&r->op, r->w->pass, &t, &bytes, &exec);
    guarded workspace = guarded_make(bytes, 64);
    exec.workspace = workspace.data;
    exec.workspace_bytes = bytes;
    if (!status)
        status = planish_norm_run(&r->op, r->w->pass, &t, &exec);
    guarded_free(&workspace);
    return expect(!status, "%s: %s", planish_status_name(status), message);
}

void run_check(batch_run *r) {
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || !is_output(r, k))
            continue;
        const int64_t n = count_of(r, k);
        real *found = calloc((size_t)n + 1, sizeof *found), worst = 0;
        int64_t at = 0;
        tensor_read(&r->t[k].dl, found);
        for (int64_t i = 0; i < n; i++) {
            const bool both_nan = isnan(found[i]) && isnan(r->v[k][i]);
            const real off = both_nan ? 0 : fabsl(found[i] - r->v[k][i]) / r->bound[k][i];
            if (!(off <= worst))
                worst = off, at = i;
        }
        expect(worst <= 1, "slot %d[%lld] is %Lg, wanted %Lg: off %Lg bounds", (int)k,
               (long long)at, found[at], r->v[k][at], worst);
        expect(tensor_intact(&r->t[k]), "slot %d: bytes between elements changed", (int)k);
        free(found);
    }
}

uint64_t run_digest(const batch_run *r) {
    uint64_t all = 0xcbf29ce484222325u;
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || !is_output(r, k))
            continue;
        cursor c = cursor_begin(&r->t[k].dl);
        const int bytes = element_bytes(r->t[k].type);
        for (int64_t i = 0; i < count_of(r, k); i++, cursor_next(&c))
            for (int b = 0; b < bytes; b++)
                all = (all ^ c.at[b]) * 0x100000001b3u;
    }
    return all;
}

void run_end(batch_run *r) {
    for (slot k = 0; k < SLOTS; k++)
        if (r->has[k]) {
            tensor_free(&r->t[k]);
            free(r->v[k]), free(r->bound[k]);
        }
    geometry_free(&r->g);
}
