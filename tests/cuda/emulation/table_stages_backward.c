/* Tables of the emulated cases: the backward of norms with stages around them, as in
 * table_stages.c; and two norms in one launch. */
#include <string.h>

#include "tables.h"

#define A PLANISH_AXIS
#define MODULATED (HAS(SCALE) | HAS(SHIFT))

/* ---- Backward ------------------------------------------------------------------------------- */

#define DAFFINE (HAS(WEIGHT) | HAS(DWEIGHT) | HAS(DBIAS))
#define DMODULATED (MODULATED | HAS(DSCALE) | HAS(DSHIFT))
#define DCOLUMN (HAS(COLUMN_SCALE) | HAS(DCOLUMN_SCALE) | HAS(BRANCH))
#define DGATED (HAS(GATE) | HAS(DGATE))
#define DADDED (HAS(DSUM) | HAS(DRESIDUAL))

typedef struct backward_row {
    const char *name;
    int arch, multiprocessors;
    planish_kind kind;
    int64_t shape[4];
    element type, params, stats;
    uint64_t has;
    planish_activation f;
    uint64_t modulation;
    double p;
    planish_gate gate;
    layout in, out;
} backward_row;

static norm_case backward_of(const backward_row *b) {
    const int ndim = b->shape[3] ? 4 : b->shape[2] ? 3 : 2;
    norm_case c = bare_case(PLANISH_BACKWARD, b->kind, 1, 1);
    c.ndim = ndim;
    memcpy(c.shape, b->shape, sizeof b->shape);
    c.op.reduce_axes = c.op.affine_axes = c.op.column_axes = A(ndim - 1);
    if (ndim == 4) {
        c.op.reduce_axes = A(2) | A(3);
        c.op.affine_axes = c.op.column_axes = A(1) | A(2);
    }
    c.op.modulation_axes = b->modulation ? b->modulation : c.op.affine_axes;
    c.op.activation = b->f;
    c.op.dropout_p = b->p;
    c.op.gate = b->gate;
    c.has = b->has;
    case_set_types(&c, b->type);
    c.weight = c.grad = b->params;
    c.stats = b->stats;
    c.in = b->in;
    c.out = b->out;
    c.draw[0] = 0x123456789abcdef0u;
    c.draw[1] = 40;
    set_device(b->arch, b->multiprocessors);
    return c;
}

void table_stages_backward(void) {
    static const uint64_t dx = HAS(DX);
    static const backward_row rows[] = {
        {.name = "dsum, dresidual and dx",
         .shape = {37, 96},
         .type = BF16,
         .params = F32,
         .has = dx | DADDED | DAFFINE},
        {.name = "gate and activation, rows of a block",
         .shape = {7, 4096},
         .type = F16,
         .params = F16,
         .has = dx | DGATED | DAFFINE | HAS(BIAS),
         .f = PLANISH_SILU},
        {.name = "a gate before, by odd addresses",
         .kind = PLANISH_RMS,
         .shape = {41, 77},
         .type = F16,
         .params = F32,
         .has = dx | DGATED | HAS(WEIGHT) | HAS(DWEIGHT),
         .gate = PLANISH_GATE_BEFORE},
        {.name = "all, by samples",
         .shape = {3, 17, 96},
         .type = BF16,
         .params = F32,
         .has = dx | DADDED | HAS(RNG) | DCOLUMN | HAS(ROW_SCALE) | DMODULATED | DGATED | DAFFINE |
                HAS(BIAS),
         .f = PLANISH_SILU,
         .modulation = A(0) | A(2),
         .p = .125},
        {.name = "all, f64",
         .shape = {2, 7, 130},
         .type = F64,
         .params = F64,
         .stats = F64,
         .has = dx | DADDED | HAS(RNG) | DCOLUMN | HAS(ROW_SCALE) | DMODULATED | DGATED | DAFFINE |
                HAS(BIAS),
         .f = PLANISH_GELU,
         .modulation = A(0) | A(2),
         .p = .5},
        {.name = "dropout in a cluster",
         .multiprocessors = 16,
         .shape = {3, 20000},
         .type = F32,
         .params = F32,
         .has = dx | DADDED | HAS(RNG) | DAFFINE,
         .p = .25},
        {.name = "a modulation alone, of samples",
         .shape = {3, 41, 96},
         .type = BF16,
         .params = BF16,
         .has = dx | DMODULATED,
         .modulation = A(0) | A(2)},
        {.name = "a modulation alone, rows of a block",
         .shape = {2, 9, 1024},
         .type = F16,
         .params = F32,
         .stats = F64,
         .has = dx | DMODULATED,
         .f = PLANISH_SILU,
         .modulation = A(0) | A(2)},
        {.name = "a modulation alone, in a cluster",
         .multiprocessors = 16,
         .shape = {2, 3, 15872},
         .type = F16,
         .params = F16,
         .has = dx | DMODULATED,
         .modulation = A(0) | A(2)},
        {.name = "groups with all stages",
         .shape = {3, 3, 4, 15},
         .type = F32,
         .params = F32,
         .stats = F64,
         .has = dx | DADDED | HAS(RNG) | DCOLUMN | HAS(ROW_SCALE) | DMODULATED | DGATED | DAFFINE |
                HAS(BIAS),
         .f = PLANISH_SILU,
         .modulation = A(0) | A(1) | A(2),
         .p = .25},
        {.name = "any layout, a gate before",
         .shape = {2, 9, 30},
         .type = F32,
         .params = F32,
         .has = dx | DGATED | DCOLUMN | DMODULATED | DAFFINE,
         .gate = PLANISH_GATE_BEFORE,
         .modulation = A(1) | A(2),
         .in = INNER_STRIDE_2},
        {.name = "groups, dsum in another order",
         .shape = {2, 3, 8, 64},
         .type = BF16,
         .params = F32,
         .has = dx | HAS(DSUM) | DAFFINE,
         .in = DENSE,
         .out = PERMUTED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        backward_row b = rows[i];
        b.arch = b.arch ? b.arch : 90;
        b.multiprocessors = b.multiprocessors ? b.multiprocessors : 2;
        emulate_stages(b.name, backward_of(&b));
    }
}

/* ---- Two norms in one launch ---------------------------------------------------------------- */

/* Heads of one part of a packed tensor: (tokens, heads, columns). */
static norm_case heads_of(planish_pass pass, planish_kind kind, int64_t heads, int64_t cols,
                          bool own, element type) {
    norm_case c = rows_of(pass, kind, 0, cols, type);
    c.ndim = 3;
    c.shape[0] = 19;
    c.shape[1] = heads;
    c.shape[2] = cols;
    c.op.reduce_axes = A(2);
    c.op.affine_axes = own ? A(1) | A(2) : A(2);
    c.in = PACKED;
    return c;
}

void table_pairs(void) {
    static const struct {
        planish_kind kind;
        int64_t cols;
        bool own;
        element type;
    } works[] = {{PLANISH_RMS, 64, false, BF16},
                 {PLANISH_LAYER, 128, true, F16},
                 {PLANISH_LAYER, 96, false, F32}};
    for (int i = 0; i < 6; i++) {
        const planish_pass pass = both[i / 3];
        const planish_kind kind = works[i % 3].kind;
        set_device(90, i % 2 ? 2 : 7);
        emulate_pair(
            "queries and keys",
            heads_of(pass, kind, 8, works[i % 3].cols, works[i % 3].own, works[i % 3].type),
            heads_of(pass, kind, 2, works[i % 3].cols, works[i % 3].own, works[i % 3].type));
    }
}
