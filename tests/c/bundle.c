/* The tensors of a case and its runs; see cases.h. bounds.c has the comparison with the reference.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

/* ---- Tensors --------------------------------------------------------------------------------- */

bool bundle_has(const bundle *b, part p) {
    return *tensors_field((planish_tensors *)&b->tensors, p);
}

bool bundle_has_output(const bundle *b, part p) {
    return bundle_has(b, p) && part_is_output(b->test.pass, p);
}

static part place_of(const norm_case *c, part p) {
    for (int i = 0; i < 2; i++)
        if (c->over[i].output != c->over[i].input && c->over[i].output == p)
            return c->over[i].input;
    return p;
}

DLTensor *bundle_tensor(bundle *b, part p) {
    return &b->tensor[place_of(&b->test, p)].dl;
}

static layout part_layout(const norm_case *c, part p) {
    const bool written = part_is_output(c->pass, p);
    layout wanted = DENSE;
    if (p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS)
        wanted = c->params;
    else if (part_is_full(p))
        wanted = written ? c->out : c->in;
    /* An output may not overlap itself. */
    return layout_is_broadcast(wanted) && written ? DENSE : wanted;
}

/* The sizes of a part's axes; how many there are. */
static int part_shape(const norm_case *c, part p, int64_t shape[PLANISH_MAX_NDIM]) {
    const uint64_t axes = part_axes(&c->op, c->ndim, p);
    const bool one = p == RNG || p == Y_SCALE || p == AMAX;
    int64_t cols = 1;
    int ndim = 0;
    for (int i = 0; i < c->ndim; i++) {
        cols *= c->op.reduce_axes >> i & 1 ? c->shape[i] : 1;
        if (axes >> i & 1)
            shape[ndim++] = c->shape[i];
        else if (c->full_rank && !one && p != Y_SCALES)
            shape[ndim++] = 1;
    }
    if (p == Y_SCALES && c->op.scale_block)
        shape[ndim++] = cols ? (cols + c->op.scale_block - 1) / c->op.scale_block : 1;
    if (p == RNG)
        shape[ndim++] = 2;
    return ndim;
}

/* A tensor of another dtype in memory for F16 or F64. */
static void make_other(tensor *t, DLDataType type, int ndim, const int64_t *shape, layout l) {
    tensor_make(t, type.bits == 64 ? F64 : F16, ndim, shape, l);
    t->dl.byte_offset = t->dl.byte_offset * type.bits / t->dl.dtype.bits;
    t->dl.dtype = type;
}

static void make_part(bundle *b, part p) {
    const norm_case *c = &b->test;
    tensor *t = &b->tensor[p];
    int64_t shape[PLANISH_MAX_NDIM];
    const int ndim = part_shape(c, p, shape);
    const layout l = part_layout(c, p);
    if (p == RNG)
        make_other(t, (DLDataType){kDLUInt, 64, 1}, ndim, shape, l);
    else if (p == MASK)
        make_other(t, (DLDataType){kDLBool, 8, 1}, ndim, shape, l);
    else if (p == Q)
        make_other(t, c->q, ndim, shape, l);
    else if (p == Y_SCALES && c->e8m0)
        make_other(t, (DLDataType){kDLFloat8_e8m0fnu, 8, 1}, ndim, shape, l);
    else
        tensor_make(t, part_type(c, p), ndim, shape, l);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* In double and no wider, so that the inputs are the same on every machine. */
static double draw(const norm_case *c, element type, int64_t row, int64_t index, random_state *r) {
    double normal = random_normal(r), sign = row % 2 ? -1 : 1;
    switch (c->numbers) {
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
        return index == 0 ? sign * 1000 : normal;
    case BEGINNING:
        return normal + (index < 40 ? sign * 100 * (double)(row % 3) : 0);
    case SUBNORMAL:
        return (double)element_ulp(type, 0) * (double)random_below(r, 1000) * sign;
    default:
        return c->x_center + (c->x_spread > 0 ? c->x_spread : 1) * normal;
    }
}

/* Numbers of mean `center` and standard deviation `spread`. */
static void fill(tensor *t, double center, double spread, random_state *r) {
    cursor c = cursor_begin(&t->dl);
    for (int64_t i = 0; i < t->count; i++, cursor_next(&c))
        element_write(t->type, c.at, center + spread * random_normal(r));
}

static void fill_x(bundle *b, part p, random_state *r) {
    const norm_case *of = &b->test;
    tensor *t = &b->tensor[p];
    geometry g = geometry_make(of->ndim, of->shape, of->op.reduce_axes, of->op.affine_axes);
    cursor c = cursor_begin(&t->dl);
    for (int64_t e = 0; e < t->count; e++, cursor_next(&c))
        element_write(t->type, c.at, draw(of, t->type, g.row[e], e % (g.cols ? g.cols : 1), r));
    geometry_free(&g);
}

/* A part's own random numbers, where it has such. */
static random_state random_of(const norm_case *c, part p) {
    return (random_state){(c->seed * 64 + (uint64_t)p) * 0x9e3779b97f4a7c15u};
}

/* `shared`: the numbers of all parts. */
static void fill_part(bundle *b, part p, random_state *shared) {
    const norm_case *c = &b->test;
    random_state own = random_of(c, p), *r = c->one_draw ? shared : &own;
    if (p == RNG)
        memcpy(b->tensor[p].memory.data, c->draw, sizeof c->draw);
    else if (p == X || p == RESIDUAL)
        fill_x(b, p, r);
    else if (p == WEIGHT && c->weight_spread > 0)
        fill(&b->tensor[p], 0, c->weight_spread, r);
    else if (p == WEIGHT)
        fill(&b->tensor[p], 1 - c->op.weight_offset, .5, r);
    else if (p == DY && c->dy_spread > 0)
        fill(&b->tensor[p], c->dy_center, c->dy_spread, r);
    else if (p == C1 || p == C2) /* those of a whole row, which the part need not have */
        fill(&b->tensor[p], 0, .3, r);
    else if (p == Y_SCALE)
        fill(&b->tensor[p], .03225, 0, r);
    else
        fill(&b->tensor[p], 0, 1, r);
}

/* ---- What another pass writes ---------------------------------------------------------------- */

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
        const real sign = i % 2 ? -1 : 1, mean = element_round(c->stats, exact->value[MEAN][i]);
        if (c->given == RANDOM) {
            exact->value[MEAN][i] = random_normal(r);
            exact->value[RSTD][i] = .5 + (double)random_below(r, 1000) / 1000;
        }
        if (c->given == FROZEN) {
            exact->value[MEAN][i] = exact->value[MEAN][0];
            exact->value[RSTD][i] = exact->value[RSTD][0];
        }
        if (c->given == SHIFTED)
            exact->value[MEAN][i] += sign * c->distance / exact->value[RSTD][i];
        if (c->given == OFF_BY_ULPS)
            exact->value[MEAN][i] = mean + sign * c->distance * element_ulp(c->stats, fabsl(mean));
    }
}

/* The forward whose y and statistics a pass reads. `x` is one where the pass has none. */
static reference forward_of(bundle *b, tensor *x, random_state *r) {
    const norm_case *c = &b->test;
    planish_tensors t = b->tensors;
    planish_norm op = c->op;
    if (!t.x) {
        tensor_make(x, c->x, c->ndim, c->shape, DENSE);
        fill(x, 0, 1, r);
        t.x = &x->dl;
    }
    /* x is the sum itself, unless a gate comes before it. */
    if (!(t.gate && op.gate == PLANISH_GATE_BEFORE)) {
        t.row_scale = t.column_scale = t.rng = NULL;
        op.dropout_p = 0;
    }
    return reference_run(&op, PLANISH_FORWARD, &t);
}

static void fill_saved(bundle *b, random_state *r) {
    static const part saved[] = {Y, MEAN, RSTD};
    tensor x = {0};
    reference exact = forward_of(b, &x, r);
    change_statistics(b, &exact, r);
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
        const part p = saved[i];
        if (!bundle_has(b, p) || part_is_output(b->test.pass, p))
            continue;
        /* Where the arithmetic is f32 it has no more digits of rstd. */
        int parts = p == RSTD && b->test.given != OWN_WHOLE ? 1 : 0;
        if (b->test.given == OWN_BY_F32)
            parts = p == MEAN && b->test.op.activation ? 2 : 1;
        write_saved(&b->tensor[p].dl, exact.value[p], parts);
    }
    reference_free(&exact);
    tensor_free(&x);
}

void bundle_fill_saved(bundle *b) {
    random_state r = random_of(&b->test, MEAN);
    fill_saved(b, &r);
}

void bundle_make(bundle *b, const norm_case *c) {
    static const uint64_t saved = HAS(Y) | HAS(MEAN) | HAS(RSTD), means = HAS(C1) | HAS(C2);
    memset(b, 0, sizeof *b);
    b->test = *c;
    b->tensors.struct_size = sizeof b->tensors;
    random_state shared = {c->seed * 0x9e3779b97f4a7c15u};
    const uint64_t parts = parts_of(&c->op, c->pass, c->has);
    const uint64_t inputs = parts & ~parts_written(c->pass);
    for (part p = 0; p < PARTS; p++) {
        if (!(parts & HAS(p)))
            continue;
        *tensors_field(&b->tensors, p) = bundle_tensor(b, p);
        if (place_of(c, p) != p)
            continue;
        make_part(b, p);
        if (inputs & ~saved & ~means & HAS(p))
            fill_part(b, p, &shared);
    }
    if (inputs & saved)
        fill_saved(b, &shared);
    for (part p = C1; p <= C2; p++)
        if (inputs & HAS(p))
            fill_part(b, p, &shared);
}

void bundle_free(bundle *b) {
    for (part p = 0; p < PARTS; p++)
        tensor_free(&b->tensor[p]);
    guarded_free(&b->workspace);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

int64_t bundle_count(const bundle *b, part p) {
    return part_count(&b->test.op, b->test.ndim, b->test.shape, p);
}

real *bundle_reals(bundle *b, part p, real otherwise) {
    const int64_t count = bundle_count(b, p);
    real *values = malloc(((size_t)count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = otherwise;
    if (bundle_has(b, p))
        tensor_read(*tensors_field(&b->tensors, p), values);
    return values;
}

unsigned char *bundle_bytes(bundle *b, part p) {
    const DLTensor *t = bundle_tensor(b, p);
    const int64_t count = element_count(t);
    unsigned char *bytes = malloc((size_t)count + 1);
    cursor c = cursor_begin(t);
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        bytes[i] = *c.at;
    return bytes;
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

/* Whether an output lies over this part. */
static bool is_overwritten(const norm_case *c, part p) {
    for (int i = 0; i < 2; i++)
        if (c->over[i].output != c->over[i].input && c->over[i].input == p)
            return true;
    return false;
}

/* A hash of the elements of the outputs, or of the inputs that stay. */
static uint64_t digest(const bundle *b, bool outputs) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (part p = 0; p < PARTS; p++) {
        const part place = place_of(&b->test, p);
        const tensor *t = &b->tensor[place];
        if (!t->memory.mapping || (place != p && !bundle_has(b, p)) ||
            part_is_output(b->test.pass, p) != outputs || (!outputs && is_overwritten(&b->test, p)))
            continue;
        cursor c = cursor_begin(&t->dl);
        for (int64_t i = 0; i < t->count; i++, cursor_next(&c))
            for (int k = 0; k < t->dl.dtype.bits / 8; k++)
                hash = (hash ^ c.at[k]) * 0x100000001b3u;
    }
    return hash;
}

uint64_t bundle_digest(const bundle *b) {
    return digest(b, true);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

planish_status bundle_run(bundle *b, const planish_exec *exec, char *message, size_t bytes) {
    planish_exec e = exec ? *exec : (planish_exec){0};
    e.struct_size = sizeof e;
    e.message = message;
    e.message_bytes = bytes;
    size_t needed = 0;
    planish_status status =
        planish_norm_workspace_bytes(&b->test.op, b->test.pass, &b->tensors, &needed, &e);
    if (status != PLANISH_OK)
        return status;
    if (b->workspace.bytes != needed || !b->workspace.mapping) {
        guarded_free(&b->workspace);
        b->workspace = guarded_make(needed, 256);
    }
    e.workspace = b->workspace.data;
    e.workspace_bytes = needed;
    return planish_norm_run(&b->test.op, b->test.pass, &b->tensors, &e);
}

void run_and_check(const norm_case *c, const planish_exec *exec) {
    char message[512] = "";
    bundle b;
    bundle_make(&b, c);
    const uint64_t inputs = digest(&b, false);
    reference exact = bundle_reference(&b);
    const planish_status status = bundle_run(&b, exec, message, sizeof message);
    if (expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message))
        bundle_check_against(&b, &exact);
    expect(status != PLANISH_OK || !message[0], "a message on success: %s", message);
    expect(inputs == digest(&b, false), "an input was written to");
    reference_free(&exact);
    bundle_free(&b);
}

void run_case(const norm_case *c, const planish_exec *exec) {
    char text[512];
    test_case("%s", case_text(c, text, sizeof text));
    run_and_check(c, exec);
}
