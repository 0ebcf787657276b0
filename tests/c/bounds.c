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

/* Whether both are NaN, or both the same infinity; `settled` says whether that decides it. */
static bool special(real got, real wanted, bool *settled) {
    *settled = isnan(got) || isnan(wanted) || isinf(got) || isinf(wanted);
    return (isnan(got) && isnan(wanted)) || got == wanted;
}

/* One value of a type against its bound: `ulps` units in the last place of `unit` at `scale`. */
static bool close_enough(part p, element type, element unit, real got, real wanted, real scale,
                         real ulps) {
    bool settled, same = special(got, element_round(type, wanted), &settled);
    seen[p][type]++;
    /* What is left of terms that nearly cancel may round to an infinity and yet be no further from
     * a number than the bound of its terms. */
    if (settled && (same || !isfinite(got) || !isfinite(wanted)))
        return same;
    real error = fabsl(got - wanted) / element_ulp(unit, scale);
    if (error > largest[p][type])
        largest[p][type] = error;
    return error <= ulps;
}

/*
 * A 16-bit value against the exact one rounded once: equal, or the value beside it. Where its terms
 * cancel so far that f32 arithmetic has not the digits, it is held to the bound of f32.
 */
static bool rounded_or_neighbour(part p, element type, real got, real wanted, real scale,
                                 bool counts) {
    bool settled, same = special(got, element_round(type, wanted), &settled);
    seen[p][type] += counts;
    if (isnan(got) || isnan(wanted))
        return same;
    int64_t steps = element_steps(type, got, element_round(type, wanted));
    neighbours[p][type] += counts && steps != 0;
    if (steps > 1 && fabsl(got - wanted) <= ULPS * element_ulp(F32, scale))
        return true;
    if (steps > largest[p][type])
        largest[p][type] = steps;
    return steps <= 1;
}

static void complain(part p, int64_t index, real got, real wanted, real scale) {
    expect(false, "%s[%lld] is %.9Lg, exact %.9Lg, magnitude %.3Lg", part_name(p), (long long)index,
           got, wanted, scale);
}

/* Whether a row's xhat are all 1 or -1, so that y = bias +- weight: a sum of two 16-bit numbers,
 * which often lies exactly between two others. Which one it becomes says nothing. */
static bool full_of_ties(const norm_case *c, int64_t cols) {
    if (cols == (c->kind != PLANISH_LAYER ? 1 : 2))
        return true;
    return c->kind != PLANISH_LAYER &&
           (c->numbers == CONSTANT || c->numbers == MEAN_100 || c->numbers == MEAN_1E4);
}

/* Outputs shaped as x: `scale` is per row. */
static void check_elements(const bundle *b, part p, const reference *exact, const real *wanted,
                           const real *scale) {
    const tensor *t = &b->tensor[p];
    real *got = malloc(((size_t)t->count + 1) * sizeof *got);
    const bool counts = !full_of_ties(&b->test, exact->geometry.cols);
    tensor_read(&t->dl, got);
    for (int64_t e = 0; e < t->count; e++) {
        real s = scale[exact->geometry.row[e]];
        bool holds = p == Y && element_bytes(t->type) == 2
                         ? rounded_or_neighbour(p, t->type, got[e], wanted[e], s, counts)
                         : close_enough(p, t->type, t->type, got[e], wanted[e], s, ULPS);
        if (!holds) {
            complain(p, e, got[e], wanted[e], s);
            break;
        }
    }
    free(got);
}

/* Outputs with one value per row or channel, each with its own scale (NULL: itself), in ULP of
 * `unit`. Each is a sum of so many `products`: one that is below the least normal number is rounded
 * to a step of the subnormal ones, and so is what it is made of, by half of that each. */
static void check_values(const bundle *b, part p, element unit, const real *wanted,
                         const real *scale, real ulps, int64_t products) {
    const tensor *t = &b->tensor[p];
    real *got = malloc(((size_t)t->count + 1) * sizeof *got);
    tensor_read(&t->dl, got);
    for (int64_t i = 0; i < t->count; i++) {
        real s = scale ? scale[i] : fabsl(wanted[i]);
        const real steps = (real)products * element_ulp(unit, 0) / element_ulp(unit, s);
        if (!close_enough(p, t->type, unit, got[i], wanted[i], s, fmaxl(ulps, steps))) {
            complain(p, i, got[i], wanted[i], s);
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

void bundle_check(bundle *b) {
    reference exact = reference_run(&b->op, b->test.pass, &b->tensors);
    for (part p = 0; p < PARTS; p++) {
        if (!*tensors_field(&b->tensors, p) || !part_is_output(b->test.pass, p))
            continue;
        element type = b->tensor[p].type;
        /* Statistics are as good as the arithmetic, however wide they are kept. */
        const geometry *g = &exact.geometry;
        int64_t per_channel = g->elements / (g->channels ? g->channels : 1);
        element unit = type == F64 && !exact.is_double ? F32 : type;
        const real ulps = unit == F64 && plain_f64_sums ? sum_ulps(F64, g->cols) : ULPS;
        switch (p) {
        case Y:
            check_elements(b, p, &exact, exact.y, exact.y_scale);
            break;
        case DX:
            check_elements(b, p, &exact, exact.dx, exact.dx_scale);
            break;
        case DWEIGHT:
            check_values(b, p, type, exact.dweight, exact.dweight_scale,
                         sum_ulps(type, per_channel), per_channel);
            break;
        case DBIAS:
            check_values(b, p, type, exact.dbias, exact.dbias_scale, sum_ulps(type, per_channel),
                         0);
            break;
        case MEAN:
            check_values(b, p, unit, exact.mean, exact.mean_scale, ULPS, 0);
            break;
        case RSTD:
            check_values(b, p, unit, exact.rstd, NULL, ulps, 0);
            break;
        case C1:
            check_values(b, p, unit, exact.c1, exact.c1_scale, ulps, 0);
            break;
        case C2:
            check_values(b, p, unit, exact.c2, exact.c2_scale, 2 * ulps,
                         0); /* as m2, of products */
            break;
        default: /* rstd is half as sensitive */
            check_values(b, p, unit, exact.m2, NULL, 2 * ulps, 0);
        }
        expect(tensor_intact(&b->tensor[p]), "%s: written outside its elements", part_name(p));
    }
    reference_free(&exact);
}

void report_accuracy(void) {
    for (part p = 0; p < PARTS; p++)
        for (element t = 0; t < ELEMENT_COUNT; t++) {
            if (!seen[p][t])
                continue;
            bool rounding = p == Y && element_bytes(t) == 2;
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
