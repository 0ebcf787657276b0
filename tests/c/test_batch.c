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

#include "cases.h"
#include "check.h"
#include "same_on_tiers.h"

#define A PLANISH_AXIS

typedef struct shape {
    int ndim;
    int64_t size[4];
    uint64_t reduce, affine;
} shape;

static const shape shapes[] = {
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

static norm_case case_of(planish_pass pass, const shape *s, element type, element weight,
                         layout l) {
    norm_case c = rows_case(pass, PLANISH_LAYER, 1, 1);
    c.ndim = s->ndim;
    memcpy(c.shape, s->size, sizeof s->size);
    c.reduce_axes = s->reduce;
    c.affine_axes = s->affine;
    c.x = c.y = type;
    c.weight = c.grad = weight;
    c.stats = F64;
    c.in = c.out = l;
    return c;
}

static int64_t elements_of(const shape *s) {
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
                        c.activation = activations[turn / 4 % 5];
                        if (passes[p] == PLANISH_STATISTICS || n == SUBNORMAL)
                            c.activation = PLANISH_IDENTITY;
                        c.eps = n == SCALE_TINY && t != F16 ? 1e-70 : 1e-5;
                        c.weight_offset = turn % 5 == 2;
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
    static const shape large[] = {{2, {10000000, 1}, A(0), A(1)},
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

/* ---- Statistics that are kept, an addend, masks -----------------------------------------------
 */

/* Which tensors a run has beside x, and how they are made. */
typedef struct wanted {
    const char *name;
    planish_pass pass;
    planish_activation f;
    bool addend, daddend, running, given_sums, mask, saves;
} wanted;

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

typedef enum slot {
    T_X,
    T_WEIGHT,
    T_BIAS,
    T_Y,
    T_MEAN,
    T_RSTD,
    T_DY,
    T_DX,
    T_DWEIGHT,
    T_DBIAS,
    T_ADDEND,
    T_DADDEND,
    T_C1,
    T_C2,
    T_RUNNING_MEAN,
    T_RUNNING_VAR,
    SLOTS
} slot;

typedef struct run {
    const wanted *w;
    const shape *s;
    planish_norm op;
    element type;
    geometry g;
    tensor t[SLOTS];
    bool has[SLOTS];
    real *v[SLOTS]; /* before the run; of outputs what is wanted */
    real *bound[SLOTS];
} run;

static bool is_full(slot k) {
    return k == T_X || k == T_Y || k == T_DY || k == T_DX || k == T_ADDEND || k == T_DADDEND;
}
static bool is_affine(slot k) {
    return k == T_WEIGHT || k == T_BIAS || k == T_DWEIGHT || k == T_DBIAS;
}
static int64_t count_of(const run *r, slot k) {
    return is_full(k) ? r->g.elements : is_affine(k) ? r->g.channels : r->g.rows;
}
static bool is_output(const run *r, slot k) {
    const planish_pass p = r->w->pass;
    const bool forward = p == PLANISH_FORWARD;
    return ((k == T_MEAN || k == T_RSTD || k == T_RUNNING_MEAN || k == T_RUNNING_VAR) && forward) ||
           (k == T_Y && p != PLANISH_BACKWARD) || k == T_DX || k == T_DWEIGHT || k == T_DBIAS ||
           k == T_DADDEND;
}

static void add_tensor(run *r, slot k, element type, layout l) {
    int64_t size[4];
    int n = 0;
    for (int i = 0; i < r->s->ndim; i++) {
        const bool has =
            is_full(k) || (is_affine(k) ? r->s->affine >> i & 1 : !(r->s->reduce >> i & 1));
        if (has)
            size[n++] = r->s->size[i];
    }
    r->has[k] = true;
    tensor_make(&r->t[k], type, n, size, is_full(k) ? l : DENSE);
    r->v[k] = calloc((size_t)count_of(r, k) + 1, sizeof(real));
    r->bound[k] = calloc((size_t)count_of(r, k) + 1, sizeof(real));
}

static void add_tensors(run *r, element weight, element stats, layout l) {
    const wanted *w = r->w;
    const bool back = w->pass == PLANISH_BACKWARD,
               own = w->pass == PLANISH_FORWARD ? w->saves : !w->running;
    add_tensor(r, T_X, r->type, l);
    add_tensor(r, T_WEIGHT, weight, l);
    if (!back || (w->f && !w->mask))
        add_tensor(r, T_BIAS, weight, l);
    if (!back || w->mask)
        add_tensor(r, T_Y, r->type, l);
    if (own) {
        add_tensor(r, T_MEAN, F64, l);
        add_tensor(r, T_RSTD, F64, l);
    }
    if (w->running) {
        add_tensor(r, T_RUNNING_MEAN, stats, l);
        add_tensor(r, T_RUNNING_VAR, stats, l);
    }
    if (w->given_sums) {
        add_tensor(r, T_C1, stats, l);
        add_tensor(r, T_C2, stats, l);
    }
    if (w->addend)
        add_tensor(r, T_ADDEND, r->type, l);
    if (!back)
        return;
    add_tensor(r, T_DY, r->type, l);
    add_tensor(r, T_DX, r->type, l);
    add_tensor(r, T_DWEIGHT, weight, l);
    add_tensor(r, T_DBIAS, weight, l);
    if (w->daddend)
        add_tensor(r, T_DADDEND, r->type, l);
}

/* Numbers for all inputs, rounded to their types. */
static void fill(run *r, uint64_t seed) {
    random_state random = {seed};
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || (is_output(r, k) && k != T_RUNNING_MEAN && k != T_RUNNING_VAR))
            continue;
        for (int64_t i = 0; i < count_of(r, k); i++) {
            real value = random_normal(&random);
            if (k == T_X)
                value += 3 + (real)(r->g.row[i] % 5);
            if (k == T_RUNNING_MEAN || (k == T_MEAN && r->w->pass != PLANISH_FORWARD))
                value = 3 + (real)(i % 5) + value / 8;
            if (k == T_RUNNING_VAR || k == T_RSTD)
                value = 1 + fabsl(value) / 4;
            if (k == T_C1 || k == T_C2)
                value /= 8;
            r->v[k][i] = element_round(r->t[k].type, value);
        }
        tensor_write(&r->t[k].dl, r->v[k]);
    }
}

static real activated(planish_activation f, real z) {
    const real pi = 3.14159265358979323846264338327950288L;
    return f == PLANISH_RELU   ? (z > 0 ? z : 0)
           : f == PLANISH_SILU ? z / (1 + expl(-z))
           : f == PLANISH_GELU ? z * erfcl(-z / sqrtl(2)) / 2
           : f == PLANISH_GELU_TANH
               ? z * (1 + tanhl(sqrtl(2 / pi) * (z + .044715L * z * z * z))) / 2
           : f == PLANISH_RELU6     ? fminl(fmaxl(z, 0), 6)
           : f == PLANISH_HARDSWISH ? z * fminl(fmaxl(z + 3, 0), 6) / 6
                                    : z;
}
static real slope(planish_activation f, real z) {
    const real pi = 3.14159265358979323846264338327950288L, s = 1 / (1 + expl(-z));
    const real inner = sqrtl(2 / pi) * (z + .044715L * z * z * z), t = tanhl(inner);
    switch (f) {
    case PLANISH_RELU:
        return z > 0;
    case PLANISH_SILU:
        return s * (1 + z * (1 - s));
    case PLANISH_GELU:
        return erfcl(-z / sqrtl(2)) / 2 + z * expl(-z * z / 2) / sqrtl(2 * pi);
    case PLANISH_GELU_TANH:
        return (1 + t) / 2 + z / 2 * (1 - t * t) * sqrtl(2 / pi) * (1 + 3 * .044715L * z * z);
    case PLANISH_RELU6:
        return z > 0 && z < 6;
    case PLANISH_HARDSWISH:
        return z <= -3 ? 0 : z < 3 ? z / 3 + .5L : 1;
    default:
        return 1;
    }
}

/* Each row's mean and rstd, and its variance. */
static void moments(const run *r, real *mean, real *rstd, real *var) {
    for (int64_t e = 0; e < r->g.elements; e++)
        mean[r->g.row[e]] += r->v[T_X][e] / (real)r->g.cols;
    for (int64_t e = 0; e < r->g.elements; e++)
        var[r->g.row[e]] += powl(r->v[T_X][e] - mean[r->g.row[e]], 2) / (real)r->g.cols;
    for (int64_t i = 0; i < r->g.rows; i++)
        rstd[i] = 1 / sqrtl(var[i] + (real)r->op.eps);
}

static void given_moments(const run *r, real *mean, real *rstd) {
    for (int64_t i = 0; i < r->g.rows; i++) {
        mean[i] = r->v[r->w->running ? T_RUNNING_MEAN : T_MEAN][i];
        rstd[i] =
            r->w->running ? 1 / sqrtl(r->v[T_RUNNING_VAR][i] + (real)r->op.eps) : r->v[T_RSTD][i];
    }
}

static void want(run *r, slot k, int64_t i, real value, real bound) {
    if (!r->has[k])
        return;
    r->v[k][i] = value;
    r->bound[k][i] = bound + element_ulp(r->t[k].type, fabsl(value)) * .5001L;
}

static void want_forward(run *r, const real *mean, const real *rstd, const real *var, real unit) {
    const geometry *g = &r->g;
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real weighed = (r->v[T_X][e] - mean[row]) * rstd[row] * r->v[T_WEIGHT][c];
        const real added = r->has[T_ADDEND] ? r->v[T_ADDEND][e] : 0;
        const real z = weighed + r->v[T_BIAS][c] + added;
        const real terms = 12 + fabsl(weighed) + fabsl(r->v[T_BIAS][c]) + fabsl(added);
        want(r, T_Y, e, activated(r->op.activation, z), 8 * unit * terms);
    }
    for (int64_t i = 0; r->w->pass == PLANISH_FORWARD && i < g->rows; i++) {
        const real m = (real)r->op.momentum, n = (real)g->cols;
        want(r, T_MEAN, i, mean[i], 4 * unit);
        want(r, T_RSTD, i, rstd[i], 8 * unit * rstd[i]);
        if (!r->w->running)
            continue;
        want(r, T_RUNNING_MEAN, i, (1 - m) * r->v[T_RUNNING_MEAN][i] + m * mean[i], 8 * unit);
        want(r, T_RUNNING_VAR, i, (1 - m) * r->v[T_RUNNING_VAR][i] + m * var[i] * n / (n - 1),
             8 * unit * (1 + var[i]));
    }
}

static void want_backward(run *r, const real *mean, const real *rstd, real unit) {
    const geometry *g = &r->g;
    const size_t rows = (size_t)g->rows + 1, channels = (size_t)g->channels + 1;
    real *c1 = calloc(rows, sizeof *c1), *c2 = calloc(rows, sizeof *c2);
    real *most = calloc(rows, sizeof *most), *d = calloc((size_t)g->elements + 1, sizeof *d);
    real *sums[4];
    for (int k = 0; k < 4; k++)
        sums[k] = calloc(channels, sizeof(real));
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real xhat = (r->v[T_X][e] - mean[row]) * rstd[row];
        real z = xhat * r->v[T_WEIGHT][c] + (r->has[T_BIAS] ? r->v[T_BIAS][c] : 0);
        z += r->has[T_ADDEND] ? r->v[T_ADDEND][e] : 0;
        /* Where the mask of a ReLU is not sure there is nothing to mask. */
        if (r->op.activation == PLANISH_RELU && !r->has[T_Y] && fabsl(z) < 1e-3L) {
            r->v[T_DY][e] = 0;
            tensor_write(&r->t[T_DY].dl, r->v[T_DY]);
        }
        d[e] = r->v[T_DY][e];
        d[e] *= r->has[T_Y] ? r->v[T_Y][e] > 0 : slope(r->op.activation, z);
        const real of_d = 16 * unit * fabsl(r->v[T_DY][e]) * (1 + fabsl(z));
        want(r, T_DADDEND, e, d[e],
             r->op.activation == PLANISH_RELU || !r->op.activation ? 0 : of_d);
        sums[0][c] += d[e] * xhat;
        sums[1][c] += d[e];
        sums[2][c] += fabsl(d[e] * xhat) + fabsl(r->v[T_DY][e]);
        sums[3][c] += fabsl(d[e]) + fabsl(r->v[T_DY][e]);
        c1[row] += d[e] * r->v[T_WEIGHT][c] / (real)g->cols;
        c2[row] += d[e] * r->v[T_WEIGHT][c] * xhat / (real)g->cols;
    }
    for (int64_t i = 0; i < g->rows; i++) {
        c1[i] = r->w->running ? 0 : r->w->given_sums ? r->v[T_C1][i] : c1[i];
        c2[i] = r->w->running ? 0 : r->w->given_sums ? r->v[T_C2][i] : c2[i];
    }
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real xhat = (r->v[T_X][e] - mean[row]) * rstd[row], w = r->v[T_WEIGHT][c];
        const real terms =
            fabsl(r->v[T_DY][e] * w) * (1 + fabsl(xhat)) + fabsl(c1[row]) + fabsl(xhat * c2[row]);
        want(r, T_DX, e, rstd[row] * (d[e] * w - c1[row] - xhat * c2[row]),
             16 * unit * rstd[row] * (4 + terms));
    }
    for (int64_t c = 0; c < g->channels; c++) {
        want(r, T_DWEIGHT, c, sums[0][c], 16 * unit * sums[2][c]);
        want(r, T_DBIAS, c, sums[1][c], 16 * unit * sums[3][c]);
    }
    for (int k = 0; k < 4; k++)
        free(sums[k]);
    free(c1), free(c2), free(most), free(d);
}

static void want_all(run *r) {
    const size_t rows = (size_t)r->g.rows + 1;
    const real unit = r->type == F64 ? 0x1p-53L : 0x1p-24L;
    real *mean = calloc(rows, sizeof *mean), *rstd = calloc(rows, sizeof *rstd);
    real *var = calloc(rows, sizeof *var);
    if (r->w->pass == PLANISH_BACKWARD && !r->w->running && !r->w->given_sums) {
        /* The row's own, saved in f64. */
        moments(r, mean, rstd, var);
        for (int64_t i = 0; i < r->g.rows; i++) {
            r->v[T_MEAN][i] = mean[i] = (double)mean[i];
            r->v[T_RSTD][i] = rstd[i] = (double)rstd[i];
        }
        tensor_write(&r->t[T_MEAN].dl, r->v[T_MEAN]);
        tensor_write(&r->t[T_RSTD].dl, r->v[T_RSTD]);
    } else if (r->w->pass == PLANISH_FORWARD) {
        moments(r, mean, rstd, var);
    } else {
        given_moments(r, mean, rstd);
    }
    if (r->w->pass == PLANISH_BACKWARD)
        want_backward(r, mean, rstd, unit);
    else
        want_forward(r, mean, rstd, var, unit);
    free(mean), free(rstd), free(var);
}

static planish_tensors tensors_of(run *r) {
    planish_tensors t = {.struct_size = sizeof t};
    const DLTensor **const fields[SLOTS] = {&t.x,       &t.weight, &t.bias,         &t.y,
                                            &t.mean,    &t.rstd,   &t.dy,           &t.dx,
                                            &t.dweight, &t.dbias,  &t.addend,       &t.daddend,
                                            &t.c1,      &t.c2,     &t.running_mean, &t.running_var};
    for (slot k = 0; k < SLOTS; k++)
        *fields[k] = r->has[k] ? &r->t[k].dl : NULL;
    return t;
}

static void run_begin(run *r, const wanted *w, const shape *s, element type, element weight,
                      element stats, layout l, uint64_t seed) {
    *r = (run){.w = w, .s = s, .type = type};
    r->op = planish_norm_op(PLANISH_LAYER, s->reduce, s->affine, 1e-3);
    r->op.momentum = .3;
    r->op.activation = w->f;
    r->g = geometry_make(s->ndim, s->size, s->reduce, s->affine);
    add_tensors(r, weight, stats, l);
    fill(r, seed);
}

static bool run_do(run *r, planish_exec exec) {
    const planish_tensors t = tensors_of(r);
    char message[512] = "";
    size_t bytes = 0;
    exec.struct_size = sizeof exec;
    exec.message = message;
    exec.message_bytes = sizeof message;
    planish_status status = planish_norm_workspace_bytes(&r->op, r->w->pass, &t, &bytes, &exec);
    guarded workspace = guarded_make(bytes, 64);
    exec.workspace = workspace.data;
    exec.workspace_bytes = bytes;
    if (!status)
        status = planish_norm_run(&r->op, r->w->pass, &t, &exec);
    guarded_free(&workspace);
    return expect(!status, "%s: %s", planish_status_name(status), message);
}

static void run_check(run *r) {
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || !is_output(r, k))
            continue;
        const int64_t n = count_of(r, k);
        real *found = calloc((size_t)n + 1, sizeof *found), worst = 0;
        int64_t at = 0;
        tensor_read(&r->t[k].dl, found);
        for (int64_t i = 0; i < n; i++) {
            const bool both_nan = isnan(found[i]) && isnan(r->v[k][i]);
            const real off = both_nan ? 0 : fabsl(found[i] - r->v[k][i]) / r->bound[k][i];
            if (!(off <= worst))
                worst = off, at = i;
        }
        expect(worst <= 1, "slot %d[%lld] is %Lg, wanted %Lg: off %Lg bounds", (int)k,
               (long long)at, found[at], r->v[k][at], worst);
        expect(tensor_intact(&r->t[k]), "slot %d: bytes between elements changed", (int)k);
        free(found);
    }
}

static uint64_t run_digest(const run *r) {
    uint64_t all = 0xcbf29ce484222325u;
    for (slot k = 0; k < SLOTS; k++) {
        if (!r->has[k] || !is_output(r, k))
            continue;
        cursor c = cursor_begin(&r->t[k].dl);
        const int bytes = element_bytes(r->t[k].type);
        for (int64_t i = 0; i < count_of(r, k); i++, cursor_next(&c))
            for (int b = 0; b < bytes; b++)
                all = (all ^ c.at[b]) * 0x100000001b3u;
    }
    return all;
}

static void run_end(run *r) {
    for (slot k = 0; k < SLOTS; k++)
        if (r->has[k]) {
            tensor_free(&r->t[k]);
            free(r->v[k]), free(r->bound[k]);
        }
    geometry_free(&r->g);
}

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
                    run r;
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
            run r;
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

/* ---- What changes no bit, and what does not fit ------------------------------------------------
 */

static uint64_t digest_of(const wanted *w, const shape *s, element t, layout l, int threads) {
    run r;
    const planish_exec many = exec_threads(&threads), alone = {.struct_size = sizeof alone};
    run_begin(&r, w, s, t, t == F64 ? F64 : F32, t == F64 ? F64 : F32, l, 7);
    want_all(&r);
    run_do(&r, threads > 1 ? many : threads ? alone : exec_backwards());
    const uint64_t digest = run_digest(&r);
    run_end(&r);
    return digest;
}

static uint64_t bits(bool alone) {
    static const shape large[] = {{4, {8, 48, 28, 28}, A(0) | A(2) | A(3), A(1)},
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

typedef void change(run *r, planish_tensors *t);
static void lone_running(run *r, planish_tensors *t) {
    (void)r, t->running_var = NULL;
}
static void both_kinds(run *r, planish_tensors *t) {
    (void)r, t->mean = t->running_mean;
}
static void momentum_nan(run *r, planish_tensors *t) {
    (void)t, r->op.momentum = NAN;
}
static void rms_running(run *r, planish_tensors *t) {
    (void)t, r->op.kind = PLANISH_RMS;
}
static void lone_c1(run *r, planish_tensors *t) {
    (void)r, t->c2 = NULL;
}
static void silu_mask(run *r, planish_tensors *t) {
    (void)t, r->op.activation = PLANISH_SILU;
}
static void mask_and_addend(run *r, planish_tensors *t) {
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
        run r;
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
            run r;
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
