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

#include "backward_case.h"
#include "cases.h"
#include "check.h"
#include "same_on_tiers.h"
#include "staged_check.h"

static int share = 12; /* one case of so many; 1: all */
static int share_of_aliases = 1;

/* ---- One run against the formulas ------------------------------------------------------------ */

static void run_and_check(const backward_case *c, const planish_exec *exec) {
    backward_run r;
    char message[512] = "";
    backward_make(&r, c);
    backward_reference f = backward_reference_of(&r);
    const planish_status status = backward_do(&r, exec, message, sizeof message);
    if (expect(status == PLANISH_OK, "%s", message))
        backward_check(&r, &f);
    backward_reference_free(&f);
    backward_free(&r);
}

/* ---- Stages, alone and together -------------------------------------------------------------- */

typedef struct stage_set {
    const char *name;
    uint64_t has;
    planish_activation f;
    double p;
    planish_gate gate;
} stage_set;

#define DX PART(S_DX)
#define WEIGHTS (PART(S_WEIGHT) | PART(S_DWEIGHT) | PART(S_DBIAS))
#define BIAS PART(S_BIAS)
#define ADDED (PART(S_DSUM) | PART(S_DRESIDUAL))
#define MODULATED (PART(S_SCALE) | PART(S_SHIFT) | PART(S_DSCALE) | PART(S_DSHIFT))
#define COLUMN (PART(S_COLUMN_SCALE) | PART(S_DCOLUMN_SCALE) | PART(S_BRANCH))
#define DROPPED PART(S_RNG)
#define GATED (PART(S_GATE) | PART(S_DGATE))

static const stage_set sets[] = {
    {"dsum", DX | PART(S_DSUM) | WEIGHTS, 0, 0, 0},
    {"dsum alone", DX | PART(S_DSUM), 0, 0, 0},
    {"dresidual", PART(S_DRESIDUAL), 0, 0, 0},
    {"dsum, dresidual, no dx", ADDED | WEIGHTS, 0, 0, 0},
    {"row scale", DX | PART(S_ROW_SCALE), 0, 0, 0},
    {"column scale", DX | PART(S_COLUMN_SCALE), 0, 0, 0},
    {"dcolumn_scale", COLUMN, 0, 0, 0},
    {"dropout", DX | DROPPED, 0, .25, 0},
    {"scale", DX | PART(S_SCALE), 0, 0, 0},
    {"dscale", DX | PART(S_SCALE) | PART(S_DSCALE) | WEIGHTS | BIAS, 0, 0, 0},
    {"dshift", PART(S_DSHIFT), 0, 0, 0},
    {"modulation", DX | MODULATED | WEIGHTS | BIAS, 0, 0, 0},
    {"modulation alone", DX | MODULATED, 0, 0, 0},
    {"modulation alone, silu", DX | MODULATED, PLANISH_SILU, 0, 0},
    {"dscale, no dx", PART(S_SCALE) | PART(S_DSCALE), 0, 0, 0},
    {"gate", DX | GATED, 0, 0, 0},
    {"gate, no dgate", DX | PART(S_GATE) | WEIGHTS, 0, 0, 0},
    {"dgate alone", GATED | PART(S_WEIGHT) | BIAS, 0, 0, 0},
    {"gate before", DX | GATED | WEIGHTS, 0, 0, PLANISH_GATE_BEFORE},
    {"gate before, dgate alone", GATED, 0, 0, PLANISH_GATE_BEFORE},
    {"residual, silu", DX | ADDED | WEIGHTS | BIAS, PLANISH_SILU, 0, 0},
    {"modulation, gelu", DX | MODULATED | WEIGHTS | BIAS, PLANISH_GELU, 0, 0},
    {"modulation, gelu_tanh, gate", DX | MODULATED | GATED | WEIGHTS, PLANISH_GELU_TANH, 0, 0},
    {"relu, gate, dsum", DX | PART(S_DSUM) | GATED | WEIGHTS, PLANISH_RELU, 0, 0},
    {"dropout, residual", DX | ADDED | DROPPED | WEIGHTS, 0, .5, 0},
    {"dropout, scales, residual", DX | ADDED | DROPPED | COLUMN | PART(S_ROW_SCALE) | WEIGHTS, 0,
     .125, 0},
    {"all", DX | ADDED | DROPPED | COLUMN | PART(S_ROW_SCALE) | MODULATED | GATED | WEIGHTS | BIAS,
     PLANISH_SILU, .125, 0},
    {"all, gate before",
     DX | ADDED | DROPPED | COLUMN | PART(S_ROW_SCALE) | MODULATED | GATED | WEIGHTS | BIAS,
     PLANISH_SILU, .75, PLANISH_GATE_BEFORE},
    {"modulation, relu6", DX | MODULATED | WEIGHTS | BIAS, PLANISH_RELU6, 0, 0},
    {"residual, hardswish", DX | ADDED | WEIGHTS | BIAS, PLANISH_HARDSWISH, 0, 0},
};
enum { SETS = sizeof sets / sizeof *sets };

static void put_stages(backward_case *c, const stage_set *a) {
    c->has |= a->has;
    c->op.activation = a->f;
    c->op.dropout_p = a->p;
    c->op.gate = a->gate;
    c->draw[0] = 0x123456789abcdef0u + c->seed;
    c->draw[1] = 4 * c->seed;
}

typedef struct axes {
    const char *name;
    int ndim;
    int64_t shape[5];
    uint64_t reduce, affine, column, modulation;
} axes;

#define A PLANISH_AXIS
static const axes shapes[] = {
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

static backward_case case_of(planish_kind kind, const axes *s, uint64_t seed) {
    backward_case c = backward_rows(kind, 1, 1);
    c.ndim = s->ndim;
    memcpy(c.shape, s->shape, sizeof c.shape);
    c.op.reduce_axes = s->reduce;
    c.op.affine_axes = s->affine;
    c.op.column_axes = s->column;
    c.op.modulation_axes = s->modulation;
    c.op.weight_offset = seed % 3 == 0;
    c.full_rank = seed % 5 == 0;
    c.seed = seed;
    return c;
}

/* x, dy, dx, what else has x's shape, parameters, statistics. */
static const element types[][6] = {
    {F32, F32, F32, F32, F32, F32},   {BF16, BF16, BF16, BF16, BF16, F32},
    {F16, F16, F16, F16, F32, F32},   {F64, F64, F64, F64, F64, F64},
    {F32, BF16, BF16, F32, F32, F64}, {F32, F16, F16, BF16, F16, F32},
    {BF16, F32, F16, F64, BF16, F32}, {BF16, F32, BF16, F16, F32, F64},
    {F16, F16, F32, F32, F64, F64},
};
enum { TYPES = sizeof types / sizeof *types };

static void put_types(backward_case *c, const element t[6]) {
    c->x = t[0], c->dy = t[1], c->dx = t[2], c->stages = t[3], c->params = t[4], c->stats = t[5];
}

static bool are_l2; /* the norms */

static void stages_and_shapes(void) {
    static const layout layouts[][2] = {{DENSE, DENSE},
                                        {PADDED, PERMUTED},
                                        {PERMUTED, REVERSED},
                                        {INNER_STRIDE_2, PADDED},
                                        {BROADCAST_FIRST, DENSE}};
    uint64_t turn = 0;
    int threads = 3;
    const planish_exec ways[] = {
        {.struct_size = sizeof(planish_exec)}, exec_backwards(), exec_threads(&threads)};
    for (int a = 0; a < SETS; a++)
        for (int s = 0; s < SHAPES; s++)
            for (int t = 0; t < TYPES; t++, turn++) {
                if ((turn + turn / 9) % (uint64_t)share)
                    continue;
                const planish_kind kind = are_l2 ? PLANISH_L2 : (planish_kind)(turn % 2);
                backward_case c = case_of(kind, &shapes[s], turn + 1);
                put_stages(&c, &sets[a]);
                put_types(&c, types[t]);
                if (are_l2 && turn % 3)
                    c.op.eps = 2; /* as long as some rows are */
                c.in = layouts[turn / 2 % 5][0], c.out = layouts[turn / 2 % 5][1];
                c.far_mean = turn % 7 == 3;
                test_case("%s: %s, %s x, %s dy, %s dx, %s stages, %s parameters, %s, %s, %llu",
                          sets[a].name, shapes[s].name, element_name(c.x), element_name(c.dy),
                          element_name(c.dx), element_name(c.stages), element_name(c.params),
                          layout_name(c.in), layout_name(c.out), (unsigned long long)turn);
                run_and_check(&c, &ways[turn % 3]);
            }
}

/* ---- The formulas against differences -------------------------------------------------------- */

/* An input, and the output that is the gradient of it. */
static const stage_part gradients[][2] = {
    {S_BRANCH, S_DX},      {S_RESIDUAL, S_DRESIDUAL},
    {S_WEIGHT, S_DWEIGHT}, {S_BIAS, S_DBIAS},
    {S_SCALE, S_DSCALE},   {S_SHIFT, S_DSHIFT},
    {S_GATE, S_DGATE},     {S_COLUMN_SCALE, S_DCOLUMN_SCALE},
};

static void check_differences(const backward_case *c) {
    backward_run r;
    char message[512] = "";
    backward_make(&r, c);
    backward_numbers n = backward_numbers_of(&r);
    if (expect(!backward_do(&r, NULL, message, sizeof message), "%s", message))
        for (size_t g = 0; g < sizeof gradients / sizeof *gradients; g++) {
            const stage_part p = gradients[g][1];
            const int64_t count = backward_count(c, p);
            if (!(r.c.has & PART(p)))
                continue;
            real *found = backward_reals(&r, p, 0), worst = 0;
            for (int64_t i = 0; i < count; i++) {
                real *const at = &n.of[gradients[g][0]][i], own = *at, step = 1e-6L;
                *at = own + step;
                const real more = backward_objective(c, &n);
                *at = own - step;
                const real slope = (more - backward_objective(c, &n)) / (2 * step);
                *at = own;
                const real off = fabsl(found[i] - slope) / (1 + fabsl(slope));
                worst = off > worst || isnan(off) ? off : worst;
            }
            expect(worst < 1e-8L, "%s is off its difference by %Lg", planish_tensor_name((int)p),
                   worst);
            free(found);
        }
    backward_numbers_free(&n);
    backward_free(&r);
}

static void differences(void) {
    static const axes small[] = {
        {"rows", 2, {4, 7}, A(1), A(1), A(1), A(1)},
        {"samples", 3, {2, 3, 4}, A(2), A(2), A(2), A(0) | A(2)},
        {"channels", 3, {2, 5, 3}, A(1), A(1), A(1), A(0) | A(1)},
        {"groups", 4, {2, 2, 2, 3}, A(2) | A(3), A(1) | A(2), A(1), A(1) | A(2)},
    };
    for (int a = 0; a < SETS; a++)
        for (size_t s = 0; s < sizeof small / sizeof *small; s++)
            for (int kind = 0; kind < 2; kind++) {
                backward_case c = case_of((planish_kind)kind, &small[s], (uint64_t)a + 1);
                put_stages(&c, &sets[a]);
                put_types(&c, types[3]);
                /* Not both: there is no residual with a gate before. */
                if (c.op.gate == PLANISH_GATE_BEFORE)
                    c.has &= ~PART(S_DRESIDUAL);
                c.of_forward = true;
                test_case("differences of %s, %s, %s", sets[a].name, small[s].name,
                          kind ? "rms" : "layer");
                check_differences(&c);
            }
}

/* ---- What changes no bit --------------------------------------------------------------------- */

static uint64_t digest_of(const backward_case *c, int threads) {
    backward_run r;
    char message[512] = "";
    const planish_exec many = exec_threads(&threads), backwards = exec_backwards();
    backward_make(&r, c);
    expect(!backward_do(&r,
                        threads > 0   ? &many
                        : threads < 0 ? &backwards
                                      : NULL,
                        message, sizeof message),
           "%s", message);
    const uint64_t digest = backward_digest(&r);
    backward_free(&r);
    return digest;
}

static uint64_t with_layouts(backward_case c, layout in, layout out, int threads) {
    c.in = in, c.out = out;
    return digest_of(&c, threads);
}

/* Whether the kernels of the norm alone do dense rows of these, and no others. */
static bool rows_go_as_alone(const stage_set *set) {
    const uint64_t dsum = DX | PART(S_DSUM) | WEIGHTS, modulation = DX | MODULATED;
    return !(set->has & ~dsum) || !(set->has & ~modulation);
}

/* `alone`: only what the digest is made of. */
static uint64_t layouts_and_threads(bool alone) {
    uint64_t all = 0;
    for (int a = 0; a < SETS; a++)
        for (int s = 0; s < SHAPES; s++)
            for (element t = F32; t < ELEMENT_COUNT; t++) {
                backward_case c =
                    case_of((planish_kind)((a + s) % 2), &shapes[s], (uint64_t)a + (uint64_t)s + 1);
                const element alike[6] = {t, t, t, t, t, t == F64 ? F64 : F32};
                put_stages(&c, &sets[a]);
                put_types(&c, alike);
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
        {{S_DX, S_DY}, {0}},
        {{S_DX, S_X}, {0}},
        {{S_DX, S_DSUM}, {0}},
        {{S_DX, S_BRANCH}, {0}},
        {{S_DRESIDUAL, S_DSUM}, {0}},
        {{S_DRESIDUAL, S_X}, {0}},
        {{S_DRESIDUAL, S_DY}, {0}},
        {{S_DGATE, S_GATE}, {0}},
        {{S_DGATE, S_DY}, {0}},
        {{S_DX, S_DY}, {S_DRESIDUAL, S_DSUM}},
        {{S_DX, S_X}, {S_DGATE, S_DY}},
        {{S_DX, S_BRANCH}, {S_DRESIDUAL, S_X}},
    };
    for (size_t w = 0; w < sizeof places / sizeof *places; w++)
        for (int a = 0; a < SETS; a++)
            for (int s = 0; s < SHAPES; s += 4)
                for (element t = F32; t < ELEMENT_COUNT; t++) {
                    if (((int)w + a + s + (int)t) % share_of_aliases)
                        continue;
                    backward_case c = case_of((planish_kind)(w % 2), &shapes[s], w + 1);
                    const element alike[6] = {t, t, t, t, t, t == F64 ? F64 : F32};
                    put_stages(&c, &sets[a]);
                    put_types(&c, alike);
                    uint64_t wanted = 0;
                    for (int i = 0; i < 2; i++)
                        if (places[w][i].output != places[w][i].input)
                            wanted |= PART(places[w][i].output) | PART(places[w][i].input);
                    wanted &= ~(PART(S_X) | PART(S_DY));
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
