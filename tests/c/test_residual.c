/*
 * The forward kernels of rows with a residual, by the table of kernels itself: the norm of a sum
 * has the bits of an addition, rounded to the rows' dtype, with the norm after it. Of every dtype,
 * with and without an activation, with the sum in a tensor of its own, in the residual's place and
 * in x's, for data that lies in caches and beyond them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu/common/element.h"
#include "cpu/dispatch.h"
#include "tensor.h"

enum { MOST_ROWS = 45, MOST_COLS = 5000 };

/* Where the sum goes, and how the data lies. */
typedef enum place { OWN_TENSOR, OVER_RESIDUAL, OVER_X, PLACES } place;

static const element types[] = {F32, F16, BF16, F64};
static const dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64};

typedef struct rows {
    int64_t rows, cols, pitch; /* of all but y, which is dense: elements */
    element type;
    char *x, *residual, *sum, *y, *weight;
    float mean[MOST_ROWS], rstd[MOST_ROWS];
} rows;

static char *numbers(const rows *r, int64_t count, double spread, uint64_t seed) {
    const int bytes = element_bytes(r->type);
    char *data = aligned_alloc(64, ((size_t)(count * bytes) + 127) / 64 * 64);
    random_state state = {seed * 0x9e3779b97f4a7c15u};
    for (int64_t i = 0; i < count; i++)
        element_write(r->type, (unsigned char *)data + i * bytes, spread * random_normal(&state));
    return data;
}

static rows make_rows(int64_t count, int64_t cols, int64_t pitch, element type, double spread) {
    rows r = {.rows = count, .cols = cols, .pitch = pitch, .type = type};
    r.x = numbers(&r, count * pitch, spread, 1);
    r.residual = numbers(&r, count * pitch, spread, 2);
    r.sum = numbers(&r, count * pitch, 1, 3);
    r.y = numbers(&r, count * cols, 1, 4);
    r.weight = numbers(&r, 2 * cols, 1, 5);
    return r;
}

static void free_rows(rows *r) {
    char *all[] = {r->x, r->residual, r->sum, r->y, r->weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What the kernels are given of these rows, without a residual. */
static forward_args args_of(rows *r, planish_kind kind, planish_activation f, traffic t) {
    static cpu_hints hints;
    hints = (cpu_hints){.in_turn = t == TRAFFIC_AHEAD, .prefetch_sums = t != TRAFFIC_CACHED};
    const int64_t bytes = element_bytes(r->type);
    return (forward_args){
        .hints = &hints,
        .rows = r->rows,
        .cols = r->cols,
        .x = r->x,
        .x_pitch = r->pitch * bytes,
        .y = r->y,
        .y_pitch = r->cols * bytes,
        .weight = r->weight,
        .bias = kind == PLANISH_RMS ? NULL : r->weight + r->cols * bytes,
        .rule = {(double)r->cols, 1.0 / (double)r->cols, 1e-5, -INFINITY, NAN},
        .mean = {(char *)r->mean, sizeof(float), DTYPE_F32},
        .rstd = {(char *)r->rstd, sizeof(float), DTYPE_F32},
        .traffic = t,
        .kind = kind,
        .activation = f,
    };
}

static void run(const rows *r, const forward_args *args) {
    const row_kernels *kernels = &cpu_kernels_chosen()->of[dtypes[r->type]].rows[WEIGHT_SAME];
    kernels->forward[args->activation ? KIND_ACTIVATED : (int)args->kind](args);
}

/* x + residual, element by element: in double, from which 16 bits and f32 are rounded alike once or
 * twice. */
static void add_in_c(rows *r) {
    const int bytes = element_bytes(r->type);
    for (int64_t i = 0; i < r->rows * r->pitch; i++) {
        const double x = (double)element_read(r->type, (unsigned char *)r->x + i * bytes);
        const double residual =
            (double)element_read(r->type, (unsigned char *)r->residual + i * bytes);
        element_write(r->type, (unsigned char *)r->sum + i * bytes, x + residual);
    }
}

static bool same_bits(const float a[MOST_ROWS], const float b[MOST_ROWS]) {
    return !memcmp((const unsigned char *)a, (const unsigned char *)b, MOST_ROWS * sizeof *a);
}

static bool same_rows(const char *a, const char *b, const rows *r, int64_t pitch) {
    const int64_t bytes = element_bytes(r->type);
    bool same = true;
    for (int64_t i = 0; i < r->rows; i++)
        same &= !memcmp(a + i * pitch * bytes, b + i * pitch * bytes, (size_t)(r->cols * bytes));
    return same;
}

static void one(int64_t cols, int64_t rest, element type, planish_kind kind, planish_activation f,
                traffic t, place to, double spread) {
    test_case("%s %s 45x%lld, pitch %lld, spread %g, activation %d, traffic %d, sum %s",
              kind == PLANISH_RMS ? "rms" : "layer", element_name(type), (long long)cols,
              (long long)cols + rest, spread, f, t,
              to == OWN_TENSOR ? "apart"
              : to == OVER_X   ? "over x"
                               : "over the residual");
    rows apart = make_rows(MOST_ROWS, cols, cols + rest, type, spread);
    rows fused = make_rows(MOST_ROWS, cols, cols + rest, type, spread);
    forward_args args = args_of(&apart, kind, f, t);
    add_in_c(&apart);
    args.x = apart.sum;
    run(&apart, &args);
    args = args_of(&fused, kind, f, t);
    args.residual = fused.residual;
    args.residual_pitch = args.sum_pitch = args.x_pitch;
    args.sum = to == OWN_TENSOR ? fused.sum : to == OVER_X ? fused.x : fused.residual;
    run(&fused, &args);
    expect(same_rows(apart.sum, args.sum, &apart, apart.pitch), "another sum");
    expect(same_rows(apart.y, fused.y, &apart, cols), "another y");
    expect(same_bits(apart.rstd, fused.rstd), "another rstd");
    expect(kind == PLANISH_RMS || same_bits(apart.mean, fused.mean), "another mean");
    free_rows(&apart);
    free_rows(&fused);
}

int main(void) {
    static const int64_t cols[] = {1, 5, 24, 64, 96, 257, 512, 1024, 3000, 5000};
    static const traffic ways[] = {TRAFFIC_CACHED, TRAFFIC_AHEAD, TRAFFIC_STREAM};
    int turn = 0;
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
        for (int t = 0; t < 4; t++)
            for (int w = 0; w < 3; w++)
                for (place to = OWN_TENSOR; to < PLACES; to++, turn++) {
                    const planish_kind kind = (planish_kind)(turn % 2);
                    const planish_activation f = turn % 3 == 1 ? PLANISH_SILU : PLANISH_IDENTITY;
                    one(cols[c], turn % 4 == 3 ? 3 : 0, types[t], kind, f, ways[w], to, 1);
                    /* Rows that leave the range of f32 are done again, in f64. */
                    if (types[t] == F32 || types[t] == BF16)
                        one(cols[c], 0, types[t], kind, f, ways[w], to, 1e25);
                }
    return test_finish("residual");
}
