/*
 * Forward of norms with stages around them: each stage by itself and many together against the
 * formulas, in all dtypes, layouts, axes and aliases; the mask against Philox; quantised results
 * against a search through their type's numbers; and what must not change a bit: threads, layouts,
 * tiers.
 *
 *     test_staged_forward [--share=K]    all, or of the values every Kth case and no tiers
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "same_on_tiers.h"
#include "stage_sets.h"

/* ---- Stages, alone and together -------------------------------------------------------------- */

#define WEIGHTS (HAS(WEIGHT) | HAS(BIAS))
#define ADDED (HAS(RESIDUAL) | HAS(SUM))
#define MODULATED (HAS(SCALE) | HAS(SHIFT))
#define DROPPED (HAS(RNG) | HAS(MASK))

static const stage_set sets[] = {
    {"residual", HAS(RESIDUAL), 0, 0, 0},
    {"residual, sum", ADDED | WEIGHTS, 0, 0, 0},
    {"sum alone", HAS(SUM) | HAS(WEIGHT), 0, 0, 0},
    {"row scale", HAS(ROW_SCALE), 0, 0, 0},
    {"column scale", HAS(COLUMN_SCALE) | HAS(SUM), 0, 0, 0},
    {"dropout", DROPPED | HAS(SUM), 0, .25, 0},
    {"mask of nothing", HAS(MASK) | WEIGHTS, 0, 0, 0},
    {"scale", HAS(SCALE), 0, 0, 0},
    {"shift", HAS(SHIFT) | WEIGHTS, 0, 0, 0},
    {"scale, shift", MODULATED, 0, 0, 0},
    {"gate", HAS(GATE) | WEIGHTS, 0, 0, 0},
    {"gate before", HAS(GATE) | HAS(SUM), 0, 0, PLANISH_GATE_BEFORE},
    {"gate before, no sum", HAS(GATE) | WEIGHTS, 0, 0, PLANISH_GATE_BEFORE},
    {"residual, silu", ADDED | WEIGHTS, PLANISH_SILU, 0, 0},
    {"modulation, gelu", MODULATED | WEIGHTS, PLANISH_GELU, 0, 0},
    {"modulation, gelu_tanh, gate", MODULATED | HAS(GATE), PLANISH_GELU_TANH, 0, 0},
    {"residual, relu, gate", ADDED | HAS(GATE), PLANISH_RELU, 0, 0},
    {"dropout, residual", ADDED | DROPPED | WEIGHTS, 0, .5, 0},
    {"scales, residual", ADDED | HAS(ROW_SCALE) | HAS(COLUMN_SCALE) | WEIGHTS, 0, 0, 0},
    {"all", ADDED | DROPPED | MODULATED | WEIGHTS | HAS(ROW_SCALE) | HAS(COLUMN_SCALE) | HAS(GATE),
     PLANISH_SILU, .125, 0},
    {"all, gate before",
     HAS(SUM) | DROPPED | MODULATED | WEIGHTS | HAS(ROW_SCALE) | HAS(COLUMN_SCALE) | HAS(GATE),
     PLANISH_SILU, .75, PLANISH_GATE_BEFORE},
    {"modulation, relu6", MODULATED | WEIGHTS, PLANISH_RELU6, 0, 0},
    {"residual, hardswish", ADDED | WEIGHTS, PLANISH_HARDSWISH, 0, 0},
};

/* And every other time the mean. */
static void put_set(norm_case *c, const stage_set *a) {
    put_stages(c, a);
    if (c->op.kind == PLANISH_LAYER && c->seed % 2)
        c->has |= HAS(MEAN);
}

#define A PLANISH_AXIS
static const stage_axes shapes[] = {
    {"rows", 2, {37, 100}, A(1), A(1), 0, A(1)},
    {"long rows", 2, {3, 2500}, A(1), A(1), A(1), A(1)},
    {"short rows", 2, {70, 6}, A(1), A(1), A(1), A(0) | A(1)},
    {"samples", 3, {3, 5, 48}, A(2), A(2), A(2), A(0) | A(2)},
    {"modulated all over", 3, {2, 7, 33}, A(2), A(2), 0, A(0) | A(1) | A(2)},
    {"heads", 4, {2, 5, 3, 16}, A(3), A(2) | A(3), A(3), A(2)},
    {"channels", 4, {2, 12, 5, 3}, A(1), A(1), A(1), A(0) | A(1)},
    {"groups",
     5,
     {2, 3, 4, 5, 3},
     A(2) | A(3) | A(4),
     A(1) | A(2),
     A(1) | A(2),
     A(0) | A(1) | A(2)},
    {"first axis", 3, {20, 4, 3}, A(0), A(0), A(0) | A(2), A(2)},
    {"two apart", 3, {9, 4, 8}, A(0) | A(2), A(0), A(2), A(0)},
    {"one column", 2, {9, 1}, A(1), A(1), A(1), A(1)},
};

/* x, residual, sum, y and parameters. */
static const element types[][5] = {
    {F32, F32, F32, F32, F32},   {BF16, BF16, BF16, BF16, BF16}, {F16, F16, F16, F16, F32},
    {F64, F64, F64, F64, F64},   {BF16, F32, F32, BF16, F32},    {F16, F32, F16, BF16, F16},
    {F32, BF16, F16, F64, BF16}, {BF16, F32, BF16, F32, F32},    {F16, F16, F32, F16, F64},
};

static uint64_t share = 1;
static bool are_l2; /* the norms */

static void stages_and_shapes(void) {
    uint64_t turn = 0;
    for (size_t a = 0; a < sizeof sets / sizeof *sets; a++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++, turn++) {
                if ((turn + turn / 9) % share)
                    continue;
                const planish_kind kind = are_l2 ? PLANISH_L2 : (planish_kind)(turn % 2);
                norm_case c = case_over(PLANISH_FORWARD, kind, &shapes[s], turn + 1);
                put_set(&c, &sets[a]);
                c.x = types[t][0], c.residual = types[t][1], c.sum = types[t][2];
                c.y = types[t][3], c.weight = c.stages = types[t][4];
                c.stats = c.x == F64 ? F64 : F32;
                put_layouts(&c, turn);
                test_case("%s: %s, %s x, %s residual, %s sum, %s y, %s parameters, %s, %s, %llu",
                          sets[a].name, shapes[s].name, element_name(c.x), element_name(c.residual),
                          element_name(c.sum), element_name(c.y), element_name(c.weight),
                          layout_name(c.in), layout_name(c.out), (unsigned long long)turn);
                const planish_exec way = exec_by_turns(turn);
                run_and_check(&c, &way);
            }
}

/* sum over x or residual, y over x. */
static void aliases(void) {
    for (int way = 0; way < 40; way++)
        for (element t = F32; t < ELEMENT_COUNT; t++) {
            norm_case c = case_over(PLANISH_FORWARD, (planish_kind)(way % 2),
                                    &shapes[way / 8 % 5 == 4 ? 6 : way / 8], 7);
            c.has |= ADDED | WEIGHTS | (way & 4 ? DROPPED | HAS(SCALE) : 0);
            c.op.dropout_p = way & 4 ? .5 : 0;
            case_set_types(&c, t);
            c.weight = t == F16 ? F32 : t;
            c.in = c.out = way & 1 ? PADDED : DENSE;
            c.over[0] = (over){SUM, way & 2 || way % 3 ? RESIDUAL : X};
            if (way & 2)
                c.over[1] = (over){Y, X};
            test_case("aliases, way %d, %s", way, element_name(t));
            run_and_check(&c, NULL);
        }
}

/* ---- What changes no bit --------------------------------------------------------------------- */

/* The bits of a run with these layouts, on so many threads. */
static uint64_t digest_of(norm_case c, layout in, layout out, int threads) {
    bundle r;
    char message[512] = "";
    const planish_exec many = exec_threads(&threads);
    c.in = in, c.out = out;
    bundle_make(&r, &c);
    expect(!bundle_run(&r, threads ? &many : NULL, message, sizeof message), "%s", message);
    const uint64_t digest = bundle_digest(&r);
    bundle_free(&r);
    return digest;
}

static uint64_t layouts_and_threads(void) {
    uint64_t all = 0;
    for (size_t a = 0; a < sizeof sets / sizeof *sets; a++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (element t = F32; t < ELEMENT_COUNT; t += 2 + (element)(s % 2)) {
                norm_case c =
                    case_over(PLANISH_FORWARD, (planish_kind)((a + s) % 2), &shapes[s], a + s + 1);
                /* A residual alone is done by the kernels of the norm alone. */
                c.shape[0] *= s < 2 ? 9 : 1;
                put_set(&c, &sets[a]);
                case_set_types(&c, t);
                test_case("bits of %s, %s, %s", sets[a].name, shapes[s].name, element_name(t));
                const uint64_t dense = digest_of(c, DENSE, DENSE, 0);
                expect(digest_of(c, DENSE, DENSE, 5) == dense, "others on 5 threads");
                expect(digest_of(c, PERMUTED, DENSE, 2) == dense, "others of permuted inputs");
                expect(digest_of(c, PADDED, REVERSED, 0) == dense, "others in reversed outputs");
                all = (all ^ dense) * 0x100000001b3u;
            }
    return all;
}

int main(int argc, char **argv) {
    if (flag(argc, argv, "digest")) {
        test_case("digest");
        printf("%llx\n", (unsigned long long)layouts_and_threads());
        return 0;
    }
    const char *const part = argument(argc, argv, "share", NULL);
    share = (uint64_t)atoi(part ? part : "1");
    stages_and_shapes();
    aliases();
    if (!part)
        same_on_tiers(argv[0], layouts_and_threads());
    are_l2 = true;
    share *= 3;
    stages_and_shapes();
    return test_finish("staged_forward");
}
