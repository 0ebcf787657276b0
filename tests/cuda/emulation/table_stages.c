/*
 * Tables of the emulated cases: the forward of norms with stages around them, of every kind of
 * kernel that knows of stages. A kind of kernel that a case is there for stands in variants.c; how
 * many multiprocessors there are decides how many blocks share rows.
 */
#include <string.h>

#include "tables.h"

#define A PLANISH_AXIS
#define AFFINE (HAS(WEIGHT) | HAS(BIAS))
#define ADDED (HAS(RESIDUAL) | HAS(SUM))
#define MODULATED (HAS(SCALE) | HAS(SHIFT))
#define DROPPED (HAS(RNG) | HAS(MASK))
#define SCALED (HAS(ROW_SCALE) | HAS(COLUMN_SCALE))

static const DLDataType e4m3 = {kDLFloat8_e4m3fn, 8, 1}, e5m2 = {kDLFloat8_e5m2, 8, 1},
                        i8 = {kDLInt, 8, 1};

/* ---- Forward -------------------------------------------------------------------------------- */

typedef struct forward_row {
    const char *name;
    int arch, multiprocessors;
    planish_kind kind;
    int64_t shape[4]; /* rows and columns; samples, rows and columns; images */
    element type, params;
    uint64_t has; /* beside x and y */
    planish_activation f;
    uint64_t modulation; /* axes; 0: those of the columns */
    double p;
    planish_gate gate;
    planish_rounding rounding;
    layout in;
} forward_row;

/* Over the last axis; of four axes, groups of channels. */
static norm_case forward_of(const forward_row *f) {
    const int ndim = f->shape[3] ? 4 : f->shape[2] ? 3 : 2;
    norm_case c = bare_case(PLANISH_FORWARD, f->kind, 1, 1);
    c.ndim = ndim;
    memcpy(c.shape, f->shape, sizeof f->shape);
    c.op.reduce_axes = c.op.affine_axes = c.op.column_axes = A(ndim - 1);
    if (ndim == 4) {
        c.op.reduce_axes = A(2) | A(3);
        c.op.affine_axes = c.op.column_axes = A(1) | A(2);
    }
    c.op.modulation_axes = f->modulation ? f->modulation : c.op.affine_axes;
    c.op.activation = f->f;
    c.op.dropout_p = f->p;
    c.op.gate = f->gate;
    c.op.rounding = f->rounding;
    c.has |= f->has;
    case_set_types(&c, f->type);
    c.weight = c.stages = f->params;
    c.in = f->in;
    c.draw[0] = 0x123456789abcdef0u;
    c.draw[1] = 40;
    set_device(f->arch, f->multiprocessors);
    return c;
}

void table_stages_forward(void) {
    static const forward_row rows[] = {
        {.name = "LayerNorm of a sum, rows of a warp",
         .shape = {19, 768},
         .type = BF16,
         .params = BF16,
         .has = ADDED | AFFINE | HAS(MEAN)},
        {.name = "RMSNorm of a sum, rows of a warp",
         .kind = PLANISH_RMS,
         .shape = {13, 1024},
         .type = F16,
         .params = F16,
         .has = ADDED | HAS(WEIGHT)},
        {.name = "LayerNorm of a sum, rows of a block",
         .shape = {7, 4096},
         .type = BF16,
         .params = BF16,
         .has = ADDED | AFFINE},
        {.name = "dropout, then a sum",
         .kind = PLANISH_RMS,
         .shape = {9, 1024},
         .type = BF16,
         .params = BF16,
         .has = ADDED | HAS(RNG) | HAS(WEIGHT),
         .p = .25},
        {.name = "RMSNorm and a gate that waits",
         .kind = PLANISH_RMS,
         .shape = {11, 1024},
         .type = F16,
         .params = F16,
         .has = HAS(WEIGHT) | HAS(GATE)},
        {.name = "RMSNorm and a gate, rows of more lanes",
         .kind = PLANISH_RMS,
         .shape = {5, 9216},
         .type = F16,
         .params = F16,
         .has = HAS(WEIGHT) | HAS(GATE)},
        {.name = "a gate before",
         .shape = {33, 200},
         .type = BF16,
         .params = F32,
         .has = HAS(GATE) | HAS(SUM) | AFFINE,
         .gate = PLANISH_GATE_BEFORE},
        {.name = "a rounded xhat, which is y", /* no weight: to the reference it is the same */
         .shape = {33, 200},
         .type = BF16,
         .params = BF16,
         .has = ADDED,
         .rounding = PLANISH_ROUND_XHAT},
        {.name = "all but a gate, by samples",
         .shape = {3, 7, 96},
         .type = F16,
         .params = F16,
         .has = ADDED | DROPPED | SCALED | MODULATED | AFFINE | HAS(MEAN),
         .f = PLANISH_SILU,
         .modulation = A(0) | A(2),
         .p = .125,
         .in = PADDED},
        {.name = "all, f64",
         .shape = {2, 5, 300},
         .type = F64,
         .params = F64,
         .has = ADDED | DROPPED | SCALED | MODULATED | AFFINE | HAS(MEAN) | HAS(GATE),
         .f = PLANISH_GELU,
         .modulation = A(0) | A(2),
         .p = .5},
        {.name = "tiled rows of a sum",
         .shape = {70, 65},
         .type = F16,
         .params = F16,
         .has = ADDED | AFFINE},
        {.name = "rows of a sum in runs",
         .shape = {37, 385},
         .type = BF16,
         .params = F32,
         .has = ADDED | AFFINE,
         .f = PLANISH_RELU},
        {.name = "rows of a sum in shared memory",
         .shape = {9, 16000},
         .type = F16,
         .params = F16,
         .has = ADDED | AFFINE},
        {.name = "rows of a sum in a cluster",
         .multiprocessors = 16,
         .shape = {3, 40000},
         .type = F32,
         .params = F32,
         .has = ADDED | AFFINE},
        {.name = "rows of a sum that are read again",
         .arch = 80,
         .shape = {3, 40000},
         .type = F32,
         .params = F32,
         .has = HAS(SUM) | HAS(COLUMN_SCALE) | AFFINE,
         .f = PLANISH_GELU_TANH},
        {.name = "a modulation alone, of samples",
         .shape = {3, 41, 96},
         .type = BF16,
         .params = BF16,
         .has = MODULATED,
         .modulation = A(0) | A(2)},
        {.name = "a modulation alone, rows of a block",
         .shape = {2, 5, 4096},
         .type = F16,
         .params = F16,
         .has = MODULATED | HAS(MEAN),
         .f = PLANISH_SILU,
         .modulation = A(0) | A(2)},
        {.name = "a modulation alone, tiled",
         .shape = {2, 70, 65},
         .type = F16,
         .params = F32,
         .has = MODULATED,
         .modulation = A(0) | A(2)},
        {.name = "a modulation alone, in a cluster",
         .multiprocessors = 16,
         .shape = {2, 3, 40000},
         .type = F32,
         .params = F32,
         .has = MODULATED,
         .modulation = A(0) | A(2)},
        {.name = "groups of a sum, gated",
         .shape = {2, 3, 4, 15},
         .type = F32,
         .params = F32,
         .has = ADDED | AFFINE | HAS(GATE) | DROPPED,
         .p = .25},
        {.name = "groups of a sum",
         .shape = {2, 3, 8, 64},
         .type = BF16,
         .params = F32,
         .has = ADDED | AFFINE},
        {.name = "any layout, all stages, f64",
         .shape = {2, 5, 30},
         .type = F64,
         .params = F64,
         .has = ADDED | DROPPED | SCALED | MODULATED | AFFINE | HAS(MEAN) | HAS(GATE),
         .f = PLANISH_SILU,
         .p = .25,
         .in = INNER_STRIDE_2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        forward_row f = rows[i];
        f.arch = f.arch ? f.arch : 90;
        f.multiprocessors = f.multiprocessors ? f.multiprocessors : 2;
        emulate_stages(f.name, forward_of(&f));
    }
}

/* ---- Quantised rows ------------------------------------------------------------------------- */

void table_stages_quantised(void) {
    static const struct {
        planish_kind kind;
        int arch;
        int64_t rows, cols;
        element type;
        uint64_t has;
        const DLDataType *q;
        int64_t block;
        layout in;
    } rows[] = {
        {PLANISH_RMS, 90, 9, 1024, BF16, HAS(Y_SCALES), &e4m3, 0, DENSE},
        {PLANISH_RMS, 90, 5, 4096, F16, HAS(Y_SCALE), &e5m2, 0, DENSE},
        {PLANISH_LAYER, 90, 5, 4096, F16, HAS(Y_SCALES) | HAS(AMAX), &i8, 0, DENSE},
        {PLANISH_RMS, 90, 5, 4096, F16, HAS(Y_SCALES) | ADDED, &e4m3, 128, DENSE},
        {PLANISH_RMS, 90, 37, 256, BF16, HAS(Y_SCALES), &e4m3, 32, DENSE},
        {PLANISH_LAYER, 100, 9, 1024, F16, HAS(Y_SCALES) | HAS(BIAS), &e4m3, 0, DENSE},
        {PLANISH_LAYER, 80, 3, 40000, F32, HAS(Y_SCALES) | HAS(AMAX), &i8, 0, DENSE},
        {PLANISH_LAYER, 90, 4, 70, F32, HAS(Y_SCALES) | HAS(AMAX), &e5m2, 7, INNER_STRIDE_2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        norm_case c = bare_case(PLANISH_FORWARD, rows[i].kind, rows[i].rows, rows[i].cols);
        c.has |= rows[i].has | HAS(Q) | HAS(WEIGHT);
        case_set_types(&c, rows[i].type);
        c.y = F32;
        c.q = *rows[i].q;
        c.op.scale_block = rows[i].block;
        c.in = rows[i].in;
        set_device(rows[i].arch, 2);
        emulate_quantised("quantised rows", c);
    }
}
