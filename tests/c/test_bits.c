/*
 * The same bits: on any number of threads, in any order of the work, on every run, for every slice
 * of the batch, in every layout, in place, from a plan, with any subset of the outputs, and on
 * every instruction set.
 *
 *     test_bits [--share=K]    all of it, or about every Kth case
 *     test_bits --digest       one line per case: its outputs' hash, to compare between machines
 */
#include <stdlib.h>
#include <string.h>

#include "bits_cases.h"
#include "bits_tiers.h"
#include "check.h"

/* Runs and hashes the outputs; 0 where the run failed. */
static uint64_t run_digest(bundle *b, const planish_exec *exec) {
    char message[512] = "";
    planish_status status = bundle_run(b, exec, message, sizeof message);
    return expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message)
               ? bundle_digest(b)
               : 0;
}

static void begin(const char *what, const norm_case *c) {
    char text[512];
    test_case("%s: %s", what, case_text(c, text, sizeof text));
}

static void on_any_threads(const norm_case *c) {
    begin("1 to 8 threads", c);
    bundle b;
    bundle_make(&b, c);
    planish_exec exec = exec_backwards();
    uint64_t first = run_digest(&b, &exec);
    expect(first == run_digest(&b, NULL), "the default differs from one item at a time");
    for (int threads = 1; threads <= 8; threads++) {
        exec = exec_threads(&threads);
        expect(first == run_digest(&b, &exec), "%d threads differ", threads);
    }
    bundle_free(&b);
}

static void on_every_run(const norm_case *c) {
    begin("100 runs", c);
    bundle b;
    bundle_make(&b, c);
    int threads = 3;
    planish_exec exec = exec_threads(&threads);
    uint64_t first = run_digest(&b, &exec);
    int differing = 0;
    for (int i = 1; i < 100; i++)
        differing += first != run_digest(&b, &exec);
    expect(!differing, "%d runs differ", differing);
    bundle_free(&b);
}

/* ---- Slices --------------------------------------------------------------------------------- */

/* Whether the values of a part belong to a row alone. */
static bool by_row(part p) {
    return p != WEIGHT && p != BIAS && p != DWEIGHT && p != DBIAS;
}

static void slice(bundle *b, const norm_case *c, int64_t row, int64_t count) {
    DLTensor part_view[PARTS];
    int64_t sizes[PARTS][PLANISH_MAX_NDIM];
    guarded out[PARTS] = {{0}};
    planish_tensors view = b->tensors;
    for (part p = 0; p < PARTS; p++) {
        const tensor *t = &b->tensor[p];
        if (!*tensors_field(&view, p) || !by_row(p))
            continue;
        int64_t per_row = t->count / c->shape[0];
        size_t bytes = (size_t)(count * per_row * element_bytes(t->type));
        part_view[p] = t->dl;
        memcpy(sizes[p], t->shape, sizeof sizes[p]);
        sizes[p][0] = count;
        part_view[p].shape = sizes[p];
        if (part_is_output(c->pass, p)) {
            out[p] = guarded_make(bytes, (size_t)element_bytes(t->type));
            part_view[p].data = out[p].data;
        } else {
            part_view[p].byte_offset += (uint64_t)(row * per_row * element_bytes(t->type));
        }
        *tensors_field(&view, p) = &part_view[p];
    }
    view.dweight = view.dbias = NULL;
    size_t needed = 0;
    planish_norm_workspace_bytes(&b->test.op, c->pass, &view, &needed, NULL);
    guarded workspace = guarded_make(needed, 256);
    char message[512] = "";
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = workspace.data,
                         .workspace_bytes = needed,
                         .message = message,
                         .message_bytes = sizeof message};
    planish_status status = planish_norm_run(&b->test.op, c->pass, &view, &exec);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
    for (part p = 0; p < PARTS; p++) {
        if (!out[p].mapping)
            continue;
        const tensor *t = &b->tensor[p];
        const unsigned char *whole = (const unsigned char *)t->dl.data + t->dl.byte_offset;
        expect(
            !memcmp(out[p].data, whole + (size_t)row * out[p].bytes / (size_t)count, out[p].bytes),
            "%s of rows %lld to %lld alone differs", part_name(p), (long long)row,
            (long long)(row + count - 1));
        guarded_free(&out[p]);
    }
    guarded_free(&workspace);
}

static void every_slice(const norm_case *c) {
    norm_case wanted = *c;
    wanted.in = wanted.out = DENSE;
    wanted.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
    begin("a row alone and a slice", &wanted);
    bundle b;
    bundle_make(&b, &wanted);
    run_digest(&b, NULL);
    int64_t rows = wanted.shape[0];
    for (int64_t row = 0; row < rows; row += rows > 100 ? 97 : 1)
        slice(&b, &wanted, row, 1);
    for (int64_t count = 2; count <= rows && count < 40; count += 5)
        slice(&b, &wanted, (rows - count) / 2, count);
    bundle_free(&b);
}

/* ---- Layouts -------------------------------------------------------------------------------- */

static void copy_inputs(bundle *to, const bundle *from) {
    for (part p = 0; p < PARTS; p++) {
        const tensor *t = &from->tensor[p];
        if (!t->memory.mapping || part_is_output(from->test.pass, p))
            continue;
        real *values = malloc(((size_t)t->count + 1) * sizeof *values);
        tensor_read(&t->dl, values);
        tensor_write(&to->tensor[p].dl, values);
        free(values);
    }
}

/* The path that a bundle's problem takes, as planish_plan_describe names it. */
static void path_of(bundle *b, char path[32]) {
    planish_plan *plan = NULL;
    planish_plan_create(&b->test.op, b->test.pass, &b->tensors, &plan, NULL, 0);
    planish_plan_describe(plan, path, 32);
    path[strcspn(path, "/")] = 0;
    planish_plan_destroy(plan);
}

/* A row's outputs have the same bits in every layout; the sums over rows where both layouts are of
 * rows one by one: rows beside each other are added by tiles, whose cut follows the layout. */
static void same_as_dense(const norm_case *c) {
    norm_case dense = *c;
    dense.in = dense.out = dense.params = DENSE;
    dense.full_rank = false;
    begin("as from dense tensors", c);
    bundle a, b;
    bundle_make(&a, c);
    bundle_make(&b, &dense);
    copy_inputs(&b, &a);
    run_digest(&a, NULL);
    run_digest(&b, NULL);
    char path[32], dense_path[32];
    path_of(&a, path);
    path_of(&b, dense_path);
    const bool same_sums = strcmp(path, "channels") != 0 && strcmp(dense_path, "channels") != 0;
    for (part p = 0; p < PARTS; p++)
        if (a.tensor[p].memory.mapping && part_is_output(c->pass, p) && (by_row(p) || same_sums))
            expect(tensor_same_bits(&a.tensor[p].dl, &b.tensor[p].dl), "%s differs", part_name(p));
    bundle_free(&a);
    bundle_free(&b);
}

static void in_every_layout(const norm_case *c) {
    norm_case other = *c;
    /* Sums over a channel first, as the rows of channels have them, are others than over a row. */
    if (c->ndim > 2 && c->op.reduce_axes != PLANISH_AXIS(1))
        return;
    for (layout l = EXPLICIT; l < LAYOUT_COUNT; l++) {
        other.in = l;
        other.out = layout_is_broadcast(l) ? PADDED : l;
        other.params = l;
        other.full_rank = l % 2;
        same_as_dense(&other);
    }
}

/* The same rows as one axis, or as several that cannot merge. */
static void in_more_axes(const norm_case *c) {
    if (c->shape[0] != 70 || c->shape[1] != 24)
        return;
    norm_case other = *c;
    other.ndim = 4;
    memcpy(other.shape, (int64_t[]){7, 10, 4, 6}, 4 * sizeof(int64_t));
    other.op.reduce_axes = other.op.affine_axes = PLANISH_AXIS(2) | PLANISH_AXIS(3);
    for (layout l = EXPLICIT; l < LAYOUT_COUNT; l++) {
        other.in = l;
        other.out = layout_is_broadcast(l) ? CHANNELS_LAST : l;
        other.params = l;
        same_as_dense(&other);
    }
}

/* ---- The same from elsewhere ---------------------------------------------------------------- */

static void with_fewer_outputs(const norm_case *c) {
    if (c->in != c->out) /* without dx the layout is another one */
        return;
    begin("with fewer outputs", c);
    bundle all;
    bundle_make(&all, c);
    run_digest(&all, NULL);
    for (part only = 0; only < PARTS; only++) {
        if (!all.tensor[only].memory.mapping || !part_is_output(c->pass, only))
            continue;
        bundle one;
        bundle_make(&one, c);
        for (part p = 0; p < PARTS; p++) /* statistics, sums and y are not optional */
            if (p != only && p != Y && p < C1 && c->pass != PLANISH_STATISTICS &&
                part_is_output(c->pass, p))
                *tensors_field(&one.tensors, p) = NULL;
        char message[512] = "";
        planish_status status = bundle_run(&one, NULL, message, sizeof message);
        expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
        expect(tensor_same_bits(&one.tensor[only].dl, &all.tensor[only].dl), "%s alone differs",
               part_name(only));
        bundle_free(&one);
    }
    bundle_free(&all);
}

static void in_place(const norm_case *c) {
    if (c->in != c->out)
        return;
    static const struct {
        planish_pass pass;
        part output, input;
    } pairs[] = {
        {PLANISH_FORWARD, Y, X},           {PLANISH_APPLY, Y, X},
        {PLANISH_BACKWARD, DX, DY},        {PLANISH_BACKWARD, DX, X},
        {PLANISH_BACKWARD_FROM_Y, DX, DY}, {PLANISH_BACKWARD_FROM_Y, DX, Y},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].pass != c->pass || c->x != c->y)
            continue;
        char text[512];
        test_case("%s in the memory of %s: %s", part_name(pairs[i].output),
                  part_name(pairs[i].input), case_text(c, text, sizeof text));
        bundle apart, shared;
        bundle_make(&apart, c);
        bundle_make(&shared, c);
        *tensors_field(&shared.tensors, pairs[i].output) = &shared.tensor[pairs[i].input].dl;
        run_digest(&apart, NULL);
        char message[512] = "";
        planish_status status = bundle_run(&shared, NULL, message, sizeof message);
        expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
        for (part p = 0; p < PARTS; p++)
            if (part_is_output(c->pass, p) && apart.tensor[p].memory.mapping)
                expect(tensor_same_bits(*tensors_field(&shared.tensors, p), &apart.tensor[p].dl),
                       "%s differs", part_name(p));
        bundle_free(&apart);
        bundle_free(&shared);
    }
}

/* Outputs beyond the cache (plan.c, traffic_of) are written another way, where their rows are whole
 * lines of 64 bytes; the last three are near that. What is beyond it in the forward of rows is up
 * to the machine, 16 MB of x and y or as many as 40. */
static void beyond_the_cache(int step) {
    static const element types[] = {F32, F16, BF16};
    int turn = 0;
    for (int t = 0; t < 3; t++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++)
            for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++) {
                if (turn++ % step)
                    continue;
                norm_case c = image_case(pass, PLANISH_LAYER, layer, 3, 96, 128, t ? 256 : 128, 4);
                c.in = c.out = turn % 2 ? CHANNELS_LAST : DENSE;
                c.op.activation = t ? PLANISH_SILU : PLANISH_IDENTITY;
                c.x = c.dx = c.y = c.weight = c.grad = types[t];
                c.seed = (uint64_t)t + 200;
                every_slice(&c);
            }
    static const struct {
        int64_t rows, cols;
        element type;
    } sizes[] = {{2304, 1024, F32}, {22500, 96, F32},  {9000, 250, F32},   {12000, 200, F32},
                 {88000, 24, F32},  {8200, 544, F16},  {40000, 120, BF16}, {1100, 1024, F64},
                 {40000, 53, F32},  {1400, 1024, F32}, {2800, 531, F32},   {700, 1000, F64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++) {
            if (turn++ % step)
                continue;
            const int64_t row_bytes = sizes[i].cols * element_bytes(sizes[i].type);
            const bool beyond = pass == PLANISH_FORWARD && i < 9;
            const int64_t rows = beyond ? (21 << 20) / row_bytes + 3 : sizes[i].rows;
            norm_case c = rows_case(pass, (planish_kind)((i + pass) % 2), rows, sizes[i].cols);
            c.x = c.dx = c.y = c.weight = c.grad = sizes[i].type;
            c.seed = i + 100;
            every_slice(&c);
            if (i < 2) {
                in_place(&c);
                with_fewer_outputs(&c);
            }
        }
}

int main(int argc, char **argv) {
    int step = atoi(argument(argc, argv, "share", "1"));
    if (flag(argc, argv, "digest"))
        return print_digests(argc, argv, step);
    every_fused(5 * step, on_any_threads);
    every_fused(41 * step, on_every_run);
    every_fused(7 * step, every_slice);
    every_fused(13 * step, in_every_layout);
    every_fused(3 * step, with_fewer_outputs);
    every_fused(3 * step, in_place);
    every_case(3 * step, on_any_threads);
    every_case(23 * step, on_every_run);
    every_case(5 * step, every_slice);
    every_case(11 * step, in_every_layout);
    every_case(1, in_more_axes);
    every_case(2 * step, with_fewer_outputs);
    every_case(2 * step, in_place);
    every_image(3 * step, on_any_threads);
    every_image(23 * step, on_every_run);
    every_image(5 * step, every_slice);
    every_image(11 * step, in_every_layout);
    every_image(2 * step, with_fewer_outputs);
    every_image(2 * step, in_place);
    beyond_the_cache(step < 10 ? 1 : 5); /* large: all of them, or a fifth */
    compare_tiers(step);
    return test_finish("bits");
}
