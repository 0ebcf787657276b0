/*
 * The GPU kernels without a GPU: their own text, compiled for the host, run over the small GPU of
 * device.h and held against the reference with the bounds of docs/guide/reproducibility.md.
 *
 *     test_emulation --write=FOLDER    writes the specialisations that the cases need, as C++
 *     test_emulation --units=FOLDER    runs the cases with what was compiled of them
 *     ... [--share=K] [--table=NAME] [--parts=N --part=I]
 *
 * Every case runs with its threads and blocks in order and in a random order, which must give the
 * same bits, and so must a slice of its rows. run.py does all of it, in N processes that have every
 * Nth case each, and looks that no kind of kernel was launched by none of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../c/cases.h"
#include "../../c/check.h"
#include "emulated.h"

/* ---- One case ---------------------------------------------------------------------------------
 */

static bool is_output(const bundle *b, part p) {
    return *tensors_field((planish_tensors *)&b->tensors, p) && part_is_output(b->test.pass, p);
}

/* The outputs' memory, guards and gaps included. */
static void keep(const bundle *b, unsigned char *kept[PARTS]) {
    for (part p = 0; p < PARTS; p++) {
        kept[p] = NULL;
        if (is_output(b, p)) {
            kept[p] = malloc(b->tensor[p].memory.bytes + 1);
            memcpy(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes);
        }
    }
}

static void clear_outputs(bundle *b) {
    for (part p = 0; p < PARTS; p++)
        if (is_output(b, p))
            tensor_clear(&b->tensor[p]);
}

static bool run(bundle *b, schedule how) {
    char text[700] = "";
    order = how;
    fill = how == IN_ORDER ? 0xff : 0x41; /* NaN in every type; an ordinary number */
    planish_status status = bundle_run(b, NULL, text, sizeof text);
    return expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), text);
}

/* Runs rows [first, first + count) of the first axis alone, and expects the bits they had. */
static void check_slice(bundle *b, unsigned char *const *kept, int64_t first, int64_t count) {
    DLTensor part_of[PARTS];
    int64_t shapes[PARTS][PLANISH_MAX_NDIM];
    const planish_tensors whole = b->tensors;
    for (part p = 0; p < PARTS; p++) {
        const DLTensor **field = tensors_field(&b->tensors, p);
        if (!*field || p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS)
            continue;
        part_of[p] = **field;
        memcpy(shapes[p], part_of[p].shape, sizeof *shapes);
        shapes[p][0] = count;
        int64_t dense = 1;
        for (int i = 1; i < part_of[p].ndim; i++)
            dense *= shapes[p][i];
        const int64_t step = part_of[p].strides ? part_of[p].strides[0] : dense;
        part_of[p].shape = shapes[p];
        part_of[p].byte_offset += (uint64_t)(first * step * element_bytes(b->tensor[p].type));
        *field = &part_of[p];
    }
    clear_outputs(b);
    if (run(b, SHUFFLED) && !write_folder)
        for (part p = 0; p < PARTS; p++) {
            if (!kept[p] || p == DWEIGHT || p == DBIAS)
                continue;
            unsigned char *now = b->tensor[p].memory.data;
            /* What the slice left untouched was untouched by tensor_clear(), too. */
            const int bytes = element_bytes(b->tensor[p].type);
            cursor c = cursor_begin(&part_of[p]);
            bool same = true;
            for (int64_t i = 0, n = element_count(&part_of[p]); i < n; i++, cursor_next(&c))
                same &= !memcmp(c.at, kept[p] + (c.at - now), (size_t)bytes);
            expect(same, "%s: other bits in a slice of the rows", part_name(p));
        }
    b->tensors = whole;
}

/* The output that may be the input itself; PARTS: none. */
static part in_place(const bundle *b, part *input) {
    const norm_case *c = &b->test;
    const bool backward = c->pass == PLANISH_BACKWARD || c->pass == PLANISH_BACKWARD_FROM_Y;
    const part output = backward ? DX : Y;
    *input = backward ? DY : X;
    return !b->tensors.m2 && is_output(b, output) && c->x == c->y && c->in == c->out ? output
                                                                                     : PARTS;
}

/* Runs with the result in the place of x or dy, and expects the same bits. Ends the bundle's use.
 */
static void check_in_place(bundle *b, unsigned char *const *kept) {
    part input, output = in_place(b, &input);
    if (output == PARTS)
        return;
    *tensors_field(&b->tensors, output) = &b->tensor[input].dl;
    if (!run(b, SHUFFLED) || write_folder)
        return;
    tensor *was = &b->tensor[output];
    memcpy(was->memory.data, kept[output], was->memory.bytes);
    expect(tensor_same_bits(&was->dl, &b->tensor[input].dl), "%s: other bits in place of %s",
           part_name(output), part_name(input));
    for (part p = DWEIGHT; p <= DBIAS; p++)
        if (kept[p])
            expect(!memcmp(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes),
                   "%s: other bits with dx in place of dy", part_name(p));
}

static int64_t share = 1, parts = 1, part_number, made, other_numbers;

static void emulate_case(norm_case c) {
    char text[512];
    const int64_t number = made++;
    if (number % share || number / share % parts != part_number)
        return;
    c.seed = (uint64_t)(made + other_numbers);
    /* An unmapped page before the buffers of one case, after those of the next. */
    guard_side = made % 2 ? GUARD_END : GUARD_START;
    test_case("sm_%d x %d: %s", limits.arch, limits.multiprocessors,
              case_text(&c, text, sizeof text));
    bundle b;
    unsigned char *kept[PARTS];
    bundle_make(&b, &c);
    bool good = run(&b, IN_ORDER);
    if (good && !write_folder)
        bundle_check(&b);
    keep(&b, kept);
    if (good && !write_folder && run(&b, SHUFFLED))
        for (part p = 0; p < PARTS; p++)
            if (kept[p])
                expect(!memcmp(kept[p], b.tensor[p].memory.data, b.tensor[p].memory.bytes),
                       "%s: other bits with the threads in another order", part_name(p));
    if (good && c.shape[0] > 3 && !((c.reduce_axes | b.op.affine_axes) & 1))
        check_slice(&b, kept, c.shape[0] / 3, c.shape[0] / 2);
    if (good)
        check_in_place(&b, kept);
    for (part p = 0; p < PARTS; p++)
        free(kept[p]);
    bundle_free(&b);
}

/* ---- Tables -----------------------------------------------------------------------------------
 */

static void set_types(norm_case *c, element all) {
    c->x = c->y = c->weight = c->grad = all;
    c->stats = all == F64 ? F64 : F32;
}

static norm_case rows_of(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols,
                         element type) {
    norm_case c = rows_case(pass, kind, rows, cols);
    set_types(&c, type);
    return c;
}

static const planish_pass both[] = {PLANISH_FORWARD, PLANISH_BACKWARD};
static const element types[] = {F16, BF16, F32, F64};

/* Rows of 16 bits that go through shared memory in one piece: by a lane for each, or two to 32. */
static void tiled(void) {
    static const int64_t cols[] = {6, 24, 33, 65, 100, 267, 385, 769};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 2);
    for (int i = 0; i < 16; i++) {
        const int64_t n = cols[i % 8], rows = n < 30 ? 1203 : n < 70 ? 407 : 37;
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 8 ? BF16 : F16);
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        if (n == 6 || n == 33 || n == 65)
            emulate_case(c);
    }
}

/* Rows of 16 bits whose lanes take runs of words: odd lengths, of which every second row begins
 * inside a word, and an even one; rows that end in the first element of a run, and in the last. */
static void runs(void) {
    static const int64_t cols[] = {385, 769, 513, 1001, 500, 147, 387, 1023, 703, 1537};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 1);
    for (int i = 0; i < 20; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, 43,
                              cols[i % 10], i < 10 ? BF16 : F16);
        if (i % 4 == 1)
            c.shape[0] = 150;
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i % 7 == 4)
            c.weight = c.grad = F32;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        emulate_case(c);
    }
}

/* Lengths that make every way to share a row: within a warp, in a block, ragged or not. */
static void lengths(void) {
    static const int64_t cols[] = {1, 3, 24, 40, 100, 267, 512, 769, 1536, 4096};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            const int64_t rows = cols[i] < 100 ? 301 : cols[i] < 1000 ? 43 : 11;
            const planish_kind kind = i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER;
            /* rstd of f64 rows of 2 to 8 elements is off by up to 8 ULP (docs/guide/gpu.md). */
            const element other = cols[i] == 3 ? F32 : types[(i + 2) % 4];
            set_device(90, 2);
            emulate_case(rows_of(both[pass], kind, rows, cols[i], types[i % 3]));
            if (i % 2)
                emulate_case(rows_of(both[pass], PLANISH_LAYER, rows, cols[i], other));
        }
}

/* Rows that fill a cluster, or pass through shared memory, or are read twice. */
static void long_rows(void) {
    set_device(90, 16);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 32768, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40008, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 8200, BF16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 24, 5632, F16));   /* clusters of three */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 12, 18440, BF16)); /* read twice */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 10, 28680, F16));
    norm_case misaligned = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 18440, F16);
    misaligned.in = MISALIGNED;
    emulate_case(misaligned);
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 7, 8192, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 8193, F64));
    set_device(80, 2); /* no clusters */
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40960, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 4, 90000, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 20000, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 4, 8195, F32));
}

/* Rows over groups of blocks anywhere on the device, as planned. */
static void rows_cooperative(void) {
    set_device(90, 12);
    limits.cooperative = 1;
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 7, 20000, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 9, 33800, BF16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 7, 65540, F32)); /* one group */
    set_device(90, 34);
    limits.cooperative = 1;
    norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 131080, F16); /* two groups */
    c.numbers = MEAN_100;
    emulate_case(c);
}

/* The same of shorter rows, as no plan has them: rings and delays of every kind, more members than
 * a warp has lanes, one group and several, fewer rows than a ring holds. */
static void rows_shared(void) {
    static const struct {
        sharing how;
        int chunks, groups;
    } works[] = {
        {{5, 64, 2, 3, 1}, 325, 2},   {{3, 96, 3, 4, 2}, 850, 3},   {{40, 64, 1, 4, 3}, 2531, 1},
        {{33, 64, 1, 6, 3}, 2112, 2}, {{70, 64, 1, 4, 1}, 4420, 1}, {{2, 160, 2, 5, 4}, 640, 1},
    };
    static const numbers of[] = {NORMAL, MEAN_1E4, SCALE_BIG, SCALE_MIXED, MEAN_100, CONSTANT};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 18; i++) {
            const element type = types[(i + i / 6) % 3];
            const int w = i % 6, width = type == F32 ? 4 : 8;
            norm_case c = rows_of(both[pass], i % 5 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                  i % 7 == 2 ? 2 : 11 + i, (int64_t)works[w].chunks * width, type);
            set_device(i % 4 == 1 ? 80 : 90, works[w].how.group * works[w].groups);
            sharing_of_rows = works[w].how;
            c.numbers = of[(i + pass) % 6];
            if (i % 8 == 5)
                c.in = c.out = i % 2 ? PADDED : MISALIGNED;
            if (i % 9 == 4)
                c.has &= ~(pass ? HAS(DBIAS) : HAS(BIAS));
            if (i % 6 == 1)
                c.weight = c.grad = F32;
            emulate_case(c);
        }
    sharing_of_rows.group = 0;
}

/* An outlier in a row's first chunk, in rows of every way to share them. */
static void outliers(void) {
    static const int64_t cols[] = {64, 100, 264, 512, 768, 1096, 2048, 4096, 8192, 16384};
    set_device(90, 2);
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, cols[i], types[i % 2]);
        c.numbers = OUTLIER;
        emulate_case(c);
    }
}

/* Few rows on a large device, which load weight and bias early; and many on a small one. */
static void row_counts(void) {
    for (int pass = 0; pass < 2; pass++) {
        set_device(90, 132);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 1, 1024, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 5, 40, F32));
        set_device(90, 1);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 64, 2048, BF16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 2000, 24, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 0, 24, F16));
    }
    /* More rows than blocks: a ring of rows to come. */
    set_device(90, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 300, 512, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 13, 8192, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 9, 16400, F16));
    set_device(80, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 12, 4096, F32));
}

/* Rows of 16 bits within warps, so many that a lane takes several, and a rest. */
static void centred(void) {
    static const int64_t cols[] = {24, 72, 100, 200, 511, 512};
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, CONSTANT, MEAN_100, SCALE_BIG};
    set_device(90, 1);
    for (int i = 0; i < 12; i++) {
        const int64_t n = cols[i % 6], rows = n < 50 ? 1003 : n < 101 ? 403 : 107;
        norm_case c = rows_of(PLANISH_FORWARD, i % 4 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 6 ? F16 : BF16);
        c.numbers = i < 6 ? of[i] : SCALE_MIXED;
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i == 8)
            c.y = F32;
        emulate_case(c);
    }
}

static void outputs_and_dtypes(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        const unsigned all = rows_case(both[pass], PLANISH_LAYER, 1, 1).has;
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 96, F16);
            c.has = all & ~drop[i];
            if (both[pass] == PLANISH_FORWARD && i > 2)
                continue;
            emulate_case(c);
        }
        norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 200, BF16);
        c.weight = c.grad = F32;
        c.weight_offset = 1;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_LAYER, 13, 1024, F16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_RMS, 13, 768, F32);
        c.y = BF16;
        c.stats = BF16;
        c.weight = F64;
        emulate_case(c);
    }
}

/* Alignments of 2 to 16 bytes, and gaps between rows. */
static void layouts(void) {
    static const layout in[] = {MISALIGNED, PADDED, BROADCAST_FIRST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = rows_of(both[pass], PLANISH_LAYER, 17, i ? 520 : 1032, types[2 * t]);
                c.in = in[i];
                c.out = in[(i + 1) % 2];
                c.params = i == 2 ? MISALIGNED : DENSE;
                emulate_case(c);
            }
}

static void all_numbers(void) {
    set_device(90, 2);
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = rows_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 9,
                                  t == 1 ? 96 : 1024, types[t]);
            c.numbers = n;
            c.eps = n == SCALE_TINY
                        ? 0
                        : 1e-5; /* rstd of subnormal rows is no float (docs/guide/gpu.md) */
            emulate_case(c);
            if (n == SCALE_BIG || n == SCALE_TINY || n == MEAN_1E4) {
                c.pass = PLANISH_FORWARD;
                emulate_case(c);
            }
        }
}

/* ---- The general kernels ----------------------------------------------------------------------
 */

/* The passes that have no other kernels, over rows. */
static void other_passes(void) {
    static const int64_t shapes[][2] = {{37, 100}, {5, 1030}, {67, 5}};
    set_device(90, 2);
    for (planish_pass pass = PLANISH_BACKWARD_FROM_Y; pass <= PLANISH_APPLY; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(pass, i % 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i % 3][0],
                                  shapes[i % 3][1], types[i % 4]);
            if (pass >= PLANISH_STATISTICS)
                c.stats = F64;
            c.weight_offset = i == 4;
            emulate_case(c);
        }
}

static void any_layout(void) {
    static const layout in[] = {INNER_STRIDE_2, PERMUTED,      REVERSED,
                                BROADCAST_LAST, BROADCAST_ALL, CHANNELS_LAST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 12, 70, types[i % 3]);
            c.ndim = 3;
            c.shape[2] = 9;
            c.reduce_axes = c.affine_axes = i % 2 ? 6 : 4;
            c.in = in[i];
            c.out = in[i % 3];
            c.params = i == 2 ? REVERSED : DENSE;
            emulate_case(c);
        }
}

/* Channels, groups, instances, weights; affine axes inside the row, outside, both and none. */
static void any_axes(void) {
    static const struct {
        int ndim;
        int64_t shape[5];
        uint64_t reduce, affine;
    } problems[] = {
        {4, {4, 24, 5, 6}, 2, 2}, {5, {4, 3, 8, 5, 6}, 28, 6}, {4, {4, 6, 9, 11}, 12, 2},
        {3, {33, 7, 40}, 5, 7},   {4, {5, 6, 7, 8}, 10, 5},    {2, {40, 300}, 1, 2},
        {3, {4, 50, 60}, 4, 0},   {3, {6, 1, 41}, 6, 4},       {2, {5, 0}, 2, 2},
        {2, {5, 0}, 2, 1},        {3, {0, 4, 8}, 4, 2},        {5, {4, 2, 3, 40, 2}, 24, 14},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD_FROM_Y; pass++) {
            norm_case c = rows_of(pass, i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER, 1, 1,
                                  types[(i + pass) % 4]);
            c.ndim = problems[i].ndim;
            memcpy(c.shape, problems[i].shape, sizeof problems[i].shape);
            c.reduce_axes = problems[i].reduce;
            c.affine_axes = problems[i].affine;
            c.in = c.out = i % 3 == 1 ? CHANNELS_LAST : DENSE;
            c.full_rank = i % 2;
            if (i == 3 || i == 5) {
                c.weight = F32;
                c.grad = F64;
                c.y = F32;
            }
            set_device(90, i == 3 ? 20 : 2);
            emulate_case(c);
        }
}

/* ---- Channels and groups ------------------------------------------------------------------------
 */

static norm_case channels_of(planish_pass pass, planish_kind kind, int64_t images, int64_t channels,
                             int64_t pixels, element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 3;
    c.shape[0] = images;
    c.shape[1] = channels;
    c.shape[2] = pixels;
    c.reduce_axes = c.affine_axes = 2;
    return c;
}

/* Images taken whole by a block or a cluster, and by tiles; odd numbers of everything. */
static void channels(void) {
    static const int64_t shapes[][3] = {
        {5, 24, 64}, {3, 17, 49},   {2, 96, 320}, {2, 33, 1025}, {6, 40, 7},  {1, 320, 256},
        {9, 8, 3},   {2, 520, 196}, {4, 3, 4096}, {3, 1000, 49}, {5, 2, 100}, {2, 130, 272},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c = channels_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                      shapes[i][0], shapes[i][1], shapes[i][2], types[i % 3]);
            set_device(i % 5 == 4 ? 80 : 90, 2);
            c.weight_offset = i == 6;
            if (i % 2)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

/* Images over clusters: lines of four channels and of two, blocks that have less than the others,
 * tiles that a cluster shares, with a ring and without. */
static void channels_in_clusters(void) {
    static const struct {
        int64_t images, channels, pixels;
        element type;
    } shapes[] = {
        {3, 1024, 49, F16},   {2, 1200, 196, F16}, {1, 1216, 196, F32}, {1, 2056, 196, F32},
        {1, 1056, 272, BF16}, {2, 700, 196, F16},  {3, 640, 198, BF16}, {1, 1056, 272, F32},
    };
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c =
                channels_of(both[pass], i == 4 ? PLANISH_RMS : PLANISH_LAYER, shapes[i].images,
                            shapes[i].channels, shapes[i].pixels, shapes[i].type);
            c.numbers = i % 2 ? OUTLIER : MEAN_100;
            if (i % 3 == 1)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

/* Tiles of an odd number of pixels, which begin elsewhere within 16 bytes in every channel. */
static void channels_shifted(void) {
    static const int64_t shapes[][3] = {{2, 33, 1025}, {3, 40, 641},   {1, 256, 777},
                                        {2, 9, 2063},  {1, 1100, 521}, {5, 17, 579}};
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, MEAN_100, CONSTANT};
    static const layout outs[] = {DENSE, MISALIGNED, DENSE,        PADDED,
                                  DENSE, MISALIGNED, CHANNELS_LAST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 6; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = channels_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                          shapes[i][0], shapes[i][1], shapes[i][2], types[t]);
                c.numbers = of[(i + t) % 5];
                c.out = outs[(i + 2 * t) % (pass ? 6 : 7)];
                c.in = i % 3 == 2 || c.out == CHANNELS_LAST ? MISALIGNED : c.out;
                if ((i + t) % 2)
                    c.weight = c.grad = F32;
                if (i == 5)
                    c.has &= ~(t ? HAS(DX) : HAS(DWEIGHT) | HAS(DBIAS));
                emulate_case(c);
            }
    norm_case mixed = channels_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 33, 1025, F16);
    mixed.y = F32;
    emulate_case(mixed);
    mixed.pass = PLANISH_FORWARD;
    emulate_case(mixed);
}

/* Tiles whose output has the channels of a pixel side by side: pixels that fill lines, half lines
 * and neither, chunks of every size, tiles that end early. */
static void channels_to_last(void) {
    static const struct {
        int64_t images, channels, pixels;
        element x, y;
    } shapes[] = {
        {2, 136, 336, F16, F16}, {1, 1024, 320, F16, F16}, {2, 72, 304, BF16, F32},
        {2, 45, 336, F32, F32},  {1, 40, 1041, F32, F16},  {1, 256, 784, BF16, BF16},
        {1, 600, 272, F32, F32},
    };
    set_device(90, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        norm_case c =
            channels_of(PLANISH_FORWARD, i == 4 ? PLANISH_RMS : PLANISH_LAYER, shapes[i].images,
                        shapes[i].channels, shapes[i].pixels, shapes[i].x);
        c.y = shapes[i].y;
        c.numbers = i % 2 ? MEAN_1E4 : OUTLIER;
        c.out = CHANNELS_LAST;
        if (i % 3 == 1)
            c.has &= ~HAS(BIAS);
        emulate_case(c);
    }
}

static void channels_otherwise(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = channels_of(both[pass], PLANISH_LAYER, 3, 40, 96, types[i % 3]);
            c.has &= ~drop[i];
            if (both[pass] == PLANISH_BACKWARD || i < 3)
                emulate_case(c);
        }
        for (int i = 0; i < 3; i++) {
            norm_case c =
                channels_of(both[pass], PLANISH_LAYER, 3, 48, i == 1 ? 49 : 320, types[i]);
            c.in = c.out = i == 2 ? PADDED : MISALIGNED;
            emulate_case(c);
        }
        norm_case c = channels_of(both[pass], PLANISH_LAYER, 4, 72, 256, BF16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
    }
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = channels_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 2,
                                      t == 1 ? 520 : 96, t == 1 ? 49 : 80, types[t]);
            c.numbers = n;
            c.eps = n == SCALE_TINY ? 0 : 1e-5;
            emulate_case(c);
            c.pass = PLANISH_FORWARD;
            if (n != SUBNORMAL)
                emulate_case(c);
        }
}

/* (images, groups, channels, pixels), or with the channels last (images, pixels, groups, channels).
 */
static norm_case groups_of(planish_pass pass, planish_kind kind, const int64_t *n, bool last,
                           element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 4;
    for (int i = 0; i < 4; i++)
        c.shape[i] = n[i];
    if (last) {
        c.shape[1] = n[3];
        c.shape[2] = n[1];
        c.shape[3] = n[2];
    }
    c.reduce_axes = last ? 10 : 12;
    c.affine_axes = last ? 12 : 6;
    return c;
}

static void groups(void) {
    static const int64_t shapes[][4] = {
        {3, 4, 8, 64},   {2, 32, 2, 196}, {2, 3, 5, 49},   {1, 1, 24, 100},
        {5, 40, 1, 81},  {3, 2, 12, 1},   {2, 2, 64, 400}, {4, 7, 3, 2},
        {2, 1, 9, 8192}, {6, 6, 1, 320},  {2, 5, 100, 9},  {2, 2, 8, 3136},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int last = 0; last < 2; last++) {
                norm_case c = groups_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                        shapes[i], last, types[(i + (size_t)last) % 3]);
                set_device(i % 5 == 4 ? 80 : 90, 2);
                c.weight_offset = i == 6;
                if (i % 2)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
}

static void groups_otherwise(void) {
    static const int64_t small[] = {5, 3, 8, 96}, odd[] = {5, 3, 5, 49}, large[] = {2, 2, 40, 1600};
    static const int64_t fifths[] = {1, 2, 5, 6000};
    set_device(90, 2);
    for (int last = 0; last < 2; last++) {
        for (int pass = 0; pass < 2; pass++) {
            static const unsigned drop[] = {HAS(BIAS), HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                            HAS(DWEIGHT) | HAS(DBIAS), HAS(MEAN) | HAS(RSTD)};
            for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, types[i % 3]);
                c.has &= ~drop[i];
                emulate_case(c);
            }
            for (int i = 0; i < 3; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, i ? odd : small, last, types[i]);
                c.in = c.out = i == 2 ? PADDED : MISALIGNED;
                emulate_case(c);
            }
            norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, F16);
            c.y = F32;
            c.stats = F64;
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, large, last, F32);
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, fifths, last, F32);
            emulate_case(c);
        }
        for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
            for (int t = 0; t < 3; t++) {
                norm_case c = groups_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER,
                                        t == 1 ? odd : small, last, types[t]);
                c.numbers = n;
                c.eps = n == SCALE_TINY ? 0 : 1e-5;
                emulate_case(c);
                c.pass = PLANISH_FORWARD;
                if (n != SUBNORMAL)
                    emulate_case(c);
            }
    }
}

/* Rows in tiles: an odd number of pixels and an even one, of which no chunks are whole; a row for a
 * block, several, or a cluster for a row, whose last block may have less. */
static void group_tiles(void) {
    static const int64_t shapes[][4] = {
        {5, 6, 8, 49},    {7, 40, 1, 196}, {4, 3, 40, 225}, {4, 2, 10, 3025},
        {5, 2, 125, 225}, {270, 5, 3, 9},  {4, 64, 1, 15},  {4, 4, 5, 98},
        {4, 1, 7, 6001},  {5, 7, 2, 2},    {4, 3, 4, 13},
    };
    static const numbers of[] = {NORMAL,   MEAN_1E4,  OUTLIER,   MEAN_100,
                                 CONSTANT, SCALE_BIG, SCALE_TINY};
    static const layout outs[] = {DENSE, MISALIGNED, DENSE, PADDED, MISALIGNED};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 11; i++)
            for (int t = 0; t < 3; t++) {
                norm_case c = groups_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                        shapes[i], false, types[t]);
                set_device(i % 5 == 2 ? 80 : 90, 2);
                c.numbers = of[(i + t) % (pass ? 5 : 7)];
                c.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
                c.out = outs[(i + t) % 5];
                c.in = i % 4 == 3 ? DENSE : c.out; /* x and the output need not lie alike */
                c.weight_offset = i == 6;
                if ((i + t) % 2)
                    c.weight = c.grad = F32;
                if (i % 5 == 4)
                    c.has &= ~(t == 0   ? HAS(DX) | HAS(BIAS)
                               : t == 1 ? HAS(WEIGHT) | HAS(DWEIGHT)
                                        : HAS(DBIAS));
                emulate_case(c);
            }
}

/* Channels last, in strips over clusters: whole and part chunks of a group, a last strip that is
 * cut, a block without its last pixels. */
static void strips(void) {
    static const int64_t shapes[][4] = {
        {1, 16, 10, 1601}, {1, 40, 2, 2499}, {3, 3, 40, 700}, {1, 48, 1, 2000}, {2, 1, 96, 901},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = groups_of(both[pass], i == 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i],
                                        true, types[(i + (size_t)t) % 3]);
                set_device(90, 2);
                c.numbers = i % 2 ? OUTLIER : MEAN_100;
                if (t)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
    /* Rows beyond float's range beside others, so that a strip is summed again. */
    norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[1], true, BF16);
    c.numbers = SCALE_BIG;
    emulate_case(c);
    c.numbers = SCALE_TINY;
    c.eps = 0;
    emulate_case(c);
}

/* Strips that one block holds, or a few where groups are many: small images, groups of a few
 * channels of which a chunk has several or parts, last strips that are cut, few pixels. */
static void strips_over_few(void) {
    static const int64_t shapes[][4] = {
        {3, 32, 8, 49}, {5, 48, 1, 49},  {2, 32, 3, 100},  {2, 24, 5, 60},  {2, 37, 8, 33},
        {7, 16, 2, 4},  {2, 134, 1, 30}, {1, 96, 1, 1900}, {3, 3, 128, 30}, {4, 300, 1, 9},
    };
    static const numbers of[] = {NORMAL, OUTLIER, MEAN_1E4, MEAN_100};
    for (int i = 0; i < 40; i++) {
        norm_case c = groups_of(both[i / 20], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 10], true, types[(i + i / 10) % 3]);
        set_device(i % 10 == 2 ? 80 : 90, 2);
        c.numbers = of[i % 4];
        c.weight_offset = i == 4;
        if (i % 3 == 1)
            c.weight = c.grad = F32;
        if (i % 4 == 2) {
            c.activation = i % 8 == 2 ? PLANISH_SILU : PLANISH_RELU;
            c.stats = F64;
        }
        if (i % 11 == 5)
            c.has &= ~(HAS(BIAS) | HAS(DBIAS));
        if (i % 9 == 7)
            c.in = c.out = i % 2 ? PADDED : MISALIGNED;
        emulate_case(c);
    }
    /* Rows beyond float's range beside others, so that a strip is summed again. */
    for (int i = 0; i < 4; i++) {
        norm_case c =
            groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[i], true, i % 2 ? F32 : BF16);
        c.numbers = i < 2 ? SCALE_MIXED : i == 2 ? SCALE_BIG : SCALE_TINY;
        c.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
        emulate_case(c);
    }
    static const int64_t many[] = {300, 128, 1, 4}; /* rows, of which some err more than most */
    for (int i = 0; i < 2; i++) {
        norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, many, true, F32);
        c.activation = i ? PLANISH_SILU : PLANISH_IDENTITY;
        c.stats = F64;
        emulate_case(c);
    }
}

static void strips_without_clusters(void) {
    without_clusters = true;
    strips();
    without_clusters = false;
}

/* A device that has room for strips over blocks anywhere, which few images do not need: slices are
 * in a cluster then. */
static void strips_as_planned(void) {
    static const struct {
        int64_t shape[4];
        planish_pass pass;
        element type;
        int multiprocessors;
    } works[] = {
        {{5, 8, 8, 1901}, PLANISH_BACKWARD, F16, 16}, {{9, 4, 8, 1901}, PLANISH_BACKWARD, F32, 16},
        {{5, 4, 8, 3701}, PLANISH_FORWARD, F32, 16},  {{1, 8, 8, 7500}, PLANISH_BACKWARD, BF16, 64},
        {{1, 8, 10, 3001}, PLANISH_FORWARD, F16, 16}, {{9, 8, 10, 2905}, PLANISH_BACKWARD, F16, 32},
    };
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        norm_case c = groups_of(works[i].pass, PLANISH_LAYER, works[i].shape, true, works[i].type);
        set_device(90, works[i].multiprocessors);
        limits.cooperative = 1;
        c.weight = c.grad = F32;
        c.numbers = MEAN_100;
        emulate_case(c);
    }
}

/* An activation behind groups, in every way they go; behind other layers, in the general one. */
static void activations(void) {
    static const int64_t twice[] = {2, 3, 11, 16};
    static const int64_t shapes[][4] = {
        {3, 2, 8, 64}, {2, 3, 5, 49}, {1, 16, 10, 901}, {2, 7, 3, 2}, {2, 2, 40, 1600}};
    static const numbers of[] = {NORMAL, MEAN_1E4, MEAN_100};
    set_device(90, 2);
    for (int i = 0; i < 60; i++) {
        const bool last = i / 10 % 2;
        norm_case c = groups_of(both[i / 5 % 2], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 5], last, types[(i + i / 5) % 3]);
        c.activation = i % 4 == 3 ? PLANISH_RELU : PLANISH_SILU;
        c.stats = i % 9 == 8 ? F32 : F64; /* of f32 the general way, backward */
        c.numbers = of[(i + i / 10) % 3];
        c.weight_offset = i % 8 == 5;
        if (i % 6 == 4)
            c.weight = c.grad = F32;
        if (i % 11 == 10)
            c.has &= ~(i % 2 ? HAS(BIAS) : HAS(WEIGHT) | HAS(DWEIGHT));
        emulate_case(c);
    }
    for (int i = 0; i < 8; i++) {
        norm_case c = i % 2 ? channels_of(both[i / 2 % 2], PLANISH_LAYER, 2, 24, 20, types[i % 4])
                            : rows_of(both[i / 2 % 2], PLANISH_LAYER, 9, 200, types[i / 2]);
        c.activation = i % 3 ? PLANISH_SILU : PLANISH_RELU;
        emulate_case(c);
    }
    /* z of some hundreds, of either sign. */
    for (int i = 0; i < 8; i++) {
        norm_case c = groups_of(both[i % 2], PLANISH_LAYER, shapes[4], i / 2 % 2, types[i / 4]);
        c.activation = PLANISH_SILU;
        c.stats = F64;
        c.numbers = OUTLIER;
        emulate_case(c);
    }
    /* dy behind SiLU that f16 does not hold, or only as subnormal numbers. */
    static const struct {
        numbers x;
        double center, spread;
    } dys[] = {
        {SCALE_TINY, 0, 1e-6}, {SCALE_BIG, 6.2e4, 500}, {NORMAL, 0, 1e-6}, {OUTLIER, 0, 1e-7}};
    for (int i = 0; i < 8; i++) {
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, shapes[i % 2 * 4], false, F16);
        c.activation = PLANISH_SILU;
        c.stats = F64;
        c.numbers = dys[i / 2].x;
        c.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
        c.dy_center = dys[i / 2].center;
        c.dy_spread = dys[i / 2].spread;
        emulate_case(c);
    }
    limits.shared_per_block = 1280; /* no block holds a row */
    limits.max_cluster = 1;
    for (int t = 0; t < 2; t++) {
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, twice, false, F16);
        c.numbers = OUTLIER; /* whose rstd is far from 1 */
        c.activation = PLANISH_SILU;
        c.stats = F64;
        if (t)
            c.weight = c.grad = F32;
        emulate_case(c);
    }
}

/* Tiles that go on in the next image, with room between images and without, the last of them cut;
 * and lines that the blocks of a cluster share. */
static void channels_spanning(void) {
    static const int64_t shapes[][3] = {
        {3, 136, 336}, {2, 260, 784}, {5, 33, 272}, {1, 130, 304}, {2, 512, 336}};
    static const layout outs[] = {DENSE, PADDED};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 5; i++)
            for (int t = 0; t < 3; t++) {
                norm_case c = channels_of(both[pass], i == 2 ? PLANISH_RMS : PLANISH_LAYER,
                                          shapes[i][0], shapes[i][1], shapes[i][2], types[t]);
                c.numbers = (i + t) % 2 ? MEAN_100 : OUTLIER;
                c.in = c.out = outs[(i + t) % 2];
                if (t == 1)
                    c.weight = c.grad = F32;
                if (i == 3)
                    c.stats = F64;
                emulate_case(c);
            }
}

/* An outlier among the few pixels of a strip, whose pivot is far from all others'. */
static void strips_outliers(void) {
    static const int64_t shapes[][4] = {
        {5, 48, 1, 49}, {5, 48, 1, 196}, {5, 8, 4, 49}, {4, 3, 16, 25}, {2, 32, 8, 81}};
    set_device(90, 2);
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 3; t++)
            for (int again = 0; again < 4; again++) {
                norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[i], true, types[t]);
                c.numbers = OUTLIER;
                emulate_case(c);
            }
}

/* Lines of several channels that one block has all of (backward), and rows over two blocks
 * (forward). */
static void lines_and_halves(void) {
    static const struct {
        int64_t channels, pixels;
        element type;
    } shapes[] = {
        {256, 49, F16},  {512, 49, BF16}, {256, 25, F32},  {128, 81, F16},
        {64, 121, BF16}, {512, 9, F32},   {128, 98, BF16}, {32, 225, F16},
    };
    set_device(90, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        norm_case c = channels_of(PLANISH_BACKWARD, i == 6 ? PLANISH_RMS : PLANISH_LAYER, 11,
                                  shapes[i].channels, shapes[i].pixels, shapes[i].type);
        if (i % 3 == 1)
            c.weight = c.grad = F32;
        c.numbers = i % 2 ? OUTLIER : NORMAL;
        emulate_case(c);
    }
    for (int i = 0; i < 4; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i == 1 ? PLANISH_RMS : PLANISH_LAYER, i == 3 ? 1 : 5,
                              i == 2 ? 26632 : 32768, i % 2 ? BF16 : F16);
        emulate_case(c);
    }
}

/* ---- Statistics that are given ------------------------------------------------------------------
 */

/* A backward with statistics that are not x's own, in f32 and in another dtype; and with means that
 * are, off by an ULP or three. */
static void with_given(norm_case c) {
    static const struct {
        statistics given;
        double distance;
        numbers numbers;
    } kinds[] = {
        {RANDOM, 0, NORMAL}, {OFF_BY_ULPS, 3, MEAN_100},  {SHIFTED, 1, MEAN_100},
        {FROZEN, 0, NORMAL}, {OFF_BY_ULPS, -2, MEAN_1E4}, {SHIFTED, 100, NORMAL},
    };
    static const element others[] = {F64, BF16, F64, F16};
    static int turn;
    c.pass = PLANISH_BACKWARD;
    for (int i = 0; i < 4; i++) {
        const int k = i == 3 ? turn % 6 : turn % 2 * 3 + i;
        c.given = kinds[k].given;
        c.distance = kinds[k].distance;
        c.numbers = kinds[k].numbers;
        /* Where all results have 16 bits nothing is mended, and rows that are nearly constant show
         * it. */
        if (c.x != F64 && (turn % 3 || c.given == OFF_BY_ULPS))
            c.weight = c.grad = F32;
        if (i == 3)
            c.stats = others[turn % 4];
        /* 3 ULP of such a mean in 16 bits are more than f32 has digits for. */
        if (c.stats != F32 && c.stats != F64)
            c.numbers = NORMAL;
        emulate_case(c);
    }
    turn++;
}

static void given_rows(void) {
    static const struct {
        int64_t rows, cols;
        element type;
    } works[] = {
        {407, 24, BF16}, {407, 65, F16},   {37, 385, BF16},  {37, 500, F16},  {43, 100, F32},
        {43, 512, F32},  {11, 1536, BF16}, {11, 4096, F32},  {301, 1, F32},   {43, 267, F64},
        {9, 8200, BF16}, {12, 5632, F16},  {6, 18440, BF16}, {5, 20000, F16},
    };
    enum { WORKS = sizeof works / sizeof *works };
    for (int i = 0; i < WORKS; i++) {
        set_device(i == WORKS - 1 ? 80 : 90, i < 10 ? 2 : 16);
        with_given(
            rows_of(PLANISH_BACKWARD, PLANISH_LAYER, works[i].rows, works[i].cols, works[i].type));
    }
    set_device(90, 10);
    sharing_of_rows = (sharing){5, 64, 2, 3, 1};
    with_given(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 13, 1300, F32));
    sharing_of_rows.group = 0;
}

static void given_images(void) {
    static const int64_t channels_shapes[][3] = {{5, 24, 64},   {3, 17, 49},   {2, 1024, 49},
                                                 {2, 700, 196}, {2, 130, 304}, {11, 256, 49}};
    static const int64_t groups_shapes[][4] = {{3, 4, 8, 64},   {2, 3, 5, 49},    {2, 2, 64, 400},
                                               {2, 1, 9, 8192}, {4, 3, 40, 225},  {270, 5, 3, 9},
                                               {4, 7, 3, 2},    {1, 16, 10, 1601}};
    for (int i = 0; i < 6; i++) {
        set_device(i == 4 ? 80 : 90, 2);
        with_given(channels_of(PLANISH_BACKWARD, PLANISH_LAYER, channels_shapes[i][0],
                               channels_shapes[i][1], channels_shapes[i][2], types[i % 3]));
    }
    for (int i = 0; i < 16; i++) {
        set_device(i % 5 == 4 ? 80 : 90, 2);
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, groups_shapes[i / 2], i % 2,
                                types[(i + i / 2) % 3]);
        with_given(c);
        if (i % 3 == 1) {
            c.activation = i % 2 ? PLANISH_SILU : PLANISH_RELU;
            c.stats = F64;
            with_given(c);
        }
    }
    set_device(90, 16);
    limits.cooperative = 1; /* strips over blocks anywhere */
    with_given(groups_of(PLANISH_BACKWARD, PLANISH_LAYER, (int64_t[]){5, 8, 8, 1901}, true, F16));
}

static void given_otherwise(void) {
    set_device(90, 2);
    for (int i = 0; i < 4; i++) {
        norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 77, types[i]);
        c.in = c.out = INNER_STRIDE_2;
        c.activation = i % 2 ? PLANISH_SILU : PLANISH_IDENTITY;
        with_given(c);
        c.pass = PLANISH_APPLY;
        c.given = RANDOM;
        emulate_case(c);
    }
}

/* Activations behind rows, backward: within a warp, in a block, in clusters, by every dtype; with a
 * mean that was rounded and one that was not, and far from 0, which z shows. */
static void behind_rows(void) {
    static const int64_t cols[] = {3, 24, 100, 267, 768, 1536, 4096, 8200};
    static const numbers of[] = {NORMAL, MEAN_100, OUTLIER, MEAN_1E4, CONSTANT};
    for (int i = 0; i < 32; i++) {
        const int64_t n = cols[i % 8], rows = n < 100 ? 301 : n < 1000 ? 43 : 7;
        norm_case c = rows_of(PLANISH_BACKWARD, i % 5 == 4 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              types[(i + i / 8) % (n == 3 || n == 8200 ? 3 : 4)]);
        set_device(i % 7 == 6 ? 80 : 90, n > 4096 ? 16 : 2);
        c.activation = i % 3 == 2 ? PLANISH_RELU : PLANISH_SILU;
        c.numbers = of[i % 5];
        if (i % 4 == 1)
            c.stats = F64;
        if (i % 6 == 3)
            c.weight = c.grad = F32;
        if (i % 8 == 5)
            c.in = c.out = i % 16 == 5 ? PADDED : MISALIGNED;
        if (i % 11 == 7)
            c.has &= ~(HAS(BIAS) | HAS(DBIAS));
        if (i % 11 == 8)
            c.has &= ~HAS(DX);
        c.weight_offset = i == 10;
        emulate_case(c);
    }
    /* Too long for one read: the general kernels. */
    norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 20000, F32);
    set_device(80, 2);
    c.activation = PLANISH_SILU;
    emulate_case(c);
}

/* Activations behind norms over channels: whole images, tiles, odd ones, clusters; f32 with a mean
 * in f64. */
static void behind_channels(void) {
    static const int64_t shapes[][3] = {{5, 24, 64},   {3, 17, 49},   {2, 96, 320},   {2, 33, 1025},
                                        {2, 520, 196}, {2, 1024, 49}, {2, 1216, 196}, {9, 8, 3}};
    for (int i = 0; i < 16; i++) {
        norm_case c =
            channels_of(PLANISH_FORWARD, i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER, shapes[i % 8][0],
                        shapes[i % 8][1], shapes[i % 8][2], types[(i + i / 8) % 3]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        c.activation = i % 3 == 2 ? PLANISH_RELU : PLANISH_SILU;
        if (i % 2)
            c.weight = F32;
        if (i % 7 == 5)
            c.has &= ~HAS(BIAS);
        if (i % 3 == 1)
            c.out = CHANNELS_LAST;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        c.out = DENSE;
        c.grad = c.weight;
        c.numbers = i % 4 == 1 ? MEAN_100 : i % 4 == 2 ? MEAN_1E4 : NORMAL;
        if (c.x == F32 || i % 2)
            c.stats = F64;
        emulate_case(c);
    }
}

/* ReLU of 16 bits far from 0, backward: its slope jumps, so that what a mean lost shows there, too.
 */
static void behind_relu(void) {
    set_device(90, 2);
    for (int i = 0; i < 6; i++) {
        norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, i % 3 ? 43 : 301,
                              (int64_t[]){96, 768, 2304}[i % 3], i % 2 ? BF16 : F16);
        c.activation = PLANISH_RELU;
        c.numbers = MEAN_1E4;
        c.stats = i == 4 ? F64 : F32;
        emulate_case(c);
    }
    for (int i = 0; i < 2; i++) {
        norm_case c = channels_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 520, 196, F16);
        c.activation = PLANISH_RELU;
        c.numbers = MEAN_1E4;
        c.stats = i ? F64 : F32;
        emulate_case(c);
    }
}

int main(int argc, char **argv) {
    plain_f64_sums = true;
    const char *only = argument(argc, argv, "table", "");
    write_folder = argument(argc, argv, "write", NULL);
    unit_folder = argument(argc, argv, "units", NULL);
    share = atoll(argument(argc, argv, "share", "1"));
    parts = atoll(argument(argc, argv, "parts", "1"));
    part_number = atoll(argument(argc, argv, "part", "0"));
    other_numbers = atoll(argument(argc, argv, "numbers", "0"));
    if (!write_folder == !unit_folder) {
        fprintf(stderr, "wanted --write=FOLDER or --units=FOLDER\n");
        return 2;
    }
    static const struct {
        const char *name;
        void (*make)(void);
    } tables[] = {
        {"lengths", lengths},
        {"long", long_rows},
        {"rows cooperative", rows_cooperative},
        {"rows shared", rows_shared},
        {"outliers", outliers},
        {"rows", row_counts},
        {"centred", centred},
        {"tiled", tiled},
        {"runs", runs},
        {"outputs", outputs_and_dtypes},
        {"layouts", layouts},
        {"numbers", all_numbers},
        {"passes", other_passes},
        {"any layout", any_layout},
        {"any axes", any_axes},
        {"channels", channels},
        {"channels in clusters", channels_in_clusters},
        {"channels shifted", channels_shifted},
        {"channels to last", channels_to_last},
        {"channels otherwise", channels_otherwise},
        {"groups", groups},
        {"groups otherwise", groups_otherwise},
        {"group tiles", group_tiles},
        {"strips", strips},
        {"strips over few", strips_over_few},
        {"strips cooperative", strips_without_clusters},
        {"strips as planned", strips_as_planned},
        {"activations", activations},
        {"behind rows", behind_rows},
        {"behind channels", behind_channels},
        {"behind relu", behind_relu},
        {"channels spanning", channels_spanning},
        {"strips outliers", strips_outliers},
        {"lines and halves", lines_and_halves},
        {"given rows", given_rows},
        {"given images", given_images},
        {"given otherwise", given_otherwise},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!only[0] || !strcmp(only, tables[i].name))
            tables[i].make();
    if (write_folder) {
        printf("%d specialisations written\n", units_written);
        return 0;
    }
    if (!only[0] && share == 1)
        name_missing_variants();
    report_accuracy();
    printf("%d launches\n", launches_run);
    return test_finish("test_emulation");
}
