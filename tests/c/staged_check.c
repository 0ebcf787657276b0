/* What runs of norms with stages around them must come to; see staged_check.h. */
#include "staged_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- Forward -------------------------------------------------------------------------------- */

static void check_sum(staged_run *r, const staged_reference *f) {
    real *sum = staged_reals(r, S_SUM, f->elements, 0);
    int64_t wrong = 0;
    for (int64_t e = 0; e < f->elements; e++) {
        const real ulp = element_ulp(r->c.sum, fabsl(f->s[e])),
                   unit = r->c.sum == F64 ? 0x1p-51L : 0x1p-21L;
        const real allowed = f->exact_sum ? 0 : ulp + unit * fabsl(f->s[e]);
        wrong += !(fabsl(sum[e] - f->s[e]) <= allowed);
    }
    expect(!wrong, "%lld of %lld sums are off", (long long)wrong, (long long)f->elements);
    free(sum);
}

static void check_y(staged_run *r, const staged_reference *f) {
    real *y = staged_reals(r, S_Y, f->elements, 0), worst = 0;
    int64_t at = 0;
    for (int64_t e = 0; e < f->elements; e++) {
        /* Of a row of one number the reference's mean has a rest, and so its y. */
        const real half = element_ulp(r->c.y, fabsl(f->y[e])) * .5001L + 1e-30L;
        const real off = fabsl(y[e] - f->y[e]) / (f->bound[e] + half);
        if (!(off <= worst))
            worst = off, at = e;
    }
    expect(worst <= 1, "y[%lld] is %Lg, wanted %Lg: off %Lg bounds", (long long)at, y[at], f->y[at],
           worst);
    free(y);
}

static void check_mask(staged_run *r, const staged_reference *f) {
    unsigned char *mask = staged_bytes(r, S_MASK);
    expect(!memcmp(mask, f->mask, (size_t)f->elements), "another mask");
    free(mask);
}

/* Every output stays within its elements. */
static void check_intact(const staged_run *r) {
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        if (r->parts[p].memory.mapping && r->parts[p].dl.dtype.bits > 8)
            expect(tensor_intact(&r->parts[p]), "part %d: bytes between elements changed", p);
}

void staged_check(staged_run *r, staged_reference *f) {
    const staged_case *c = &r->c;
    const bool y_over_sum = c->y_over_x && c->sum_over == S_X;
    if ((c->has & PART(S_SUM)) && !y_over_sum)
        check_sum(r, f);
    if (!f->exact_sum && (c->has & PART(S_SUM)))
        staged_reference_of_sum(f, r);
    if (c->has & PART(S_Y))
        check_y(r, f);
    if (c->has & PART(S_MASK))
        check_mask(r, f);
    check_intact(r);
}

/* ---- Backward ------------------------------------------------------------------------------- */

/* Each element within 40 roundings of the compute type, of its magnitude, and half a ULP. */
static void check_output(backward_run *r, const backward_reference *f, stage_part p) {
    const int64_t count = backward_count(&r->c, p);
    const element type = element_of(backward_tensor(r, p)->dtype);
    const real unit = f->is_double ? 0x1p-53L : 0x1p-24L;
    real *found = backward_reals(r, p, 0), worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const real wanted = f->value[p][i];
        const real allowed =
            40 * unit * fabsl(f->scale[p][i]) + .5001L * element_ulp(type, fabsl(wanted));
        const real off = fabsl(found[i] - wanted) / allowed;
        if (!(off <= worst))
            worst = off, at = i;
    }
    expect(worst <= 1, "%s[%lld] is %.10Lg, wanted %.10Lg: off %Lg bounds",
           planish_tensor_name((int)p), (long long)at, found[at], f->value[p][at], worst);
    free(found);
}

void backward_check(backward_run *r, const backward_reference *f) {
    for (stage_part p = 0; p < STAGE_PARTS; p++) {
        if ((r->c.has & PART(p)) && backward_is_output(p))
            check_output(r, f, p);
        if (r->parts[p].memory.mapping)
            expect(tensor_intact(&r->parts[p]), "%s: bytes between elements changed",
                   planish_tensor_name((int)p));
    }
}

/* ---- Quantised results ---------------------------------------------------------------------- */

/* A number as it is quantised: nearest, saturated, NaN kept. */
unsigned char quantised_of(DLDataType type, real v) {
    const real most = quantised_largest(type);
    if (isnan(v))
        return type.code == kDLInt ? 0 : 0x7f;
    return quantised_nearest(type, v > most ? most : v < -most ? -most : v);
}

bool quantised_same(DLDataType type, unsigned char a, unsigned char b) {
    const real va = quantised_value(type, a), vb = quantised_value(type, b);
    return a == b || (isnan(va) && isnan(vb));
}

static float expected_scale(const staged_case *c, real amax) {
    const planish_norm *s = &c->op;
    float scale = (float)amax / (float)quantised_largest(c->q);
    scale = scale < (float)s->scale_least ? (float)s->scale_least : scale;
    scale = scale == 0 ? 1 : scale;
    scale = s->scale_most > 0 && scale > (float)s->scale_most ? (float)s->scale_most : scale;
    if (s->scale_format != PLANISH_SCALE_POWER_OF_TWO)
        return scale;
    int exponent;
    const float fraction = frexpf(scale, &exponent);
    exponent -= fraction == .5f;
    return ldexpf(1, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
}

static float scale_read(const DLTensor *t, const unsigned char *at) {
    float scale;
    if (t->dtype.bits == 8)
        return ldexpf(1, *at - 127);
    memcpy(&scale, at, sizeof scale);
    return scale;
}

void quantised_check(staged_run *r) {
    const staged_case *c = &r->c;
    const int64_t rows = c->shape[0], cols = c->shape[1];
    const int64_t block = c->op.scale_block ? c->op.scale_block : cols;
    const bool finds = c->has & PART(S_Y_SCALES);
    real *y = staged_reals(r, S_Y, rows * cols, 0), largest = 0;
    unsigned char *q = staged_bytes(r, S_Q);
    cursor scale_at = cursor_begin(staged_tensor(r, finds ? S_Y_SCALES : S_Y_SCALE));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t first = 0; first < cols; first += block) {
            const int64_t end = first + block < cols ? first + block : cols;
            real amax = 0;
            for (int64_t i = first; i < end; i++)
                amax = fmaxl(amax, fabsl(y[row * cols + i]));
            largest = fmaxl(amax, largest);
            const float scale = scale_read(scale_at.tensor, scale_at.at);
            const float wanted = finds ? expected_scale(c, amax) : scale;
            expect(scale == wanted, "scale %g, wanted %g, of row %lld", scale, wanted,
                   (long long)row);
            for (int64_t i = row * cols + first; i < row * cols + end; i++) {
                const real v = c->type == F64 ? (real)((double)y[i] / (double)scale)
                                              : (real)((float)y[i] / scale);
                const unsigned char nearest = quantised_of(c->q, v);
                expect(quantised_same(c->q, q[i], nearest), "%Lg became %02x, wanted %02x", v, q[i],
                       nearest);
            }
            if (finds)
                cursor_next(&scale_at);
        }
    float amax = (float)largest;
    if (c->has & PART(S_AMAX))
        memcpy(&amax, r->parts[S_AMAX].memory.data, sizeof amax);
    expect(amax == (float)largest, "amax is %g, wanted %Lg", amax, largest);
    free(y), free(q);
}
