/*
 * planish in a small inference engine: a transformer of fixed weights with int8 matrix products, on
 * threads of its own. Between two layers stand a residual, RMSNorm and the quantisation of what the
 * next product reads: one call of planish, planned once. The same engine with plain loops in its
 * place is timed beside it, and has to agree.
 *
 *     s = delta + stream;   q, scale = int8(s / sqrt(mean(s^2) + eps) * weight), by row
 *
 *     cc -O2 -pthread engine.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"

enum { TOKENS = 64, WIDTH = 256, LAYERS = 3, STEPS = 3 };
static const float EPS = 1e-6f;

/* A product's weights: int8, with one scale. */
typedef struct matrix {
    int8_t at[WIDTH][WIDTH];
    float scale;
} matrix;

typedef struct engine {
    pool threads;
    planish_plan *norm; /* NULL: plain loops */
    void *workspace;
    size_t workspace_bytes;
    matrix query, key, value, up;
    float weight[WIDTH];
    float stream[TOKENS][WIDTH], delta[TOKENS][WIDTH], scale[TOKENS];
    float a[3][TOKENS][WIDTH];
    int8_t q[TOKENS][WIDTH];
    double seconds; /* in norms */
} engine;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- What stands between layers -------------------------------------------------------------- */

static void plain_norm(engine *e) {
    for (int t = 0; t < TOKENS; t++) {
        float square = 0, most = 0, z[WIDTH];
        for (int c = 0; c < WIDTH; c++) {
            e->stream[t][c] += e->delta[t][c];
            square += e->stream[t][c] * e->stream[t][c];
        }
        const float rstd = 1 / sqrtf(square / WIDTH + EPS);
        for (int c = 0; c < WIDTH; c++) {
            z[c] = e->stream[t][c] * rstd * e->weight[c];
            most = fmaxf(most, fabsf(z[c]));
        }
        e->scale[t] = most > 0 ? most / 127 : 1;
        for (int c = 0; c < WIDTH; c++)
            e->q[t][c] = (int8_t)lrintf(z[c] / e->scale[t]);
    }
}

static int norm(engine *e) {
    const double begin = now();
    planish_status status = PLANISH_OK;
    if (e->norm) {
        /* sum may be the residual itself. */
        const planish_buffers buffers = {.struct_size = sizeof buffers,
                                         .x = e->delta,
                                         .residual = e->stream,
                                         .sum = e->stream,
                                         .weight = e->weight,
                                         .q = e->q,
                                         .y_scales = e->scale};
        const planish_exec exec = {.struct_size = sizeof exec,
                                   .parallel_for = pool_for,
                                   .parallel_context = &e->threads,
                                   .workspace = e->workspace,
                                   .workspace_bytes = e->workspace_bytes};
        status = planish_plan_run(e->norm, &buffers, &exec);
    } else {
        plain_norm(e);
    }
    e->seconds += now() - begin;
    return status != PLANISH_OK;
}

/* Made once: shapes, dtypes and the operator, without data. */
static int plan_norm(engine *e) {
    int64_t shape[] = {TOKENS, WIDTH};
    const DLTensor full = {
        .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    DLTensor row = full, column = full, q = full;
    row.ndim = column.ndim = 1;
    column.shape = shape + 1;
    q.dtype = (DLDataType){kDLInt, 8, 1};
    const planish_tensors tensors = {.struct_size = sizeof tensors,
                                     .x = &full,
                                     .residual = &full,
                                     .sum = &full,
                                     .weight = &column,
                                     .q = &q,
                                     .y_scales = &row};
    const planish_norm op = planish_rms_norm_op(2, 1, EPS);
    char message[256];
    if (planish_plan_create(&op, PLANISH_FORWARD, &tensors, &e->norm, message, sizeof message))
        return fprintf(stderr, "%s\n", message), 1;
    e->workspace_bytes = (planish_plan_workspace_bytes(e->norm) + 63) / 64 * 64;
    e->workspace = aligned_alloc(64, e->workspace_bytes ? e->workspace_bytes : 64);
    return !e->workspace;
}

/* ---- The rest of the engine ------------------------------------------------------------------ */

typedef struct product {
    const engine *e;
    const matrix *m;
    float (*to)[WIDTH];
} product;

static void product_rows(void *data, int64_t begin, int64_t end) {
    const product *p = data;
    for (int64_t t = begin; t < end; t++)
        for (int o = 0; o < WIDTH; o++) {
            int32_t sum = 0;
            for (int c = 0; c < WIDTH; c++)
                sum += p->e->q[t][c] * p->m->at[o][c];
            p->to[t][o] = (float)sum * p->e->scale[t] * p->m->scale;
        }
}

static void multiply(engine *e, const matrix *m, float (*to)[WIDTH]) {
    product p = {e, m, to};
    pool_for(&e->threads, TOKENS, product_rows, &p);
}

/* Causal attention of one head, into delta. */
static void attend(engine *e) {
    for (int t = 0; t < TOKENS; t++) {
        float share[TOKENS], total = 0;
        for (int s = 0; s <= t; s++) {
            float dot = 0;
            for (int c = 0; c < WIDTH; c++)
                dot += e->a[0][t][c] * e->a[1][s][c];
            total += share[s] = expf(dot / sqrtf(WIDTH));
        }
        memset(e->delta[t], 0, sizeof e->delta[t]);
        for (int s = 0; s <= t; s++)
            for (int c = 0; c < WIDTH; c++)
                e->delta[t][c] += share[s] / total * e->a[2][s][c];
    }
}

static int layer(engine *e) {
    if (norm(e))
        return 1;
    multiply(e, &e->query, e->a[0]);
    multiply(e, &e->key, e->a[1]);
    multiply(e, &e->value, e->a[2]);
    attend(e);
    if (norm(e))
        return 1;
    multiply(e, &e->up, e->a[0]);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        (&e->delta[0][0])[i] = fmaxf((&e->a[0][0][0])[i], 0);
    return 0;
}

static float noise(uint32_t *state) { /* from -1 to 1 */
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static int run(engine *e) {
    matrix *all[] = {&e->query, &e->key, &e->value, &e->up};
    uint32_t seed = 1;
    for (int m = 0; m < 4; m++) {
        all[m]->scale = 0.1f / 127;
        for (int i = 0; i < WIDTH * WIDTH; i++)
            (&all[m]->at[0][0])[i] = (int8_t)(127 * noise(&seed));
    }
    for (int c = 0; c < WIDTH; c++)
        e->weight[c] = 1 + 0.25f * noise(&seed);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        (&e->stream[0][0])[i] = noise(&seed);
    for (int i = 0; i < STEPS * LAYERS; i++)
        if (layer(e))
            return 1;
    return norm(e);
}

/* Not fmax, by which gcc 12 ends with an internal error for aarch64 here. */
static double larger(double a, double b) {
    return a > b ? a : b;
}

int main(void) {
    engine *by_planish = calloc(1, sizeof(engine)), *plain = calloc(1, sizeof(engine));
    if (!by_planish || !plain || pool_start(&by_planish->threads) || pool_start(&plain->threads) ||
        plan_norm(by_planish) || run(by_planish) || run(plain))
        return 1;
    double off = 0, most = 0;
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        const double a = (&by_planish->stream[0][0])[i], b = (&plain->stream[0][0])[i];
        off = larger(off, fabs(a - b));
        most = larger(most, fabs(b));
    }
    printf("norms: planish %.0f us, plain loops %.0f us (%.1fx); streams differ by %.1e of %.1e\n",
           1e6 * by_planish->seconds, 1e6 * plain->seconds, plain->seconds / by_planish->seconds,
           off, most);
    pool_stop(&by_planish->threads);
    pool_stop(&plain->threads);
    planish_plan_destroy(by_planish->norm);
    free(by_planish->workspace);
    free(by_planish);
    free(plain);
    return !(off < 0.02 * most);
}
