/*
 * Backward of norms with stages around them: each stage by itself and many together against the
 * formulas in long double, in all dtypes, layouts, axes and aliases; these gradients against
 * differences of the forward's formulas; what must not change a bit (threads, layouts, tiers, where
 * outputs lie).
 *
 *     test_staged_backward [--full] [--share=K]    some of each kind, or all, or every Kth and no
 * tiers
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "same_on_tiers.h"
#include "stage_sets.h"
#include "values.h"

static int share = 12; /* one case of so many; 1: all */
static int share_of_aliases = 1;

/* ---- Stages, alone and together -------------------------------------------------------------- */

#define INTO_X HAS(DX)
#define WEIGHTS (HAS(WEIGHT) | HAS(DWEIGHT) | HAS(DBIAS))
#define BIASED HAS(BIAS)
#define ADDED (HAS(DSUM) | HAS(DRESIDUAL))
#define MODULATED (HAS(SCALE) | HAS(SHIFT) | HAS(DSCALE) | HAS(DSHIFT))
#define COLUMN (HAS(COLUMN_SCALE) | HAS(DCOLUMN_SCALE) | HAS(BRANCH))
#define DROPPED HAS(RNG)
#define GATED (HAS(GATE) | HAS(DGATE))

static const stage_set sets[] = {
    {"dsum", INTO_X | HAS(DSUM) | WEIGHTS, 0, 0, 0},
    {"dsum alone", INTO_X | HAS(DSUM), 0, 0, 0},
    {"dresidual", HAS(DRESIDUAL), 0, 0, 0},
    {"dsum, dresidual, no dx", ADDED | WEIGHTS, 0, 0, 0},
    {"row scale", INTO_X | HAS(ROW_SCALE), 0, 0, 0},
    {"column scale", INTO_X | HAS(COLUMN_SCALE), 0, 0, 0},
    {"dcolumn_scale", COLUMN, 0, 0, 0},
    {"dropout", INTO_X | DROPPED, 0, .25, 0},
    {"scale", INTO_X | HAS(SCALE), 0, 0, 0},
    {"dscale", INTO_X | HAS(SCALE) | HAS(DSCALE) | WEIGHTS | BIASED, 0, 0, 0},
    {"dshift", HAS(DSHIFT), 0, 0, 0},
    {"modulation", INTO_X | MODULATED | WEIGHTS | BIASED, 0, 0, 0},
    {"modulation alone", INTO_X | MODULATED, 0, 0, 0},
    {"modulation alone, silu", INTO_X | MODULATED, PLANISH_SILU, 0, 0},
    {"dscale, no dx", HAS(SCALE) | HAS(DSCALE), 0, 0, 0},
    {"gate", INTO_X | GATED, 0, 0, 0},
    {"gate, no dgate", INTO_X | HAS(GATE) | WEIGHTS, 0, 0, 0},
    {"dgate alone", GATED | HAS(WEIGHT) | BIASED, 0, 0, 0},
    {"gate before", INTO_X | GATED | WEIGHTS, 0, 0, PLANISH_GATE_BEFORE},
    {"gate before, dgate alone", GATED, 0, 0, PLANISH_GATE_BEFORE},
    {"residual, silu", INTO_X | ADDED | WEIGHTS | BIASED, PLANISH_SILU, 0, 0},
    {"modulation, gelu", INTO_X | MODULATED | WEIGHTS | BIASED, PLANISH_GELU, 0, 0},
    {"modulation, gelu_tanh, gate", INTO_X | MODULATED | GATED | WEIGHTS, PLANISH_GELU_TANH, 0, 0},
    {"relu, gate, dsum", INTO_X | HAS(DSUM) | GATED | WEIGHTS, PLANISH_RELU, 0, 0},
    {"dropout, residual", INTO_X | ADDED | DROPPED | WEIGHTS, 0, .5, 0},
    {"dropout, scales, residual", INTO_X | ADDED | DROPPED | COLUMN | HAS(ROW_SCALE) | WEIGHTS, 0,
     .125, 0},
    {"all",
     INTO_X | ADDED | DROPPED | COLUMN | HAS(ROW_SCALE) | MODULATED | GATED | WEIGHTS | BIASED,
     PLANISH_SILU, .125, 0},
    {"all, gate before",
     INTO_X | ADDED | DROPPED | COLUMN | HAS(ROW_SCALE) | MODULATED | GATED | WEIGHTS | BIASED,
     PLANISH_SILU, .75, PLANISH_GATE_BEFORE},
    {"modulation, relu6", INTO_X | MODULATED | WEIGHTS | BIASED, PLANISH_RELU6, 0, 0},
    {"residual, hardswish", INTO_X | ADDED | WEIGHTS | BIASED, PLANISH_HARDSWISH, 0, 0},
};
enum { SETS = sizeof sets / sizeof *sets };

#define A PLANISH_AXIS
static const stage_axes shapes[] = {
    {"rows", 2, {101, 100}, A(1), A(1), 0, A(1)},
    {"long rows", 2, {3, 2500}, A(1), A(1), A(1), A(1)},
    {"short rows", 2, {170, 6}, A(1), A(1), A(1), A(0) | A(1)},
    {"samples", 3, {5, 41, 48}, A(2), A(2), A(2), A(0) | A(2)},
    {"samples of few rows", 3, {40, 3, 24}, A(2), A(2), A(0), A(0) | A(2)},
    {"modulated all over", 3, {2, 37, 33}, A(2), A(2), 0, A(0) | A(1) | A(2)},
    {"modulated by place", 3, {6, 7, 20}, A(2), A(2), A(1), A(1) | A(2)},
    {"heads", 4, {2, 25, 3, 16}, A(3), A(2) | A(3), A(3), A(2)},
    {"channels", 4, {2, 12, 5, 7}, A(1), A(1), A(1), A(0) | A(1)},
    {"groups",
     5,
     {3, 3, 4, 5, 3},
     A(2) | A(3) | A(4),
     A(1) | A(2),
     A(1) | A(2),
     A(0) | A(1) | A(2)},
    {"first axis", 3, {20, 14, 3}, A(0), A(0), A(0) | A(2), A(2)},
    {"two apart", 3, {9, 34, 8}, A(0) | A(2), A(0), A(2), A(0)},
    {"one column", 2, {39, 1}, A(1), A(1), A(1), A(1)},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* x, dy, dx, what else has x's shape, parameters, statistics. */
static const element types[][6] = {
    {F32, F32, F32, F32, F32, F32},   {BF16, BF16, BF16, BF16, BF16, F32},
    {F16, F16, F16, F16, F32, F32},   {F64, F64, F64, F64, F64, F64},
    {F32, BF16, BF16, F32, F32, F64}, {F32, F16, F16, BF16, F16, F32},
    {BF16, F32, F16, F64, BF16, F32}, {BF16, F32, BF16, F16, F32, F64},
    {F16, F16, F32, F32, F64, F64},
};
enum { TYPES = sizeof types / sizeof *types };

static void put_types(norm_case *c, const element t[6]) {
    c->x = t[0], c->y = t[1], c->dx = t[2], c->stages = t[3];
    c->weight = c->grad = t[4], c->stats = t[5];
    c->residual = c->sum = t[0]; /* of the forward */
}

static bool are_l2; /* the norms */

static void stages_and_shapes(void) {
    uint64_t turn = 0;
    for (int a = 0; a < SETS; a++)
        for (int s = 0; s < SHAPES; s++)
            for (int t = 0; t < TYPES; t++, turn++) {
                if ((turn + turn / 9) % (uint64_t)share)
                    continue;
                const planish_kind kind = are_l2 ? PLANISH_L2 : (planish_kind)(turn % 2);
                norm_case c = case_over(PLANISH_BACKWARD, kind, &shapes[s], turn + 1);
                put_stages(&c, &sets[a]);
                put_types(&c, types[t]);
                put_layouts(&c, turn);
                c.x_center = turn % 7 == 3 ? 50 : 0;
                test_case("%s: %s, %s x, %s dy, %s dx, %s stages, %s parameters, %s, %s, %llu",
                          sets[a].name, shapes[s].name, element_name(c.x), element_name(c.y),
                          element_name(c.dx), element_name(c.stages), element_name(c.weight),
                          layout_name(c.in), layout_name(c.out), (unsigned long long)turn);
                const planish_exec way = exec_by_turns(turn);
                run_and_check(&c, &way);
            }
}

/* ---- The formulas against differences -------------------------------------------------------- */

/* An input of the forward, and the output that is the gradient of it. */
static const part gradients[][2] = {
    {X, DX},         {RESIDUAL, DRESIDUAL}, {WEIGHT, DWEIGHT}, {BIAS, DBIAS},
    {SCALE, DSCALE}, {SHIFT, DSHIFT},       {GATE, DGATE},     {COLUMN_SCALE, DCOLUMN_SCALE},
};

/* The forward that a backward is of, with the same numbers. */
static norm_case forward_of(const norm_case *c) {
    norm_case f = *c;
    f.pass = PLANISH_FORWARD;
    f.has &= HAS(WEIGHT) | HAS(BIAS) | HAS(COLUMN_SCALE) | HAS(ROW_SCALE) | HAS(SCALE) |
             HAS(SHIFT) | HAS(GATE) | HAS(RNG);
    f.has |= HAS(RSTD) | HAS(SUM) | (c->has & HAS(DRESIDUAL) ? HAS(RESIDUAL) : 0);
    for (size_t g = 0; g < sizeof gradients / sizeof *gradients; g++)
        if (c->has & HAS(gradients[g][1]))
            f.has |= HAS(gradients[g][0]);
    return f;
}

/* Makes x of the backward what the forward made of its own, whose bias and shift are 0 where the
 * backward has none. */
static void take_forward(bundle *b, bundle *forward) {
    for (int i = 0; i < 2; i++)
        if (bundle_has(forward, i ? SHIFT : BIAS) && !bundle_has(b, i ? SHIFT : BIAS))
            bundle_set_all(forward, i ? SHIFT : BIAS, 0);
    reference made = bundle_reference(forward);
    if (b->test.op.gate != PLANISH_GATE_BEFORE || !bundle_has(b, GATE))
        tensor_write(&b->tensor[X].dl, made.value[SUM]);
    if (bundle_has(b, BRANCH)) {
        real *x = bundle_reals(forward, X, 0);
        tensor_write(&b->tensor[BRANCH].dl, x);
        free(x);
    }
    bundle_fill_saved(b);
    reference_free(&made);
}

/* What the outputs are gradients of: the sum of y * dy + s * dsum. */
static real objective(const bundle *forward, const real *dy, const real *dsum) {
    reference made = bundle_reference(forward);
    real total = 0;
    for (int64_t e = 0; e < made.geometry.elements; e++)
        total += made.value[Y][e] * dy[e] + made.value[SUM][e] * dsum[e];
    reference_free(&made);
    return total;
}

/* The slope of the objective along one element. */
static real slope_of(bundle *forward, part p, int64_t i, const real *dy, const real *dsum) {
    const real own = bundle_get(forward, p, i), step = 0x1p-20L;
    bundle_set(forward, p, i, own + step);
    const real more = objective(forward, dy, dsum), above = bundle_get(forward, p, i);
    bundle_set(forward, p, i, own - step);
    const real less = objective(forward, dy, dsum), below = bundle_get(forward, p, i);
    bundle_set(forward, p, i, own);
    return (more - less) / (above - below);
}

static void check_differences(const norm_case *c) {
    const norm_case of = forward_of(c);
    bundle b, forward;
    bundle_make(&b, c);
    bundle_make(&forward, &of);
    take_forward(&b, &forward);
    bundle_run_well(&b);
    real *dy = bundle_reals(&b, DY, 0), *dsum = bundle_reals(&b, DSUM, 0);
    for (size_t g = 0; g < sizeof gradients / sizeof *gradients; g++) {
        const part p = gradients[g][1];
        if (!bundle_has(&b, p))
            continue;
        real *found = bundle_reals(&b, p, 0), worst = 0;
        for (int64_t i = 0, count = bundle_count(&b, p); i < count; i++) {
            const real slope = slope_of(&forward, gradients[g][0], i, dy, dsum);
            const real off = fabsl(found[i] - slope) / (1 + fabsl(slope));
            worst = off > worst || isnan(off) ? off : worst;
        }
        expect(worst < 1e-8L, "%s is off its difference by %Lg", part_name(p), worst);
        free(found);
    }
    free(dy), free(dsum);
    bundle_free(&b);
    bundle_free(&forward);
}

static void differences(void) {
    static const stage_axes small[] = {
        {"rows", 2, {4, 7}, A(1), A(1), A(1), A(1)},
        {"samples", 3, {2, 3, 4}, A(2), A(2), A(2), A(0) | A(2)},
        {"channels", 3, {2, 5, 3}, A(1), A(1), A(1), A(0) | A(1)},
        {"groups", 4, {2, 2, 2, 3}, A(2) | A(3), A(1) | A(2), A(1), A(1) | A(2)},
    };
    for (int a = 0; a < SETS; a++)
        for (size_t s = 0; s < sizeof small / sizeof *small; s++)
            for (int kind = 0; kind < 2; kind++) {
                norm_case c =
                    case_over(PLANISH_BACKWARD, (planish_kind)kind, &small[s], (uint64_t)a + 1);
                put_stages(&c, &sets[a]);
                put_types(&c, types[3]);
                /* Not both: there is no residual with a gate before. */
                if (c.op.gate == PLANISH_GATE_BEFORE)
                    c.has &= ~HAS(DRESIDUAL);
                test_case("differences of %s, %s, %s", sets[a].name, small[s].name,
                          kind ? "rms" : "layer");
                check_differences(&c);
            }
}

/* ---- What changes no bit --------------------------------------------------------------------- */

static uint64_t digest_of(const norm_case *c, int threads) {
    bundle r;
    char message[512] = "";
    const planish_exec many = exec_threads(&threads), backwards = exec_backwards();
    bundle_make(&r, c);
    expect(!bundle_run(&r,
                       threads > 0   ? &many
                       : threads < 0 ? &backwards
                                     : NULL,
                       message, sizeof message),
           "%s", message);
    const uint64_t digest = bundle_digest(&r);
    bundle_free(&r);
    return digest;
}

static uint64_t with_layouts(norm_case c, layout in, layout out, int threads) {
    c.in = in, c.out = out;
    return digest_of(&c, threads);
}

/* Whether the kernels of the norm alone do dense rows of these, and no others. */
static bool rows_go_as_alone(const stage_set *set) {
    const uint64_t dsum = INTO_X | HAS(DSUM) | WEIGHTS, modulation = INTO_X | MODULATED;
    return !(set->has & ~dsum) || !(set->has & ~modulation);
}

/* `alone`: only what the digest is made of. */
static uint64_t layouts_and_threads(bool alone) {
    uint64_t all = 0;
    for (int a = 0; a < SETS; a++)
        for (int s = 0; s < SHAPES; s++)
            for (element t = F32; t < ELEMENT_COUNT; t++) {
                norm_case c = case_over(PLANISH_BACKWARD, (planish_kind)((a + s) % 2), &shapes[s],
                                        (uint64_t)a + (uint64_t)s + 1);
                put_stages(&c, &sets[a]);
                case_set_types(&c, t);
                /* Enough to be worth a fork. */
                c.shape[0] *= s < 2 || s == 3 ? 9 : 1;
                test_case("bits of %s, %s, %s", sets[a].name, shapes[s].name, element_name(t));
                const uint64_t one = with_layouts(c, DENSE, DENSE, 1);
                all = (all ^ one) * 0x100000001b3u;
                if (alone || (a + s + (int)t) % share)
                    continue;
                expect(with_layouts(c, DENSE, DENSE, 2) == one, "others on 2 threads");
                expect(with_layouts(c, DENSE, DENSE, 7) == one, "others on 7 threads");
                expect(with_layouts(c, DENSE, DENSE, -1) == one, "others in turn from the end");
                if (rows_go_as_alone(&sets[a]))
                    continue;
                expect(with_layouts(c, PERMUTED, DENSE, 2) == one, "others of permuted inputs");
                expect(with_layouts(c, PADDED, REVERSED, 0) == one, "others in reversed outputs");
            }
    return all;
}

/* Outputs in the place of inputs have the bits they have elsewhere. */
static void aliases(void) {
    static const over places[][2] = {
        {{DX, DY}, {0}},          {{DX, X}, {0}},
        {{DX, DSUM}, {0}},        {{DX, BRANCH}, {0}},
        {{DRESIDUAL, DSUM}, {0}}, {{DRESIDUAL, X}, {0}},
        {{DRESIDUAL, DY}, {0}},   {{DGATE, GATE}, {0}},
        {{DGATE, DY}, {0}},       {{DX, DY}, {DRESIDUAL, DSUM}},
        {{DX, X}, {DGATE, DY}},   {{DX, BRANCH}, {DRESIDUAL, X}},
    };
    for (size_t w = 0; w < sizeof places / sizeof *places; w++)
        for (int a = 0; a < SETS; a++)
            for (int s = 0; s < SHAPES; s += 4)
                for (element t = F32; t < ELEMENT_COUNT; t++) {
                    if (((int)w + a + s + (int)t) % share_of_aliases)
                        continue;
                    norm_case c =
                        case_over(PLANISH_BACKWARD, (planish_kind)(w % 2), &shapes[s], w + 1);
                    put_stages(&c, &sets[a]);
                    case_set_types(&c, t);
                    uint64_t wanted = 0;
                    for (int i = 0; i < 2; i++)
                        if (places[w][i].output != places[w][i].input)
                            wanted |= HAS(places[w][i].output) | HAS(places[w][i].input);
                    wanted &= ~(HAS(X) | HAS(DY));
                    if ((c.has & wanted) != wanted)
                        continue;
                    c.in = c.out = s % 8 ? PADDED : DENSE;
                    test_case("%s, outputs over inputs %d, %s, %s", sets[a].name, (int)w,
                              shapes[s].name, element_name(t));
                    const uint64_t apart = digest_of(&c, 0);
                    memcpy(c.over, places[w], sizeof c.over);
                    expect(digest_of(&c, 0) == apart, "other bits than apart");
                }
}

int main(int argc, char **argv) {
    if (flag(argc, argv, "digest")) {
        test_case("digest");
        printf("%llx\n", (unsigned long long)layouts_and_threads(true));
        return 0;
    }
    const char *const part = argument(argc, argv, "share", NULL);
    if (part)
        share = share_of_aliases = atoi(part);
    share = flag(argc, argv, "full") ? 1 : share;
    stages_and_shapes();
    differences();
    aliases();
    if (!part)
        same_on_tiers(argv[0], layouts_and_threads(false));
    are_l2 = true;
    share *= 3;
    stages_and_shapes();
    return test_finish("staged_backward");
}
