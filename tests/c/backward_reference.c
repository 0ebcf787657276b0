/* The formulas of planish.h for the backward of a norm with stages around it, in long double, and
 * the objective that it is the gradient of; see backward_case.h. */
#include "backward_case.h"

#include <math.h>
#include <stdlib.h>

#include "activation.h"
#include "kinds.h"

/* ---- What the stages do to one number -------------------------------------------------------- */

/* Whether dropout keeps this element: Philox4x32-10. */
static bool kept(const backward_case *c, uint64_t index) {
    uint64_t word[4] = {index / 4 & 0xffffffffu, index / 4 >> 32, c->draw[1] & 0xffffffffu,
                        c->draw[1] >> 32};
    uint64_t key[2] = {c->draw[0] & 0xffffffffu, c->draw[0] >> 32};
    for (int i = 0; i < 10; i++) {
        const uint64_t a = 0xd2511f53u * word[0], b = 0xcd9e8d57u * word[2];
        const uint64_t next[4] = {b >> 32 ^ word[1] ^ key[0], b & 0xffffffffu,
                                  a >> 32 ^ word[3] ^ key[1], a & 0xffffffffu};
        for (int k = 0; k < 4; k++)
            word[k] = next[k];
        key[0] = (key[0] + 0x9e3779b9u) & 0xffffffffu;
        key[1] = (key[1] + 0xbb67ae85u) & 0xffffffffu;
    }
    return (double)word[index % 4] >= c->op.dropout_p * 0x1p32;
}

/* ---- Where each element finds what is not its own -------------------------------------------- */

typedef struct places {
    geometry by[STAGE_PARTS]; /* of the parts that have not all axes: channel */
} places;

static const stage_part some_axes[] = {S_WEIGHT, S_COLUMN_SCALE, S_SCALE, S_ROW_SCALE};
enum { SOME_AXES = sizeof some_axes / sizeof *some_axes };

static places places_of(const backward_case *c) {
    places p = {0};
    for (int i = 0; i < SOME_AXES; i++)
        p.by[some_axes[i]] =
            geometry_make(c->ndim, c->shape, c->op.reduce_axes, backward_axes(c, some_axes[i]));
    return p;
}
static void places_free(places *p) {
    for (int i = 0; i < SOME_AXES; i++)
        geometry_free(&p->by[some_axes[i]]);
}

static bool is_before(const backward_case *c) {
    return (c->has & PART(S_GATE)) && c->op.gate == PLANISH_GATE_BEFORE;
}
static bool is_after(const backward_case *c) {
    return (c->has & PART(S_GATE)) && c->op.gate == PLANISH_GATE_AFTER;
}

/* What element e of x is multiplied by, but for its column_scale and its gate. */
static real row_factor(const backward_case *c, const places *p, const backward_numbers *n,
                       int64_t e) {
    real u = n->of[S_ROW_SCALE][p->by[S_ROW_SCALE].channel[e]];
    if (c->op.dropout_p > 0)
        u *= kept(c, (uint64_t)e) ? 1 / (1 - (real)c->op.dropout_p) : 0;
    return u;
}

backward_numbers backward_numbers_of(backward_run *r) {
    backward_numbers n = {{0}};
    static const stage_part ones[] = {S_ROW_SCALE, S_COLUMN_SCALE};
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        if (p != S_RNG && p != S_RESIDUAL)
            n.of[p] = backward_reals(r, p, p == ones[0] || p == ones[1]);
    n.of[S_RESIDUAL] = malloc(((size_t)backward_count(&r->c, S_X) + 1) * sizeof(real));
    for (int64_t e = 0, count = backward_count(&r->c, S_X); e < count; e++) {
        n.of[S_RESIDUAL][e] = r->residual[e];
        if (!(r->c.has & PART(S_BRANCH)))
            n.of[S_BRANCH][e] = r->branch[e];
    }
    for (int64_t i = 0, count = backward_count(&r->c, S_WEIGHT);
         i < count && !(r->c.has & PART(S_WEIGHT)); i++)
        n.of[S_WEIGHT][i] = 1 - r->c.op.weight_offset;
    return n;
}
void backward_numbers_free(backward_numbers *n) {
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        free(n->of[p]);
}

void backward_sum(const backward_case *c, const backward_numbers *n, real *s) {
    places p = places_of(c);
    for (int64_t e = 0; e < p.by[S_WEIGHT].elements; e++)
        s[e] =
            n->of[c->of_forward ? S_BRANCH : S_X][e] * (is_before(c) ? silu(n->of[S_GATE][e]) : 1) *
                n->of[S_COLUMN_SCALE][p.by[S_COLUMN_SCALE].channel[e]] * row_factor(c, &p, n, e) +
            (c->of_forward ? n->of[S_RESIDUAL][e] : 0);
    places_free(&p);
}

/* ---- The objective --------------------------------------------------------------------------- */

real backward_objective(const backward_case *c, const backward_numbers *n) {
    places p = places_of(c);
    const geometry *g = &p.by[S_WEIGHT];
    real *s = malloc(((size_t)g->elements + 1) * sizeof *s), total = 0;
    real *mean = calloc((size_t)g->rows + 1, sizeof *mean);
    real *var = calloc((size_t)g->rows + 1, sizeof *var);
    backward_sum(c, n, s);
    for (int64_t e = 0; e < g->elements && c->op.kind == PLANISH_LAYER; e++)
        mean[g->row[e]] += s[e] / (real)g->cols;
    for (int64_t e = 0; e < g->elements; e++)
        var[g->row[e]] += (s[e] - mean[g->row[e]]) * (s[e] - mean[g->row[e]]);
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t a = g->channel[e], at = p.by[S_SCALE].channel[e];
        const real xhat = (s[e] - mean[g->row[e]]) * kind_rstd(&c->op, var[g->row[e]], g->cols);
        const real z = xhat * (n->of[S_WEIGHT][a] + c->op.weight_offset) + n->of[S_BIAS][a];
        const real v =
            activated(c->op.activation, z * (1 + n->of[S_SCALE][at]) + n->of[S_SHIFT][at]);
        const real y = is_after(c) ? v * silu(n->of[S_GATE][e]) : v;
        total += y * n->of[S_DY][e] + s[e] * n->of[S_DSUM][e];
    }
    free(s), free(mean), free(var), places_free(&p);
    return total;
}

/* ---- The gradients --------------------------------------------------------------------------- */

static real *zeros(int64_t count) {
    return calloc((size_t)count + 1, sizeof(real));
}

static bool any_double(const backward_case *c) {
    for (stage_part p = 0; p < STAGE_PARTS; p++) {
        const bool kept_axes = p == S_MEAN || p == S_RSTD || p == S_ROW_SCALE || p == S_RNG;
        const element t = p == S_X                        ? c->x
                          : p == S_DY                     ? c->dy
                          : p == S_DX || p == S_DRESIDUAL ? c->dx
                          : backward_axes(c, p) == PLANISH_AXIS(c->ndim) - 1 &&
                                  (p == S_GATE || p >= S_BRANCH) && p != S_DSCALE &&
                                  p != S_DSHIFT && p != S_DCOLUMN_SCALE
                              ? c->stages
                              : c->params;
        if ((c->has & PART(p)) && !kept_axes && t == F64)
            return true;
    }
    return false;
}

static void add(backward_reference *f, stage_part p, int64_t i, real value, real scale) {
    f->value[p][i] += value;
    f->scale[p][i] += fabsl(scale);
}

/* Of one element behind the norm. */
typedef struct behind {
    real xhat, weight, dz, dz_scale;
} behind;

static behind behind_of(const backward_case *c, const places *p, const backward_numbers *n,
                        backward_reference *f, int64_t e, real xhat) {
    const int64_t a = p->by[S_WEIGHT].channel[e], at = p->by[S_SCALE].channel[e];
    const real weight = n->of[S_WEIGHT][a] + c->op.weight_offset, bias = n->of[S_BIAS][a];
    const real scale = n->of[S_SCALE][at], shift = n->of[S_SHIFT][at], dy = n->of[S_DY][e];
    const real z = xhat * weight + bias, z_scale = (fabsl(xhat) + 1) * fabsl(weight) + fabsl(bias);
    const real m = z * (1 + scale) + shift;
    const real m_scale = z_scale * (1 + fabsl(scale)) + fabsl(shift);
    const planish_activation act = c->op.activation;
    real d = dy;
    if (is_after(c)) {
        const real gate = n->of[S_GATE][e], v = activated(act, m);
        add(f, S_DGATE, e, dy * v * silu_slope(gate), dy * (fabsl(v) + m_scale) * 1.1L);
        d = dy * silu(gate);
    }
    /* Rows of one number: xhat is 0 but for the rounding here. */
    const real dm = d * activated_slope(act, fabsl(m) < 1e-15L ? 0 : m);
    const real dm_scale = act ? fabsl(d) * (1.2L + m_scale) : fabsl(d);
    add(f, S_DSCALE, at, dm * z, dm_scale * z_scale);
    add(f, S_DSHIFT, at, dm, dm_scale);
    return (behind){xhat, weight, dm * (1 + scale), dm_scale * (1 + fabsl(scale))};
}

backward_reference backward_reference_of(backward_run *r) {
    const backward_case *c = &r->c;
    places p = places_of(c);
    const geometry *g = &p.by[S_WEIGHT];
    backward_numbers n = backward_numbers_of(r);
    backward_reference f = {.is_double = any_double(c)};
    for (stage_part q = 0; q < STAGE_PARTS; q++) {
        f.value[q] = zeros(backward_count(c, q));
        f.scale[q] = zeros(backward_count(c, q));
    }
    real *s = zeros(g->elements), *mean = zeros(g->rows), *c1 = zeros(g->rows);
    real *c2 = zeros(g->rows), *row_scale = zeros(g->rows);
    behind *all = calloc((size_t)g->elements + 1, sizeof *all);
    for (int64_t e = 0; e < g->elements; e++)
        s[e] = n.of[S_X][e];
    if (is_before(c))
        backward_sum(c, &n, s);
    for (int64_t e = 0; e < g->elements && c->op.kind == PLANISH_LAYER; e++)
        mean[g->row[e]] += s[e] / (real)g->cols;
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e];
        const real xhat = (s[e] - mean[row]) * n.of[S_RSTD][row];
        const behind b = all[e] = behind_of(c, &p, &n, &f, e, xhat);
        add(&f, S_DWEIGHT, g->channel[e], b.dz * xhat, b.dz_scale * (1 + fabsl(xhat)));
        add(&f, S_DBIAS, g->channel[e], b.dz, b.dz_scale);
        c1[row] += c->op.kind == PLANISH_LAYER ? b.dz * b.weight / (real)g->cols : 0;
        const bool clamped = kind_clamps(&c->op, n.of[S_RSTD][row], c->stats, f.is_double);
        c2[row] += clamped ? 0 : b.dz * b.weight * xhat / kind_count(&c->op, g->cols);
        const real of_row = n.of[S_RSTD][row] * b.dz_scale * (1 + fabsl(b.weight)) *
                            (3 + fabsl(xhat) + xhat * xhat);
        row_scale[row] = of_row > row_scale[row] ? of_row : row_scale[row];
    }
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e];
        const real ds =
            n.of[S_RSTD][row] * (all[e].dz * all[e].weight - c1[row] - all[e].xhat * c2[row]) +
            n.of[S_DSUM][e];
        const real scale = row_scale[row] + fabsl(n.of[S_DSUM][e]);
        const real by_row = row_factor(c, &p, &n, e);
        const int64_t at = p.by[S_COLUMN_SCALE].channel[e];
        const real column = n.of[S_COLUMN_SCALE][at];
        const real gate = is_before(c) ? n.of[S_GATE][e] : 0;
        const real by_gate = is_before(c) ? silu(gate) : 1;
        add(&f, S_DRESIDUAL, e, ds, scale);
        add(&f, S_DX, e, ds * by_gate * column * by_row, scale * by_gate * column * by_row);
        add(&f, S_DCOLUMN_SCALE, at, ds * n.of[S_BRANCH][e] * by_gate * by_row,
            scale * n.of[S_BRANCH][e] * by_gate * by_row);
        if (is_before(c))
            add(&f, S_DGATE, e, ds * n.of[S_X][e] * silu_slope(gate) * column * by_row,
                scale * n.of[S_X][e] * 1.1L * column * by_row);
    }
    free(s), free(mean), free(c1), free(c2), free(row_scale), free(all);
    backward_numbers_free(&n), places_free(&p);
    return f;
}

void backward_reference_free(backward_reference *f) {
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        free(f->value[p]), free(f->scale[p]);
}
