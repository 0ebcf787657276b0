/*
 * A backward that is cut in two, PLANISH_BACKWARD_STATISTICS and PLANISH_BACKWARD with c1 and c2:
 * each half against the reference, over every dtype, layout and kind of rows; and rows that are cut
 * into parts, whose c1 and c2 are merged between the halves, against the backward of the whole.
 */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static const element types[] = {F32, BF16, F64, F16};
static int64_t made;

static void run_one(norm_case c) {
    static const statistics given[] = {OWN, RANDOM, FROZEN, SHIFTED};
    c.seed = (uint64_t)++made;
    c.given = given[made % 4];
    c.distance = 1;
    c.op.weight_offset = made / 4 % 2;
    if (made % 5 == 3)
        c.has &= ~HAS(WEIGHT);
    if (made % 7 == 2)
        c.has &= ~(made % 2 ? HAS(DWEIGHT) : HAS(DBIAS));
    if (made % 7 == 4)
        c.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
    if (made % 11 == 6 && c.pass == PLANISH_BACKWARD)
        c.has = (c.has & ~HAS(DX)) | HAS(DWEIGHT);
    planish_exec exec = exec_backwards();
    run_case(&c, made % 2 ? &exec : NULL);
}

static planish_kind first_kind = PLANISH_LAYER, last_kind = PLANISH_RMS;

static void both_halves(norm_case c) {
    c.has |= HAS(C1) | HAS(C2);
    for (planish_kind kind = first_kind; kind <= last_kind; kind++)
        for (int half = 0; half < 2; half++) {
            c.op.kind = kind;
            if (kind == PLANISH_L2 && made % 4 < 2)
                case_set_length(&c);
            c.pass = half ? PLANISH_BACKWARD : PLANISH_BACKWARD_STATISTICS;
            run_one(c);
        }
}

static void rows(void) {
    static const int64_t cols[] = {1, 2, 5, 17, 32, 33, 100, 256, 1000, 1024, 1500, 5000};
    static const numbers values[] = {NORMAL, MEAN_100, MEAN_1E4, SCALE_TINY, OUTLIER, BEGINNING};
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int t = 0; t < 4; t++)
            for (int s = 0; s < 2; s++) {
                norm_case c = rows_case(0, 0, t % 2 ? 3 : 37, cols[i]);
                c.x = c.dx = c.y = c.weight = c.grad = types[t];
                c.stats = s || types[t] == F64 ? F64 : F32;
                if (s && types[t] != F64)
                    c.weight = c.grad = F32;
                c.numbers = c.stats == F64 ? values[made / 8 % 6] : NORMAL;
                both_halves(c);
            }
}

static void layouts(void) {
    static const layout all[] = {INNER_STRIDE_2, REVERSED, PERMUTED, PADDED, BROADCAST_FIRST};
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 4; t++) {
            norm_case c = rows_case(0, 0, 7, i % 2 ? 130 : 1100);
            c.x = c.dx = types[t];
            c.y = c.weight = types[(t + i) % 4];
            c.grad = types[(t + 1) % 4];
            c.stats = F64;
            c.in = all[i];
            c.full_rank = i % 2;
            both_halves(c);
        }
    for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++)
        for (int l = 0; l < 2; l++) {
            norm_case c = image_case(0, 0, layer, 2, 12, 5, 7, 4);
            c.stats = F64;
            c.in = c.out = l ? CHANNELS_LAST : DENSE;
            both_halves(c);
        }
}

/* Rows whose arithmetic leaves the range of f32 though the sums and dx do not. */
static void far_from_one(void) {
    for (int i = 0; i < 4; i++) {
        norm_case c = rows_case(0, 0, 5, 300);
        c.stats = F64;
        c.numbers = i % 2 ? SCALE_BIG : SCALE_MIXED;
        both_halves(c);
    }
}

/* ---- Parts of rows --------------------------------------------------------------------------- */

/* Columns [begin, end) of a tensor of two axes. */
typedef struct columns {
    DLTensor tensor;
    int64_t shape[2], strides[2];
} columns;

static const DLTensor *cut(columns *v, const DLTensor *whole, int64_t begin, int64_t end) {
    const int last = whole->ndim - 1;
    v->tensor = *whole;
    for (int i = 0; i < whole->ndim; i++) {
        v->shape[i] = whole->shape[i];
        v->strides[i] = whole->strides ? whole->strides[i] : i == last ? 1 : whole->shape[last];
    }
    v->shape[last] = end - begin;
    v->tensor.shape = v->shape;
    v->tensor.strides = v->strides;
    v->tensor.byte_offset += (uint64_t)(begin * v->strides[last] * (whole->dtype.bits / 8));
    return &v->tensor;
}

/* Runs `pass` on columns [begin, end) of the case's tensors, with these c1 and c2. */
static void run_part(bundle *b, planish_pass pass, int64_t begin, int64_t end, const DLTensor *c1,
                     const DLTensor *c2) {
    columns view[6];
    planish_tensors t = {.struct_size = sizeof t,
                         .x = cut(&view[0], b->tensors.x, begin, end),
                         .dy = cut(&view[1], b->tensors.dy, begin, end),
                         .weight = cut(&view[2], b->tensors.weight, begin, end),
                         .mean = b->tensors.mean,
                         .rstd = b->tensors.rstd,
                         .c1 = b->test.op.kind == PLANISH_LAYER ? c1 : NULL,
                         .c2 = c2};
    if (pass == PLANISH_BACKWARD_STATISTICS) {
        t.dweight = cut(&view[3], b->tensors.dweight, begin, end);
        t.dbias = cut(&view[4], b->tensors.dbias, begin, end);
    } else {
        t.dx = cut(&view[5], b->tensors.dx, begin, end);
    }
    char message[512] = "";
    planish_exec exec = {.struct_size = sizeof exec, .message = message, .message_bytes = 512};
    size_t bytes = 0;
    expect(!planish_norm_workspace_bytes(&b->test.op, pass, &t, &bytes, &exec), "%s", message);
    exec.workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    exec.workspace_bytes = bytes;
    expect(!planish_norm_run(&b->test.op, pass, &t, &exec), "%s", message);
    free(exec.workspace);
}

/* Even, uneven and empty parts: dx, dweight and dbias within the bounds of the whole. */
static void parts(planish_kind kind, element type, int64_t cols, const int64_t ends[], int count) {
    enum { ROWS = 19 };
    norm_case c = rows_case(PLANISH_BACKWARD, kind, ROWS, cols);
    char text[512];
    c.x = c.dx = c.y = c.weight = c.grad = type;
    c.stats = F64;
    c.numbers = MEAN_100;
    c.seed = (uint64_t)++made;
    test_case("in %d parts: %s", count, case_text(&c, text, sizeof text));
    bundle b;
    bundle_make(&b, &c);
    double whole[2][ROWS] = {{0}}, part_of[2][ROWS];
    int64_t row_sizes[] = {ROWS};
    DLTensor of_part[2], of_whole[2];
    for (int i = 0; i < 2; i++) {
        of_part[i] = (DLTensor){.data = part_of[i],
                                .device = {kDLCPU, 0},
                                .ndim = 1,
                                .dtype = {kDLFloat, 64, 1},
                                .shape = row_sizes};
        of_whole[i] = of_part[i];
        of_whole[i].data = whole[i];
    }
    for (int i = 0; i < count; i++) {
        const int64_t begin = i ? ends[i - 1] : 0;
        run_part(&b, PLANISH_BACKWARD_STATISTICS, begin, ends[i], &of_part[0], &of_part[1]);
        const double share = kind == PLANISH_L2 ? 1 : (double)(ends[i] - begin) / (double)cols;
        for (int s = kind != PLANISH_LAYER; s < 2; s++)
            for (int r = 0; r < ROWS; r++)
                whole[s][r] += part_of[s][r] * share;
    }
    for (int i = 0; i < count; i++)
        run_part(&b, PLANISH_BACKWARD, i ? ends[i - 1] : 0, ends[i], &of_whole[0], &of_whole[1]);
    bundle_check(&b);
    bundle_free(&b);
}

static void cut_rows(void) {
    static const int64_t even[] = {250, 500, 750, 1000}, uneven[] = {1, 1, 600, 937, 1000},
                         two[] = {37, 100};
    for (planish_kind kind = first_kind; kind <= last_kind; kind++)
        for (int t = 0; t < 4; t++) {
            parts(kind, types[t], 1000, even, 4);
            parts(kind, types[t], 1000, uneven, 5);
            parts(kind, types[t], 100, two, 2);
        }
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void refused(void) {
    static const struct {
        planish_pass pass;
        planish_activation activation;
        part without;
        planish_status status;
        const char *words;
    } calls[] = {
        {PLANISH_BACKWARD_STATISTICS, PLANISH_SILU, PARTS, PLANISH_ERROR_ARGUMENT,
         "op->activation is 1"},
        {PLANISH_BACKWARD_STATISTICS, 0, C2, PLANISH_ERROR_NULL_POINTER, "c2 is NULL"},
        {PLANISH_BACKWARD_STATISTICS, 0, C1, PLANISH_ERROR_NULL_POINTER, "c1 is NULL"},
        {PLANISH_BACKWARD_STATISTICS, 0, MEAN, PLANISH_ERROR_NULL_POINTER, "mean is NULL"},
        {PLANISH_BACKWARD, 0, C1, PLANISH_ERROR_NULL_POINTER, "c1 is NULL"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        norm_case c = rows_case(calls[i].pass, PLANISH_LAYER, 3, 100);
        c.has |= HAS(C1) | HAS(C2);
        char message[512] = "";
        test_case("refused: %s", calls[i].words);
        bundle b;
        bundle_make(&b, &c);
        b.test.op.activation = calls[i].activation;
        if (calls[i].without != PARTS)
            *tensors_field(&b.tensors, calls[i].without) = NULL;
        const planish_status status = bundle_run(&b, NULL, message, sizeof message);
        expect(status == calls[i].status && strstr(message, calls[i].words), "%s: %s",
               planish_status_name(status), message);
        bundle_free(&b);
    }
}

int main(void) {
    rows();
    layouts();
    far_from_one();
    cut_rows();
    refused();
    first_kind = last_kind = PLANISH_L2;
    rows();
    layouts();
    cut_rows();
    report_accuracy();
    return test_finish("halves of a backward");
}
