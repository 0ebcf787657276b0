/* Cases of the tables; see cases.h. bounds.c has the comparison with the reference. */
#include "cases.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kinds.h"

static const char *const numbers_names[NUMBERS_COUNT] = {
    "normal",   "mean 100", "mean 1e4",  "scale big",   "scale tiny",
    "constant", "outlier",  "subnormal", "scale mixed", "beginning",
};
static const char *const statistics_names[STATISTICS_COUNT] = {
    "own", "own by f32", "random", "frozen", "shifted", "off by ULP",
};
static const char *const pass_names[] = {
    "forward", "backward", "backward from y", "statistics", "apply", "backward statistics",
};

const char *numbers_name(numbers n) {
    return numbers_names[n];
}

/* The place of a part's field behind the first. */
static size_t place_of(part p) {
    const size_t first = offsetof(planish_tensors, c1) - offsetof(planish_tensors, x);
    return p < C1 ? (size_t)p : first / sizeof(void *) + (size_t)(p - C1);
}

const char *part_name(part p) {
    return planish_tensor_name((int)place_of(p));
}

norm_case rows_case(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols) {
    return (norm_case){
        .pass = pass,
        .kind = kind,
        .ndim = 2,
        .shape = {rows, cols},
        .reduce_axes = PLANISH_AXIS(1),
        .affine_axes = PLANISH_AXIS(1),
        .eps = 1e-5,
        .has =
            HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD) | HAS(DX) | HAS(DWEIGHT) | HAS(DBIAS),
        .seed = 1,
    };
}

norm_case image_case(planish_pass pass, planish_kind kind, image_layer layer, int64_t batch,
                     int64_t channels, int64_t height, int64_t width, int64_t groups) {
    norm_case c = rows_case(pass, kind, 1, 1);
    const bool grouped = layer == GROUP_NORM;
    const int64_t image[] = {batch, channels, height, width};
    const int64_t view[] = {batch, groups, channels / groups, height, width};
    c.ndim = grouped ? 5 : 4;
    memcpy(c.shape, grouped ? view : image, (size_t)c.ndim * sizeof *c.shape);
    c.reduce_axes = layer == CHANNEL_NORM ? 0x2 : grouped ? 0x1c : 0xc;
    c.affine_axes = grouped ? 0x6 : 0x2;
    return c;
}

void case_set_length(norm_case *c) {
    double cols = 1;
    for (int i = 0; i < c->ndim; i++)
        cols *= c->reduce_axes >> i & 1 ? (double)c->shape[i] : 1;
    c->eps = sqrt(cols);
}

const char *case_text(const norm_case *c, char *text, size_t bytes) {
    static const char *const activations[] = {"",           "+silu",  "+relu",     "+gelu",
                                              "+gelu_tanh", "+relu6", "+hardswish"};
    size_t n = (size_t)snprintf(text, bytes, "%s %s%s", pass_names[c->pass], kind_text(c->kind),
                                activations[c->activation]);
    for (int i = 0; i < c->ndim && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", i ? "x" : " ", (long long)c->shape[i]);
    if (n < bytes)
        snprintf(text + n, bytes - n,
                 " R=%llx A=%llx eps=%g offset=%d x=%s y=%s w=%s dw=%s stats=%s has=%x in=%s "
                 "out=%s params=%s%s numbers=%s given=%s %g dy=%g+-%g seed=%llu",
                 (unsigned long long)c->reduce_axes, (unsigned long long)c->affine_axes, c->eps,
                 c->weight_offset, element_name(c->x), element_name(c->y), element_name(c->weight),
                 element_name(c->grad), element_name(c->stats), c->has, layout_name(c->in),
                 layout_name(c->out), layout_name(c->params), c->full_rank ? " full rank" : "",
                 numbers_name(c->numbers), statistics_names[c->given], c->distance, c->dy_center,
                 c->dy_spread, (unsigned long long)c->seed);
    return text;
}

const DLTensor **tensors_field(planish_tensors *t, part p) {
    char *first = (char *)t + offsetof(planish_tensors, x);
    return (const DLTensor **)(void *)first + place_of(p);
}

void **buffers_field(planish_buffers *b, part p) {
    char *first = (char *)b + offsetof(planish_buffers, x);
    return (void **)(void *)first + place_of(p);
}

/* Which parts a pass must have and may have, and which of all it writes. */
typedef struct signature {
    unsigned required, optional, written;
} signature;

static signature signature_of(planish_pass pass, planish_kind kind, planish_activation activation) {
    unsigned mean = kind == PLANISH_LAYER ? HAS(MEAN) : 0;
    unsigned gradients = HAS(DX) | HAS(DWEIGHT) | HAS(DBIAS);
    unsigned means = (mean ? HAS(C1) : 0) | HAS(C2);
    switch (pass) {
    case PLANISH_FORWARD:
        return (signature){HAS(X) | HAS(Y), HAS(WEIGHT) | HAS(BIAS) | mean | HAS(RSTD),
                           HAS(Y) | mean | HAS(RSTD)};
    case PLANISH_BACKWARD:
        return (signature){HAS(DY) | HAS(X) | mean | HAS(RSTD),
                           HAS(WEIGHT) | (activation ? HAS(BIAS) : 0) | gradients | means,
                           gradients};
    case PLANISH_BACKWARD_FROM_Y:
        return (signature){HAS(DY) | HAS(Y) | HAS(RSTD), HAS(WEIGHT) | HAS(BIAS) | gradients,
                           gradients};
    case PLANISH_STATISTICS:
        return (signature){HAS(X) | mean | HAS(M2), 0, mean | HAS(M2)};
    case PLANISH_BACKWARD_STATISTICS:
        return (signature){HAS(DY) | HAS(X) | mean | HAS(RSTD) | means,
                           HAS(WEIGHT) | HAS(DWEIGHT) | HAS(DBIAS),
                           means | HAS(DWEIGHT) | HAS(DBIAS)};
    default:
        return (signature){HAS(X) | mean | HAS(RSTD) | HAS(Y), HAS(WEIGHT) | HAS(BIAS), HAS(Y)};
    }
}

bool part_is_output(planish_pass pass, part p) {
    return signature_of(pass, PLANISH_LAYER, PLANISH_IDENTITY).written >> p & 1;
}

static element part_element(const norm_case *c, part p) {
    switch (p) {
    case X:
    case DX:
        return c->x;
    case Y:
    case DY:
        return c->y;
    case WEIGHT:
    case BIAS:
        return c->weight;
    case DWEIGHT:
    case DBIAS:
        return c->grad;
    default:
        return c->stats;
    }
}

static layout part_layout(const norm_case *c, part p) {
    layout wanted = DENSE;
    if (p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS)
        wanted = c->params;
    else if (p == X || p == DY || p == Y || p == DX)
        wanted = part_is_output(c->pass, p) ? c->out : c->in;
    /* An output may not overlap itself. */
    return layout_is_broadcast(wanted) && part_is_output(c->pass, p) ? DENSE : wanted;
}

static void make_part(bundle *b, part p) {
    const norm_case *c = &b->test;
    uint64_t axes = p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS ? c->affine_axes
                    : p == MEAN || p == RSTD || p == M2 || p >= C1         ? ~c->reduce_axes
                                                                           : ~(uint64_t)0;
    int64_t shape[PLANISH_MAX_NDIM];
    int ndim = 0;
    for (int i = 0; i < c->ndim; i++) {
        if (axes >> i & 1)
            shape[ndim++] = c->shape[i];
        else if (c->full_rank)
            shape[ndim++] = 1;
    }
    tensor_make(&b->tensor[p], part_element(c, p), ndim, shape, part_layout(c, p));
    *tensors_field(&b->tensors, p) = &b->tensor[p].dl;
}

/* In double and no wider, so that the inputs are the same on every machine. */
static double draw(numbers n, element type, int64_t row, int64_t element, random_state *r) {
    double normal = random_normal(r), sign = row % 2 ? -1 : 1;
    switch (n) {
    case MEAN_100:
        return normal + sign * 100 * (double)(1 + row % 3);
    case MEAN_1E4:
        return normal + sign * 1e4 / (double)(1 + row % 3);
    case SCALE_BIG:
        return normal * (type == F16 ? 6e3 : 1e30);
    case SCALE_MIXED:
        return normal * (row % 5 != 2 ? 1 : type == F16 ? 6e3 : 1e30);
    case SCALE_TINY:
        return normal * (type == F16 ? 1e-6 : 1e-30);
    case CONSTANT:
        return sign * (double)(1 + row % 5) / 3;
    case OUTLIER:
        return element == 0 ? sign * 1000 : normal;
    case BEGINNING:
        return normal + (element < 40 ? sign * 100 * (double)(row % 3) : 0);
    case SUBNORMAL:
        return (double)element_ulp(type, 0) * (double)random_below(r, 1000) * sign;
    default:
        return normal;
    }
}

/* Numbers of mean `center` and standard deviation `spread`. */
static void fill(tensor *t, double center, double spread, random_state *r) {
    cursor c = cursor_begin(&t->dl);
    for (int64_t i = 0; i < t->count; i++, cursor_next(&c))
        element_write(t->type, c.at, center + spread * random_normal(r));
}

static void fill_x(bundle *b, random_state *r) {
    tensor *t = &b->tensor[X];
    geometry g = geometry_make(t->dl.ndim, t->shape, b->op.reduce_axes, b->op.affine_axes);
    cursor c = cursor_begin(&t->dl);
    for (int64_t e = 0; e < t->count; e++, cursor_next(&c))
        element_write(t->type, c.at,
                      draw(b->test.numbers, t->type, g.row[e], e % (g.cols ? g.cols : 1), r));
    geometry_free(&g);
}

/* Writes values, or these by way of `parts` f32 numbers: long double is not the same width on every
 * machine, and the last bit of a double taken from it would be another one. */
static void write_saved(const DLTensor *t, const real *values, int parts) {
    cursor c = cursor_begin(t);
    for (int64_t i = 0, count = element_count(t); i < count; i++, cursor_next(&c)) {
        real value = parts ? 0 : values[i];
        for (int k = 0; k < parts; k++)
            value += element_round(F32, values[i] - value);
        element_write(element_of(t->dtype), c.at, value);
    }
}

/* Makes of x's statistics those that the case gives. */
static void change_statistics(const bundle *b, reference *exact, random_state *r) {
    const norm_case *c = &b->test;
    for (int64_t i = 0; i < exact->geometry.rows; i++) {
        const real sign = i % 2 ? -1 : 1, mean = element_round(c->stats, exact->mean[i]);
        if (c->given == RANDOM) {
            exact->mean[i] = random_normal(r);
            exact->rstd[i] = .5 + (double)random_below(r, 1000) / 1000;
        }
        if (c->given == FROZEN) {
            exact->mean[i] = exact->mean[0];
            exact->rstd[i] = exact->rstd[0];
        }
        if (c->given == SHIFTED)
            exact->mean[i] += sign * c->distance / exact->rstd[i];
        if (c->given == OFF_BY_ULPS)
            exact->mean[i] = mean + sign * c->distance * element_ulp(c->stats, fabsl(mean));
    }
}

/* Fills what the pass reads though another pass writes it: from the reference, rounded. */
static void fill_saved(bundle *b, random_state *r) {
    planish_tensors forward = b->tensors;
    tensor x = {0};
    if (!forward.x) { /* the pass from y: an x is needed to make one */
        tensor_make(&x, b->test.x, b->test.ndim, b->test.shape, DENSE);
        fill(&x, 0, 1, r);
        forward.x = &x.dl;
    }
    reference exact = reference_run(&b->op, PLANISH_FORWARD, &forward);
    change_statistics(b, &exact, r);
    const real *saved[PARTS] = {[Y] = exact.y, [MEAN] = exact.mean, [RSTD] = exact.rstd};
    for (part p = 0; p < PARTS; p++) {
        if (!saved[p] || !*tensors_field(&b->tensors, p) || part_is_output(b->test.pass, p))
            continue;
        /* Where the arithmetic is f32 it has no more digits of rstd. */
        int parts = p == RSTD ? 1 : 0;
        if (b->test.given == OWN_BY_F32)
            parts = p == MEAN && b->test.activation ? 2 : 1;
        write_saved(&b->tensor[p].dl, saved[p], parts);
    }
    /* Those of a whole row, which the part need not have. */
    for (part p = C1; p <= C2; p++)
        if (*tensors_field(&b->tensors, p) && !part_is_output(b->test.pass, p))
            fill(&b->tensor[p], 0, .3, r);
    reference_free(&exact);
    tensor_free(&x);
}

void bundle_make(bundle *b, const norm_case *c) {
    memset(b, 0, sizeof *b);
    b->test = *c;
    b->op = (planish_norm){.struct_size = sizeof b->op,
                           .kind = c->kind,
                           .weight_offset = c->weight_offset,
                           .reduce_axes = c->reduce_axes,
                           .affine_axes = c->affine_axes,
                           .eps = c->eps,
                           .activation = c->activation};
    b->tensors.struct_size = sizeof b->tensors;
    signature s = signature_of(c->pass, c->kind, c->activation);
    random_state r = {c->seed * 0x9e3779b97f4a7c15u};
    for (part p = 0; p < PARTS; p++) {
        if (!((s.required | (s.optional & c->has)) >> p & 1))
            continue;
        make_part(b, p);
        tensor *t = &b->tensor[p];
        if (p == X)
            fill_x(b, &r);
        else if (p == WEIGHT)
            fill(t, 1 - c->weight_offset, .5, &r);
        else if (p == DY && c->dy_spread > 0)
            fill(t, c->dy_center, c->dy_spread, &r);
        else if (p == BIAS || p == DY)
            fill(t, 0, 1, &r);
    }
    if (c->pass != PLANISH_FORWARD && c->pass != PLANISH_STATISTICS)
        fill_saved(b, &r);
}

bool bundle_has_output(const bundle *b, part p) {
    return *tensors_field((planish_tensors *)&b->tensors, p) && part_is_output(b->test.pass, p);
}

void bundle_keep_outputs(const bundle *b, unsigned char *kept[PARTS]) {
    for (part p = 0; p < PARTS; p++) {
        kept[p] = NULL;
        if (bundle_has_output(b, p)) {
            kept[p] = malloc(b->tensor[p].memory.bytes + 1);
            memcpy(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes);
        }
    }
}

void bundle_clear_outputs(bundle *b) {
    for (part p = 0; p < PARTS; p++)
        if (bundle_has_output(b, p))
            tensor_clear(&b->tensor[p]);
}

void bundle_free(bundle *b) {
    for (part p = 0; p < PARTS; p++)
        tensor_free(&b->tensor[p]);
    guarded_free(&b->workspace);
}

planish_status bundle_run(bundle *b, const planish_exec *exec, char *message, size_t bytes) {
    planish_exec e = exec ? *exec : (planish_exec){0};
    e.struct_size = sizeof e;
    e.message = message;
    e.message_bytes = bytes;
    size_t needed = 0;
    planish_status status =
        planish_norm_workspace_bytes(&b->op, b->test.pass, &b->tensors, &needed, &e);
    if (status != PLANISH_OK)
        return status;
    if (b->workspace.bytes != needed || !b->workspace.mapping) {
        guarded_free(&b->workspace);
        b->workspace = guarded_make(needed, 256);
    }
    e.workspace = b->workspace.data;
    e.workspace_bytes = needed;
    return planish_norm_run(&b->op, b->test.pass, &b->tensors, &e);
}

/* A hash of the elements of the outputs, or of the inputs. */
static uint64_t digest(const bundle *b, bool outputs) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (part p = 0; p < PARTS; p++) {
        const tensor *t = &b->tensor[p];
        if (!t->memory.mapping || part_is_output(b->test.pass, p) != outputs)
            continue;
        cursor c = cursor_begin(&t->dl);
        for (int64_t i = 0; i < t->count; i++, cursor_next(&c))
            for (int k = 0; k < element_bytes(t->type); k++)
                hash = (hash ^ c.at[k]) * 0x100000001b3u;
    }
    return hash;
}

uint64_t bundle_digest(const bundle *b) {
    return digest(b, true);
}

void run_case(const norm_case *c, const planish_exec *exec) {
    char text[512], message[512] = "";
    test_case("%s", case_text(c, text, sizeof text));
    bundle b;
    bundle_make(&b, c);
    uint64_t inputs = digest(&b, false);
    planish_status status = bundle_run(&b, exec, message, sizeof message);
    if (expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message))
        bundle_check(&b);
    expect(status != PLANISH_OK || !message[0], "a message on success: %s", message);
    expect(inputs == digest(&b, false), "an input was written to");
    bundle_free(&b);
}
