/* The reference of norms with stages around them; see staged_reference.h. */
#include "staged_reference.h"

#include <math.h>
#include <stdlib.h>

#include "activation.h"
#include "kinds.h"

/* ---- Arithmetic of the compute type ---------------------------------------------------------- */

static real rounded(bool is_double, real value) {
    return is_double ? (real)(double)value : (real)(float)(double)value;
}
static real times(bool is_double, real a, real b) {
    return is_double ? (real)((double)a * (double)b) : (real)((float)a * (float)b);
}
static real plus(bool is_double, real a, real b) {
    return is_double ? (real)((double)a + (double)b) : (real)((float)a + (float)b);
}

/* ---- Dropout, word by word ------------------------------------------------------------------- */

static uint32_t philox_word(const uint64_t rng[2], uint64_t index) {
    uint32_t c[4] = {(uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), (uint32_t)rng[1],
                     (uint32_t)(rng[1] >> 32)};
    uint32_t k[2] = {(uint32_t)rng[0], (uint32_t)(rng[0] >> 32)};
    for (int i = 0; i < 10; i++) {
        const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        for (int j = 0; j < 4; j++)
            c[j] = next[j];
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    return c[index % 4];
}

/* ---- The reference --------------------------------------------------------------------------- */

static bool any_double(const staged_case *c) {
    static const stage_part of_params[] = {S_WEIGHT, S_BIAS,  S_COLUMN_SCALE,
                                           S_SCALE,  S_SHIFT, S_GATE};
    bool found = c->type == F64 || ((c->has & PART(S_Y)) && c->y == F64) ||
                 ((c->has & PART(S_RESIDUAL)) && c->residual == F64) ||
                 ((c->has & PART(S_SUM)) && c->sum == F64);
    for (size_t i = 0; i < sizeof of_params / sizeof *of_params; i++)
        found |= (c->has & PART(of_params[i])) && c->params == F64;
    return found;
}

/* What is made of x before the norm. The sum may be over one of its terms: this comes before the
 * run. */
static void make_sums(staged_reference *f, staged_run *r, bool d, const geometry *columns,
                      const geometry *affine) {
    const staged_case *c = &r->c;
    real *x = staged_reals(r, S_X, f->elements, 0);
    real *residual = staged_reals(r, S_RESIDUAL, f->elements, 0);
    real *gate = staged_reals(r, S_GATE, f->elements, 0);
    real *column = staged_reals(r, S_COLUMN_SCALE, columns->channels, 1);
    real *row = staged_reals(r, S_ROW_SCALE, affine->rows, 1);
    const bool rounds = c->has & (PART(S_SUM) | PART(S_RESIDUAL));
    const element to = c->has & PART(S_SUM) ? c->sum : c->residual;
    const uint64_t least = (uint64_t)ceil(c->op.dropout_p * 0x1p32);
    const real factor = rounded(d, 1 / (1 - c->op.dropout_p));
    f->exact_sum = !((c->has & PART(S_GATE)) && c->op.gate == PLANISH_GATE_BEFORE);
    for (int64_t e = 0; e < f->elements; e++) {
        real u = x[e];
        if (!f->exact_sum)
            u *= silu(gate[e]);
        if (c->has & PART(S_COLUMN_SCALE))
            u = times(d, u, column[columns->channel[e]]);
        if (c->has & PART(S_ROW_SCALE))
            u = times(d, u, rounded(d, row[affine->row[e]]));
        f->mask[e] = philox_word(c->draw, (uint64_t)e) >= least;
        if (c->op.dropout_p > 0)
            u = f->mask[e] ? times(d, u, factor) : 0;
        if (c->has & PART(S_RESIDUAL))
            u = plus(d, u, residual[e]);
        f->s[e] = rounds ? element_round(to, u) : u;
    }
    free(x), free(residual), free(gate), free(column), free(row);
}

static void raise_to(real *largest, real value) {
    *largest = fabsl(value) > *largest ? fabsl(value) : *largest;
}

/* Takes each row's mean from it, as far as that is known. */
static void center(const geometry *g, real *s) {
    real *mean = calloc((size_t)g->rows + 1, sizeof *mean);
    for (int64_t e = 0; e < g->elements; e++)
        mean[g->row[e]] += s[e] / (real)g->cols;
    for (int64_t e = 0; e < g->elements; e++)
        s[e] -= mean[g->row[e]];
    free(mean);
}

/* xhat in the place of s. What the first mean's rounding left, the second takes. */
static void normalize(const staged_case *c, const geometry *g, real *s) {
    real *square = calloc((size_t)g->rows + 1, sizeof *square);
    for (int i = 0; i < 2 && c->op.kind == PLANISH_LAYER; i++)
        center(g, s);
    for (int64_t e = 0; e < g->elements; e++)
        square[g->row[e]] += s[e] * s[e];
    for (int64_t e = 0; e < g->elements; e++)
        s[e] *= kind_rstd(&c->op, square[g->row[e]], g->cols);
    free(square);
}

/* What is made of the norm's xhat, which is in f->y, and how far off each may be. */
static void make_results(staged_reference *f, staged_run *r, bool d, const geometry *g,
                         const geometry *modulated) {
    const staged_case *c = &r->c;
    const real unit = d ? 0x1p-53L : 0x1p-24L;
    real *weight = staged_reals(r, S_WEIGHT, g->channels, 1 - (real)c->op.weight_offset);
    real *bias = staged_reals(r, S_BIAS, g->channels, 0);
    real *scale = staged_reals(r, S_SCALE, modulated->channels, 0);
    real *shift = staged_reals(r, S_SHIFT, modulated->channels, 0);
    real *gate = staged_reals(r, S_GATE, f->elements, 0);
    const bool gated = (c->has & PART(S_GATE)) && c->op.gate == PLANISH_GATE_AFTER;
    real *largest = calloc((size_t)g->rows + 1, sizeof *largest);
    for (int64_t e = 0; e < f->elements; e++) {
        const int64_t a = g->channel[e];
        f->y[e] *= (real)c->op.weight_offset + weight[a];
        raise_to(&largest[g->row[e]], f->y[e]);
        raise_to(&largest[g->row[e]], bias[a]);
        f->y[e] += bias[a];
    }
    for (int64_t e = 0; e < f->elements; e++) {
        const int64_t k = modulated->channel[e];
        real off = (f->exact_sum ? 8 : 24) * unit * largest[g->row[e]],
             m = f->y[e] * (1 + scale[k]);
        off = off * fabsl(1 + scale[k]) + 2 * unit * (fabsl(m) + fabsl(shift[k]));
        m += shift[k];
        real y = activated(c->op.activation, m);
        off = 1.2L * off + 4 * unit * fabsl(y);
        if (gated) {
            y *= silu(gate[e]);
            off = off * fabsl(silu(gate[e])) + 6 * unit * fabsl(y);
        }
        f->y[e] = y;
        f->bound[e] = off;
    }
    free(weight), free(bias), free(scale), free(shift), free(gate), free(largest);
}

static geometry of_axes(const staged_case *c, uint64_t axes) {
    return geometry_make(c->ndim, c->shape, c->op.reduce_axes, axes);
}

/* y of s. */
static void make_y(staged_reference *f, staged_run *r) {
    const staged_case *c = &r->c;
    geometry affine = of_axes(c, c->op.affine_axes), modulated = of_axes(c, c->op.modulation_axes);
    for (int64_t e = 0; e < f->elements; e++)
        f->y[e] = f->s[e];
    normalize(c, &affine, f->y);
    make_results(f, r, any_double(c), &affine, &modulated);
    geometry_free(&affine), geometry_free(&modulated);
}

staged_reference staged_reference_of(staged_run *r) {
    const staged_case *c = &r->c;
    geometry affine = of_axes(c, c->op.affine_axes);
    geometry columns = of_axes(c, c->op.column_axes ? c->op.column_axes : c->op.affine_axes);
    const size_t bytes = ((size_t)affine.elements + 1) * sizeof(real);
    staged_reference f = {.elements = affine.elements,
                          .s = malloc(bytes),
                          .y = malloc(bytes),
                          .bound = malloc(bytes),
                          .mask = malloc((size_t)affine.elements + 1)};
    make_sums(&f, r, any_double(c), &columns, &affine);
    make_y(&f, r);
    geometry_free(&affine), geometry_free(&columns);
    return f;
}

void staged_reference_of_sum(staged_reference *f, staged_run *r) {
    tensor_read(staged_tensor(r, S_SUM), f->s);
    make_y(f, r);
}

void staged_reference_free(staged_reference *f) {
    free(f->s), free(f->y), free(f->bound), free(f->mask);
}

/* ---- Quantised numbers ----------------------------------------------------------------------- */

real quantised_largest(DLDataType type) {
    return type.code == kDLFloat8_e4m3fn ? 448 : type.code == kDLFloat8_e5m2 ? 57344 : 127;
}

real quantised_value(DLDataType type, unsigned char bits) {
    if (type.code == kDLInt)
        return (signed char)bits;
    const int digits = type.code == kDLFloat8_e4m3fn ? 3 : 2, bias = digits == 3 ? 7 : 15;
    const int exponent = (bits & 0x7f) >> digits, fraction = bits & ((1 << digits) - 1);
    const real sign = bits & 0x80 ? -1 : 1;
    if ((digits == 3 && (bits & 0x7f) == 0x7f) || (digits == 2 && exponent == 31 && fraction))
        return NAN;
    if (digits == 2 && exponent == 31)
        return sign * INFINITY;
    const real significand = fraction + (exponent ? 1 << digits : 0);
    return sign * ldexpl(significand, (exponent ? exponent : 1) - bias - digits);
}

unsigned char quantised_nearest(DLDataType type, real value) {
    unsigned char best = 0;
    real apart = INFINITY;
    for (int i = 0; i < 256; i++) {
        const real found = quantised_value(type, (unsigned char)i);
        if (!isfinite(found) || fabsl(found) > quantised_largest(type))
            continue;
        if (type.code != kDLInt && signbit(found) != signbit(value))
            continue;
        const real distance = fabsl(found - value);
        if (distance < apart || (distance == apart && !(i & 1))) {
            apart = distance;
            best = (unsigned char)i;
        }
    }
    return best;
}
