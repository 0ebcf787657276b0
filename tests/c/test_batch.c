/*
 * Batch norms: the kept axis between two reduced ones, or behind one, against the formulas in long
 * double, in all dtypes, layouts and numbers; statistics that are kept and given, what is added
 * behind the norm, masks by y; and what must not change a bit.
 *
 *     test_batch [--share=K] [--large] [--digest]    every Kth case of the table, from 100 on
 * without tiers; 10^7 values a channel too; a hash of all bits alone
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch_run.h"
#include "check.h"
#include "same_on_tiers.h"

#define A PLANISH_AXIS

static const batch_shape shapes[] = {
    {4, {4, 6, 7, 7}, A(0) | A(2) | A(3), A(1)},
    {4, {3, 40, 9, 8}, A(0) | A(2) | A(3), A(1)},
    {3, {9, 5, 33}, A(0) | A(2), A(1)},
    {2, {70, 37}, A(0), A(1)},
    {4, {2, 3, 61, 40}, A(0) | A(2) | A(3), A(1)},
    {4, {1, 17, 12, 11}, A(0) | A(2) | A(3), A(1)},
    {4, {3, 5, 6, 20}, A(1) | A(3), A(0) | A(2)},
    {4, {200, 2, 31, 33}, A(0) | A(2) | A(3), A(1)},
    {3, {1, 3, 1}, A(0) | A(2), A(1)},
    {3, {5, 4, 3}, A(0) | A(2), A(1)},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static norm_case case_of(planish_pass pass, const batch_shape *s, element type, element weight,
                         layout l) {
    norm_case c = rows_case(pass, PLANISH_LAYER, 1, 1);
    c.ndim = s->ndim;
    memcpy(c.shape, s->size, sizeof s->size);
    c.op.reduce_axes = s->reduce;
    c.op.affine_axes = s->affine;
    c.x = c.dx = c.y = type;
    c.weight = c.grad = weight;
    c.stats = F64;
    c.in = c.out = l;
    return c;
}

static int64_t elements_of(const batch_shape *s) {
    int64_t all = 1;
    for (int i = 0; i < s->ndim; i++)
        all *= s->size[i];
    return all;
}

/* ---- The table ------------------------------------------------------------------------------- */

static void table(int share) {
    static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD, PLANISH_STATISTICS,
                                          PLANISH_APPLY};
    static const layout layouts[] = {DENSE, CHANNELS_LAST, MISALIGNED, PADDED};
    static const planish_activation activations[] = {
        PLANISH_IDENTITY,  PLANISH_RELU,  PLANISH_SILU,     PLANISH_GELU,
        PLANISH_GELU_TANH, PLANISH_RELU6, PLANISH_HARDSWISH};
    int threads = 3;
    const planish_exec ways[] = {
        {.struct_size = sizeof(planish_exec)}, exec_backwards(), exec_threads(&threads)};
    uint64_t turn = 0;
    for (int s = 0; s < SHAPES; s++)
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
            for (element t = F32; t < ELEMENT_COUNT; t++)
                for (int p = 0; p < 4; p++)
                    for (numbers n = 0; n < NUMBERS_COUNT; n++, turn++) {
                        char text[512];
                        if ((turn + turn / 7) % (uint64_t)share ||
                            (elements_of(&shapes[s]) > 100000 && turn % 5))
                            continue;
                        norm_case c = case_of(passes[p], &shapes[s], t,
                                              turn % 3 && t != F64 ? F32 : t, layouts[l]);
                        c.numbers = n;
                        c.op.activation = activations[turn / 4 % 5];
                        if (passes[p] == PLANISH_STATISTICS || n == SUBNORMAL)
                            c.op.activation = PLANISH_IDENTITY;
                        c.op.eps = n == SCALE_TINY && t != F16 ? 1e-70 : 1e-5;
                        c.op.weight_offset = turn % 5 == 2;
                        c.full_rank = turn % 4 == 1;
                        c.stats = turn % 6 || t == F64 ? F64 : F32;
                        c.seed = turn + 1;
                        test_case("%s", case_text(&c, text, sizeof text));
                        run_case(&c, &ways[turn % 3]);
                    }
}

/* Means of channels in f64 whose first elements are far from the others: what is added to a mean
 * that is far from the last one must not cost digits of that. */
static void far_beginnings(void) {
    static const numbers values[] = {BEGINNING, OUTLIER};
    static const layout layouts[] = {DENSE, CHANNELS_LAST};
    for (int s = 1; s < SHAPES; s++)
        for (int i = 0; i < 4; i++)
            for (uint64_t seed = 30; seed < 46; seed++) {
                char text[512];
                if (elements_of(&shapes[s]) > 100000)
                    continue;
                norm_case c = case_of(PLANISH_STATISTICS, &shapes[s], F64, F64, layouts[i / 2]);
                c.numbers = values[i % 2];
                c.seed = seed;
                test_case("%s", case_text(&c, text, sizeof text));
                run_case(&c, NULL);
            }
}

static void many_values(void) {
    static const batch_shape large[] = {{2, {10000000, 1}, A(0), A(1)},
                                        {3, {10, 1, 1000000}, A(0) | A(2), A(1)},
                                        {2, {5000000, 2}, A(0), A(1)}};
    for (size_t s = 0; s < sizeof large / sizeof *large; s++)
        for (int p = 0; p < 2; p++) {
            char text[512];
            norm_case c =
                case_of(p ? PLANISH_BACKWARD : PLANISH_FORWARD, &large[s], F32, F32, DENSE);
            c.numbers = MEAN_1E4;
            test_case("%s", case_text(&c, text, sizeof text));
            run_case(&c, NULL);
        }
}

/* ---- Statistics that are kept, an addend, masks --------------------------------------------- */

static const wanted sets[] = {
    {"running", PLANISH_FORWARD, 0, .running = true, .saves = true},
    {"running alone, relu", PLANISH_FORWARD, PLANISH_RELU, .running = true},
    {"addend", PLANISH_FORWARD, 0, .addend = true, .saves = true},
    {"addend, relu, running", PLANISH_FORWARD, PLANISH_RELU, .addend = true, .running = true},
    {"addend, silu", PLANISH_FORWARD, PLANISH_SILU, .addend = true, .saves = true},
    {"inference", PLANISH_APPLY, 0, .running = true},
    {"inference, relu", PLANISH_APPLY, PLANISH_RELU, .running = true},
    {"inference, addend, gelu", PLANISH_APPLY, PLANISH_GELU, .running = true, .addend = true},
    {"apply, addend, relu", PLANISH_APPLY, PLANISH_RELU, .addend = true},
    {"frozen", PLANISH_BACKWARD, 0, .running = true},
    {"frozen, relu", PLANISH_BACKWARD, PLANISH_RELU, .running = true},
    {"frozen, addend, silu", PLANISH_BACKWARD, PLANISH_SILU, .running = true, .addend = true,
     .daddend = true},
    {"given sums", PLANISH_BACKWARD, 0, .given_sums = true},
    {"given sums, mask", PLANISH_BACKWARD, PLANISH_RELU, .given_sums = true, .mask = true},
    {"mask", PLANISH_BACKWARD, PLANISH_RELU, .mask = true, .daddend = true},
    {"frozen, mask", PLANISH_BACKWARD, PLANISH_RELU, .mask = true, .running = true},
    {"addend, relu backward", PLANISH_BACKWARD, PLANISH_RELU, .addend = true, .daddend = true},
    {"addend, gelu_tanh backward", PLANISH_BACKWARD, PLANISH_GELU_TANH, .addend = true,
     .daddend = true},
    {"daddend alone", PLANISH_BACKWARD, 0, .daddend = true},
};
enum { SETS = sizeof sets / sizeof *sets };

static void kept_and_added(int share) {
    static const layout layouts[] = {DENSE, CHANNELS_LAST, PADDED, INNER_STRIDE_2};
    int threads = 3;
    const planish_exec ways[] = {
        {.struct_size = sizeof(planish_exec)}, exec_backwards(), exec_threads(&threads)};
    uint64_t turn = 0;
    for (int w = 0; w < SETS; w++)
        for (int s = 0; s < SHAPES; s++)
            for (int l = 0; l < 4; l++)
                for (element t = F32; t < ELEMENT_COUNT; t++, turn++) {
                    if ((turn + turn / 5) % (uint64_t)share ||
                        (elements_of(&shapes[s]) > 100000 && turn % 5))
                        continue;
                    const element weight = turn % 3 && t != F64 ? F32 : t;
                    const element stats = turn % 7 == 2 ? t : t == F64 ? F64 : F32;
                    batch_run r;
                    test_case("%s, shape %d, %s, weights %s, %s", sets[w].name, s, element_name(t),
                              element_name(weight), layout_name(layouts[l]));
                    run_begin(&r, &sets[w], &shapes[s], t, weight, stats, layouts[l], turn + 1);
                    want_all(&r);
                    if (run_do(&r, ways[turn % 3]))
                        run_check(&r);
                    run_end(&r);
                }
}

/* Running statistics in f64, to a rounding of each of their two terms. */
static void running_means(void) {
    for (int s = 0; s < SHAPES; s++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            batch_run r;
            if (elements_of(&shapes[s]) > 100000)
                continue;
            test_case("running statistics in f64, shape %d, seed %d", s, (int)seed);
            run_begin(&r, &sets[0], &shapes[s], F64, F64, F64, seed % 2 ? CHANNELS_LAST : PADDED,
                      seed);
            want_all(&r);
            if (run_do(&r, (planish_exec){0}))
                run_check(&r);
            run_end(&r);
        }
}

/* ---- What changes no bit, and what does not fit --------------------------------------------- */

static uint64_t digest_of(const wanted *w, const batch_shape *s, element t, layout l, int threads) {
    batch_run r;
    const planish_exec many = exec_threads(&threads), alone = {.struct_size = sizeof alone};
    run_begin(&r, w, s, t, t == F64 ? F64 : F32, t == F64 ? F64 : F32, l, 7);
    want_all(&r);
    run_do(&r, threads > 1 ? many : threads ? alone : exec_backwards());
    const uint64_t digest = run_digest(&r);
    run_end(&r);
    return digest;
}

static uint64_t bits(bool alone) {
    static const batch_shape large[] = {{4, {8, 48, 28, 28}, A(0) | A(2) | A(3), A(1)},
                                        {4, {16, 3, 70, 70}, A(0) | A(2) | A(3), A(1)},
                                        {2, {3000, 100}, A(0), A(1)}};
    uint64_t all = 0;
    for (int w = 0; w < SETS; w++)
        for (int s = 0; s < 3; s++)
            for (int l = 0; l < 2; l++) {
                const element t = (element)((w + s + l) % ELEMENT_COUNT);
                const layout as = l ? CHANNELS_LAST : DENSE;
                test_case("bits of %s, large shape %d, %s, %s", sets[w].name, s, element_name(t),
                          layout_name(as));
                const uint64_t one = digest_of(&sets[w], &large[s], t, as, 1);
                all = (all ^ one) * 0x100000001b3u;
                if (alone || (w + s + l) % 4)
                    continue;
                expect(digest_of(&sets[w], &large[s], t, as, 2) == one, "others on 2 threads");
                expect(digest_of(&sets[w], &large[s], t, as, 7) == one, "others on 7 threads");
                expect(digest_of(&sets[w], &large[s], t, as, 0) == one, "others from the end");
            }
    return all;
}

typedef void change(batch_run *r, planish_tensors *t);
static void lone_running(batch_run *r, planish_tensors *t) {
    (void)r, t->running_var = NULL;
}
static void both_kinds(batch_run *r, planish_tensors *t) {
    (void)r, t->mean = t->running_mean;
}
static void momentum_nan(batch_run *r, planish_tensors *t) {
    (void)t, r->op.momentum = NAN;
}
static void rms_running(batch_run *r, planish_tensors *t) {
    (void)t, r->op.kind = PLANISH_RMS;
}
static void lone_c1(batch_run *r, planish_tensors *t) {
    (void)r, t->c2 = NULL;
}
static void silu_mask(batch_run *r, planish_tensors *t) {
    (void)t, r->op.activation = PLANISH_SILU;
}
static void mask_and_addend(batch_run *r, planish_tensors *t) {
    (void)r, t->addend = t->x;
}

static void refused(void) {
    static const struct {
        const char *name;
        int set;
        change *change;
        planish_status status;
        const char *says;
    } bad[] = {
        {"running_mean alone", 5, lone_running, PLANISH_ERROR_NULL_POINTER, "running_var"},
        {"running_mean and mean", 5, both_kinds, PLANISH_ERROR_ARGUMENT, "mean"},
        {"momentum of NaN", 0, momentum_nan, PLANISH_ERROR_ARGUMENT, "op->momentum"},
        {"running statistics of RMS", 1, rms_running, PLANISH_ERROR_ARGUMENT, "running_mean"},
        {"c1 alone", 12, lone_c1, PLANISH_ERROR_NULL_POINTER, "c2"},
        {"a mask of SiLU", 14, silu_mask, PLANISH_ERROR_ARGUMENT, "y"},
        {"a mask and an addend", 14, mask_and_addend, PLANISH_ERROR_ARGUMENT, "addend"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        batch_run r;
        char message[512] = "";
        planish_plan *plan = NULL;
        test_case("refused: %s", bad[i].name);
        run_begin(&r, &sets[bad[i].set], &shapes[0], F32, F32, F32, DENSE, 1);
        planish_tensors t = tensors_of(&r);
        bad[i].change(&r, &t);
        const planish_status status =
            planish_plan_create(&r.op, r.w->pass, &t, &plan, message, sizeof message);
        expect(status == bad[i].status, "%s: %s", planish_status_name(status), message);
        expect(strstr(message, bad[i].says) != NULL, "it says: %s", message);
        planish_plan_destroy(plan);
        run_end(&r);
    }
}

/* Whether the kernels made for it take a batch norm with everything. */
static void fast(void) {
    for (int w = 0; w < SETS; w++)
        for (int l = 0; l < 2; l++) {
            batch_run r;
            char message[512] = "";
            test_case("fast: %s, %s", sets[w].name, l ? "channels last" : "dense");
            run_begin(&r, &sets[w], &shapes[1], BF16, F32, F32, l ? CHANNELS_LAST : DENSE, 1);
            const planish_tensors t = tensors_of(&r);
            const planish_status status =
                planish_norm_supports(&r.op, r.w->pass, &t, message, sizeof message);
            expect(!status, "%s: %s", planish_status_name(status), message);
            run_end(&r);
        }
}

int main(int argc, char **argv) {
    if (flag(argc, argv, "digest")) {
        test_case("digest");
        printf("%llx\n", (unsigned long long)bits(true));
        return 0;
    }
    const int share = atoi(argument(argc, argv, "share", "5"));
    refused();
    fast();
    table(share);
    kept_and_added(share);
    far_beginnings();
    running_means();
    if (flag(argc, argv, "large"))
        many_values();
    if (share < 100)
        same_on_tiers(argv[0], bits(false));
    report_accuracy();
    return test_finish("batch");
}
