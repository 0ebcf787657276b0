/*
 * Forward of norms with stages around them: each stage by itself and many together against the
 * formulas, in all dtypes, layouts, axes and aliases; the mask against Philox; quantised results
 * against a search through their type's numbers; and what must not change a bit: threads, layouts,
 * tiers.
 *
 *     test_staged_forward [--share=K]    all, or of the values every Kth case and no tiers
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "same_on_tiers.h"
#include "staged_check.h"

/* ---- One run against the formulas ----------------------------------------------------------- */

static void run_and_check(const staged_case *c, const planish_exec *exec) {
    staged_run r;
    char message[512] = "";
    staged_make(&r, c);
    staged_reference f = staged_reference_of(&r);
    const planish_status status = staged_forward(&r, exec, message, sizeof message);
    if (expect(status == PLANISH_OK, "%s", message))
        staged_check(&r, &f);
    staged_reference_free(&f);
    staged_free(&r);
}

/* ---- Stages, alone and together -------------------------------------------------------------- */

/* What stands around the norm, without dtypes and shapes. */
typedef struct stage_set {
    const char *name;
    uint64_t has;
    planish_activation f;
    double p;
    planish_gate gate;
} stage_set;

#define WEIGHTS (PART(S_WEIGHT) | PART(S_BIAS))
#define ADDED (PART(S_RESIDUAL) | PART(S_SUM))
#define MODULATED (PART(S_SCALE) | PART(S_SHIFT))
#define DROPPED (PART(S_RNG) | PART(S_MASK))

static const stage_set sets[] = {
    {"residual", PART(S_RESIDUAL), 0, 0, 0},
    {"residual, sum", ADDED | WEIGHTS, 0, 0, 0},
    {"sum alone", PART(S_SUM) | PART(S_WEIGHT), 0, 0, 0},
    {"row scale", PART(S_ROW_SCALE), 0, 0, 0},
    {"column scale", PART(S_COLUMN_SCALE) | PART(S_SUM), 0, 0, 0},
    {"dropout", DROPPED | PART(S_SUM), 0, .25, 0},
    {"mask of nothing", PART(S_MASK) | WEIGHTS, 0, 0, 0},
    {"scale", PART(S_SCALE), 0, 0, 0},
    {"shift", PART(S_SHIFT) | WEIGHTS, 0, 0, 0},
    {"scale, shift", MODULATED, 0, 0, 0},
    {"gate", PART(S_GATE) | WEIGHTS, 0, 0, 0},
    {"gate before", PART(S_GATE) | PART(S_SUM), 0, 0, PLANISH_GATE_BEFORE},
    {"gate before, no sum", PART(S_GATE) | WEIGHTS, 0, 0, PLANISH_GATE_BEFORE},
    {"residual, silu", ADDED | WEIGHTS, PLANISH_SILU, 0, 0},
    {"modulation, gelu", MODULATED | WEIGHTS, PLANISH_GELU, 0, 0},
    {"modulation, gelu_tanh, gate", MODULATED | PART(S_GATE), PLANISH_GELU_TANH, 0, 0},
    {"residual, relu, gate", ADDED | PART(S_GATE), PLANISH_RELU, 0, 0},
    {"dropout, residual", ADDED | DROPPED | WEIGHTS, 0, .5, 0},
    {"scales, residual", ADDED | PART(S_ROW_SCALE) | PART(S_COLUMN_SCALE) | WEIGHTS, 0, 0, 0},
    {"all",
     ADDED | DROPPED | MODULATED | WEIGHTS | PART(S_ROW_SCALE) | PART(S_COLUMN_SCALE) |
         PART(S_GATE),
     PLANISH_SILU, .125, 0},
    {"all, gate before",
     PART(S_SUM) | DROPPED | MODULATED | WEIGHTS | PART(S_ROW_SCALE) | PART(S_COLUMN_SCALE) |
         PART(S_GATE),
     PLANISH_SILU, .75, PLANISH_GATE_BEFORE},
    {"modulation, relu6", MODULATED | WEIGHTS, PLANISH_RELU6, 0, 0},
    {"residual, hardswish", ADDED | WEIGHTS, PLANISH_HARDSWISH, 0, 0},
};

static void put_stages(staged_case *c, const stage_set *a) {
    c->has |= a->has;
    c->op.activation = a->f;
    c->op.dropout_p = a->p;
    c->op.gate = a->gate;
    c->draw[0] = 0x123456789abcdef0u + c->seed;
    c->draw[1] = 4 * c->seed;
    if (c->op.kind == PLANISH_LAYER && c->seed % 2)
        c->has |= PART(S_MEAN);
}

/* Shapes and what is reduced, weighted and modulated. */
typedef struct axes {
    const char *name;
    int ndim;
    int64_t shape[5];
    uint64_t reduce, affine, column, modulation;
} axes;

#define A PLANISH_AXIS
static const axes shapes[] = {
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

static staged_case case_of(planish_kind kind, const axes *s, uint64_t seed) {
    staged_case c = staged_rows(kind, 1, 1);
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

/* x, residual, sum, y and parameters. */
static const element types[][5] = {
    {F32, F32, F32, F32, F32},   {BF16, BF16, BF16, BF16, BF16}, {F16, F16, F16, F16, F32},
    {F64, F64, F64, F64, F64},   {BF16, F32, F32, BF16, F32},    {F16, F32, F16, BF16, F16},
    {F32, BF16, F16, F64, BF16}, {BF16, F32, BF16, F32, F32},    {F16, F16, F32, F16, F64},
};

static uint64_t share = 1;
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
    for (size_t a = 0; a < sizeof sets / sizeof *sets; a++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++, turn++) {
                if ((turn + turn / 9) % share)
                    continue;
                const planish_kind kind = are_l2 ? PLANISH_L2 : (planish_kind)(turn % 2);
                const layout *l = layouts[turn / 2 % 5];
                staged_case c = case_of(kind, &shapes[s], turn + 1);
                put_stages(&c, &sets[a]);
                if (are_l2 && turn % 3)
                    c.op.eps = 2; /* as long as some rows are */
                c.type = types[t][0], c.residual = types[t][1], c.sum = types[t][2];
                c.y = types[t][3], c.params = types[t][4];
                c.in = l[0], c.out = l[1];
                test_case("%s: %s, %s x, %s residual, %s sum, %s y, %s parameters, %s, %s, %llu",
                          sets[a].name, shapes[s].name, element_name(c.type),
                          element_name(c.residual), element_name(c.sum), element_name(c.y),
                          element_name(c.params), layout_name(c.in), layout_name(c.out),
                          (unsigned long long)turn);
                run_and_check(&c, &ways[turn % 3]);
            }
}

/* sum over x or residual, y over x. */
static void aliases(void) {
    for (int way = 0; way < 40; way++)
        for (element t = F32; t < ELEMENT_COUNT; t++) {
            staged_case c =
                case_of((planish_kind)(way % 2), &shapes[way / 8 % 5 == 4 ? 6 : way / 8], 7);
            c.has |= ADDED | WEIGHTS | (way & 4 ? DROPPED | PART(S_SCALE) : 0);
            c.op.dropout_p = way & 4 ? .5 : 0;
            c.type = c.residual = c.sum = c.y = t;
            c.params = t == F16 ? F32 : t;
            c.in = c.out = way & 1 ? PADDED : DENSE;
            c.y_over_x = way & 2;
            c.sum_over = way & 2 || way % 3 ? S_RESIDUAL : S_X;
            test_case("aliases, way %d, %s", way, element_name(t));
            run_and_check(&c, NULL);
        }
}

/* ---- What changes no bit --------------------------------------------------------------------- */

/* The bits of a run with these layouts, on so many threads. */
static uint64_t digest_of(staged_case c, layout in, layout out, int threads) {
    staged_run r;
    char message[512] = "";
    const planish_exec many = exec_threads(&threads);
    c.in = in, c.out = out;
    staged_make(&r, &c);
    expect(!staged_forward(&r, threads ? &many : NULL, message, sizeof message), "%s", message);
    const uint64_t digest = staged_digest(&r);
    staged_free(&r);
    return digest;
}

static uint64_t layouts_and_threads(void) {
    uint64_t all = 0;
    for (size_t a = 0; a < sizeof sets / sizeof *sets; a++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (element t = F32; t < ELEMENT_COUNT; t += 2 + (element)(s % 2)) {
                staged_case c = case_of((planish_kind)((a + s) % 2), &shapes[s], a + s + 1);
                /* A residual alone is done by the kernels of the norm alone. */
                c.shape[0] *= s < 2 ? 9 : 1;
                put_stages(&c, &sets[a]);
                c.type = c.residual = c.sum = c.y = c.params = t;
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
