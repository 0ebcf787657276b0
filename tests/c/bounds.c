/*
 * The bounds of docs/guide/reproducibility.md, as expectations, and nothing wider than that page.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"
#include "check.h"

/* The largest error seen of each part and type, in the unit of its bound. */
static real largest[PARTS][ELEMENT_COUNT];
static int64_t seen[PARTS][ELEMENT_COUNT];
/* 16-bit elements that are the neighbour of the right one. */
static int64_t neighbours[PARTS][ELEMENT_COUNT];

static const real ULPS = 4;
bool plain_f64_sums;

/* What a value is held to. */
typedef struct bound {
    part p;
    element type, arithmetic;
    real ulps;   /* of the arithmetic, at the magnitude that the error is measured against */
    real least;  /* or this much */
    bool counts; /* among those that have to be the exact result rounded */
} bound;

/* A value of fewer digits than the arithmetic has, against the exact one: between what is `room`
 * below and what is `room` above it, each rounded once; and equal to the exact one rounded, or
 * beside that, or within the room itself. */
static bool rounded_once(const bound *b, real got, real wanted, real room) {
    if (got < element_round(b->type, wanted - room) || got > element_round(b->type, wanted + room))
        return false;
    const int64_t steps = element_steps(b->type, got, element_round(b->type, wanted));
    neighbours[b->p][b->type] += b->counts && steps != 0;
    if (steps > 1 && fabsl(got - wanted) <= room)
        return true;
    if (b->p == Y && element_bytes(b->type) == 2 && steps > largest[b->p][b->type])
        largest[b->p][b->type] = steps;
    return steps <= 1;
}

static bool within(const bound *b, real got, real wanted, real scale) {
    const real room = fmaxl(b->ulps * element_ulp(b->arithmetic, scale), b->least);
    seen[b->p][b->type] += b->counts;
    if (isnan(got) || isnan(wanted) || isinf(wanted))
        return (isnan(got) && isnan(wanted)) || got == wanted;
    if (element_digits(b->type) < element_digits(b->arithmetic))
        return rounded_once(b, got, wanted, room);
    /* What is left of terms that nearly cancel may round to an infinity and yet be no further from
     * a number than the bound of its terms. */
    if (isinf(got))
        return got == element_round(b->type, wanted);
    const real error = fabsl(got - wanted) / element_ulp(b->arithmetic, scale);
    if (error > largest[b->p][b->type])
        largest[b->p][b->type] = error;
    return fabsl(got - wanted) <= room;
}

static void complain(part p, int64_t index, real got, real wanted, real scale) {
    expect(false, "%s[%lld] is %.9Lg, exact %.9Lg, magnitude %.3Lg", part_name(p), (long long)index,
           got, wanted, scale);
}

/* Whether a row's xhat are all 1 or -1, so that y = bias +- weight: a sum of two 16-bit numbers,
 * which often lies exactly between two others. Which one it becomes says nothing. */
static bool full_of_ties(const norm_case *c, int64_t cols) {
    if (cols == (c->op.kind != PLANISH_LAYER ? 1 : 2))
        return true;
    return c->op.kind != PLANISH_LAYER &&
           (c->numbers == CONSTANT || c->numbers == MEAN_100 || c->numbers == MEAN_1E4);
}

/* Those that are checked in other ways: here, and by quantised.c. */
static const uint64_t apart = HAS(SUM) | HAS(MASK) | HAS(Q) | HAS(Y_SCALES) | HAS(AMAX);

/* The values of an output; of a mask its bytes. */
static real *bundle_values(bundle *b, part p) {
    const DLTensor *t = bundle_tensor(b, p);
    const int64_t count = element_count(t);
    real *values = malloc(((size_t)count + 1) * sizeof *values);
    if (t->dtype.bits > 8) {
        tensor_read(t, values);
        return values;
    }
    cursor c = cursor_begin(t);
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        values[i] = *c.at;
    return values;
}

/* Every value of an output; `scale` NULL: of its own magnitude. */
static void check_values(bundle *b, const bound *o, const real *wanted, const real *scale) {
    real *got = bundle_values(b, o->p);
    for (int64_t i = 0, count = element_count(bundle_tensor(b, o->p)); i < count; i++) {
        const real s = scale ? scale[i] : fabsl(wanted[i]);
        if (!within(o, got[i], wanted[i], s)) {
            complain(o->p, i, got[i], wanted[i], s);
            break;
        }
    }
    free(got);
}

/* 4 ULP, growing no faster than the square root of the numbers added. A plain f64 sum of numbers
 * that are all alike errs by up to half an ULP for each. */
static real sum_ulps(element type, int64_t added) {
    return type == F64 ? fmaxl(ULPS, (real)added / 2) : ULPS * sqrtl(fmaxl(1, (real)added / 8));
}

static bound bound_of(bundle *b, part p, const reference *exact) {
    const geometry *g = &exact->geometry;
    bound o = {.p = p, .type = element_of(bundle_tensor(b, p)->dtype), .ulps = ULPS};
    o.arithmetic = exact->is_double ? F64 : F32;
    /* Of a norm alone these are promised to be as good as their dtype, and no better. */
    if (!exact->has_stages && (p == DX || p == DWEIGHT || p == DBIAS))
        o.arithmetic = o.type;
    o.counts = p != Y || element_bytes(o.type) != 2 || !full_of_ties(&b->test, g->cols);
    const int64_t count = bundle_count(b, p), added = g->elements / (count ? count : 1);
    const bool plain = exact->is_double && plain_f64_sums;
    switch (p) {
    case DWEIGHT:
    case DSCALE:
    case DCOLUMN_SCALE:
        /* A product below the least normal number is rounded to a step of the subnormal ones, and
         * so is what it is made of, by half of that each. */
        o.least = (real)added * element_ulp(o.arithmetic, 0);
        o.ulps = sum_ulps(o.arithmetic, added);
        break;
    case DBIAS:
    case DSHIFT:
        o.ulps = sum_ulps(o.arithmetic, added);
        break;
    case RSTD:
    case C1:
        o.ulps = plain ? sum_ulps(F64, g->cols) : ULPS;
        break;
    case M2: /* rstd is half as sensitive */
    case C2: /* as m2, of products */
        o.ulps = 2 * (plain ? sum_ulps(F64, g->cols) : ULPS);
        break;
    default:
        break;
    }
    return o;
}

static void check_same(bundle *b, part p, const real *wanted) {
    real *got = bundle_values(b, p);
    int64_t wrong = 0, count = element_count(bundle_tensor(b, p));
    for (int64_t i = 0; i < count; i++)
        wrong += got[i] != wanted[i];
    expect(!wrong, "%s: %lld of %lld are others", part_name(p), (long long)wrong, (long long)count);
    free(got);
}

/* The sum and the mask, and what else is to be as it is whatever was rounded. */
static void check_before(bundle *b, reference *exact) {
    if (bundle_has(b, MASK))
        check_same(b, MASK, exact->value[MASK]);
    if (!bundle_has(b, SUM) || bundle_tensor(b, SUM) == bundle_tensor(b, Y))
        return;
    if (exact->exact_sum) {
        check_same(b, SUM, exact->value[SUM]);
        return;
    }
    const bound o = bound_of(b, SUM, exact);
    check_values(b, &o, exact->value[SUM], NULL);
    reference_of_sum(exact, &b->test.op, &b->tensors);
}

reference bundle_reference(const bundle *b) {
    return reference_run(&b->test.op, b->test.pass, &b->tensors);
}

void bundle_check_against(bundle *b, reference *exact) {
    if (b->test.pass == PLANISH_FORWARD)
        check_before(b, exact);
    for (part p = 0; p < PARTS; p++) {
        if (!bundle_has_output(b, p) || (apart & HAS(p)))
            continue;
        const bound o = bound_of(b, p, exact);
        check_values(b, &o, exact->value[p], exact->scale[p]);
    }
    for (part p = 0; p < PARTS; p++)
        if (b->tensor[p].memory.mapping && b->tensor[p].dl.dtype.bits > 8)
            expect(tensor_intact(&b->tensor[p]), "%s: written outside its elements", part_name(p));
}

void bundle_check(bundle *b) {
    reference exact = bundle_reference(b);
    bundle_check_against(b, &exact);
    reference_free(&exact);
}

void report_accuracy(void) {
    for (part p = 0; p < PARTS; p++)
        for (element t = 0; t < ELEMENT_COUNT; t++) {
            if (!seen[p][t])
                continue;
            const bool rounding = p == Y && element_bytes(t) == 2;
            printf("  %-7s %-4s %12lld values, largest error %.3Lf %s", part_name(p),
                   element_name(t), (long long)seen[p][t], largest[p][t],
                   rounding ? "steps" : "ULP");
            if (rounding)
                printf(", %lld not the exact result rounded", (long long)neighbours[p][t]);
            printf("\n");
            if (rounding) {
                test_case("%s %s is the exact result rounded in 999 of 1000 elements", part_name(p),
                          element_name(t));
                expect(neighbours[p][t] * 1000 <= seen[p][t], "%lld of %lld differ",
                       (long long)neighbours[p][t], (long long)seen[p][t]);
            }
        }
}
