/*
 * How many threads of rows with stages around the norm a multiprocessor holds at a time, and what
 * waits in registers or in shared memory for that. Here is what rows are; which of them are lean,
 * or early, and how many threads have room then, are rows of tuning (stages_tuning).
 */
#include "cuda/stages/stages_registers.h"

#include "cuda/common/integers.h"

/* ---- What rows are -------------------------------------------------------------------------- */

/* Too long for the kernels that hold a row as numbers (centred_words.cu). */
static bool is_long(const cuda_limits *limits, const cuda_spec *spec) {
    return spec->rows.cols > limits->tuning->rows_forward.centred_cols;
}

/* Of a few chunks in registers, in one block. */
static bool is_held(const cuda_limits *limits, const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    return !spec->real_double && c->hold == HOLD_IN_REGISTERS && c->width == 8 &&
           c->variant == ROWS_PLAIN && c->chunks_per_thread <= limits->tuning->stages.held_chunks &&
           spec->cluster == 1;
}

/* The gate behind the norm of rows in registers can wait in shared memory; short rows, of which a
 * thread has several, do without. */
bool stages_gate_can_wait(const cuda_limits *limits, const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    return spec->type[ROLE_GATE] != DTYPE_NONE && !spec->stages.gate_before && !spec->real_double &&
           c->hold == HOLD_IN_REGISTERS && c->variant == ROWS_PLAIN && is_long(limits, spec) &&
           c->width * role_bytes(spec, ROLE_GATE) >= 4;
}

/* RMSNorm, its weight of 16 bits and a gate that waits: as many threads as plain rows have at most,
 * of 64 registers, whatever x is. */
static bool is_gate_alone(const cuda_spec *spec) {
    for (role r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (r != ROLE_GATE && r != ROLE_BRANCH && spec->type[r] != DTYPE_NONE)
            return false;
    return spec->stages.gate_in_shared && spec->kind != PLANISH_LAYER &&
           spec->activation == PLANISH_IDENTITY && !spec->stages.round_xhat &&
           !spec->stages.dropout && spec->type[ROLE_BIAS] == DTYPE_NONE &&
           role_bytes(spec, ROLE_X) == 2 && role_bytes(spec, ROLE_BRANCH) == 2 &&
           role_bytes(spec, ROLE_WEIGHT) <= 2 && role_bytes(spec, ROLE_GATE) == 2;
}

/* Whether 16-bit rows in registers are quantised and little else stands around the norm. */
static bool is_quantised_alone(const cuda_limits *limits, const cuda_spec *spec) {
    static const role more[] = {ROLE_GATE, ROLE_SCALE,        ROLE_SHIFT,
                                ROLE_MASK, ROLE_COLUMN_SCALE, ROLE_ROW_SCALE};
    bool bare = spec->type[ROLE_Q] != DTYPE_NONE && !spec->activation && !spec->stages.dropout &&
                !spec->stages.round_xhat && !spec->stages.want_y;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        bare = bare && spec->type[more[i]] == DTYPE_NONE;
    static const role narrow[] = {ROLE_BRANCH, ROLE_X, ROLE_RESIDUAL, ROLE_WEIGHT, ROLE_BIAS};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        bare = bare && (spec->type[narrow[i]] == DTYPE_NONE || role_bytes(spec, narrow[i]) == 2);
    return bare && is_held(limits, spec);
}

/* Whether quantised rows are of a class. */
static bool is_of(const quantised_rows *class, const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    const bool found = spec->type[ROLE_Y_SCALES] != DTYPE_NONE;
    const int scale = !found                               ? SCALE_GIVEN
                      : spec->stages.scale_block < c->cols ? SCALE_OF_BLOCKS
                                                           : SCALE_OF_ROWS;
    const int type = spec->type[ROLE_Q] == DTYPE_I8 ? QUANTISED_I8 : QUANTISED_F8;
    return (class->kinds >> spec->kind & 1) && (class->scales & scale) && (class->types & type) &&
           (class->ragged || c->chunks_per_thread * c->threads_per_row * c->width == c->cols);
}

/* Whether such a row's y waits for its scale in the registers that had the row. */
static bool is_lean(const cuda_limits *limits, const cuda_spec *spec) {
    const stages_tuning *t = &limits->tuning->stages;
    if (!is_quantised_alone(limits, spec) || !is_long(limits, spec) || spec->rows.rows > 1)
        return false;
    for (int i = 0; i < t->lean_count; i++)
        if (is_of(&t->lean[i], spec))
            return true;
    return false;
}

/* Short rows, one at a time, of which registers hold so many warps'. */
static bool is_short(const cuda_limits *limits, const cuda_spec *spec) {
    return !is_long(limits, spec) && spec->type[ROLE_RESIDUAL] == DTYPE_NONE &&
           is_quantised_alone(limits, spec) && is_of(&limits->tuning->stages.short_rows, spec);
}

/* Rows of 16 bits, their parameters too, in registers, one at a time, with these stages and no
 * other. */
static bool has_only(const cuda_limits *limits, const cuda_spec *spec, role_set stages) {
    const role_set of_rows = ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD) | ROLE_BIT(ROLE_RNG);
    for (role r = 0; r < ROLE_COUNT; r++)
        if (spec->type[r] != DTYPE_NONE && !(of_rows & ROLE_BIT(r)) &&
            ((r >= NORM_ROLES && !(stages & ROLE_BIT(r))) || role_bytes(spec, r) != 2))
            return false;
    return spec->activation == PLANISH_IDENTITY && !spec->stages.round_xhat &&
           is_held(limits, spec) && is_long(limits, spec) && spec->rows.rows == 1;
}

static early_class class_of(const cuda_limits *limits, const cuda_spec *spec) {
    if (spec->type[ROLE_Q] != DTYPE_NONE)
        return is_lean(limits, spec) ? EARLY_QUANTISED : EARLY_NONE;
    if (is_gate_alone(spec) && has_only(limits, spec, ROLE_BIT(ROLE_BRANCH) | ROLE_BIT(ROLE_GATE)))
        return EARLY_GATED;
    if (spec->type[ROLE_RESIDUAL] != DTYPE_NONE &&
        has_only(limits, spec,
                 ROLE_BIT(ROLE_BRANCH) | ROLE_BIT(ROLE_RESIDUAL) | ROLE_BIT(ROLE_SUM)))
        return spec->stages.dropout ? EARLY_DROPPED : EARLY_SUM;
    return EARLY_NONE;
}

/* ---- What is made of them ------------------------------------------------------------------- */

/* The row of tuning for these; one that asks for nothing early where there is none. */
static early_rows early_of(const cuda_limits *limits, const cuda_spec *spec) {
    const stages_tuning *t = &limits->tuning->stages;
    const early_class class = class_of(limits, spec);
    const int lanes = spec->rows.threads_per_row;
    uint64_t there = 0;
    for (role r = 0; r < ROLE_COUNT; r++)
        there |= (uint64_t)(spec->type[r] != DTYPE_NONE) << r;
    for (const early_rows *e = t->early; e < t->early + t->early_count; e++)
        if (e->of == class && (e->kinds >> spec->kind & 1) && !(e->has & ~there) &&
            !(e->lacks & there) && e->least_lanes <= lanes && lanes <= e->most_lanes)
            return *e;
    return (early_rows){.of = class};
}

/* Registers of a thread, in words: what is held, what is under way, and the rest. */
static int registers_of(const cuda_limits *limits, const cuda_spec *spec) {
    const stages_tuning *t = &limits->tuning->stages;
    const rows_constants *c = &spec->rows;
    const int in_registers = c->hold == HOLD_IN_REGISTERS;
    const int chunks = in_registers ? c->chunks_per_thread * c->rows : 4 * c->rows,
              width = c->width;
    static const role under_way[] = {ROLE_BRANCH, ROLE_RESIDUAL, ROLE_GATE};
    int bytes = 0;
    for (int i = 0; i < 3 - spec->stages.gate_in_shared; i++)
        bytes += spec->type[under_way[i]] == DTYPE_NONE ? 0 : role_bytes(spec, under_way[i]);
    int words = chunks * width * bytes / 4;
    if (c->variant != ROWS_PLAIN || !is_long(limits, spec)) /* a row as numbers */
        words = most(words,
                     c->chunks_per_thread * width + chunks * width * role_bytes(spec, ROLE_X) / 4);
    /* As numbers, too, where y waits for its scale; beside q where it is given. */
    if (spec->type[ROLE_Q] != DTYPE_NONE && in_registers && !spec->real_double)
        words =
            most(words, c->chunks_per_thread * width +
                            (spec->type[ROLE_Y_SCALES] == DTYPE_NONE ? t->scaled_registers : 0));
    return t->registers + words + (spec->real_double ? t->double_registers : 0) +
           t->column_registers * width;
}

void stages_set_blocks(const cuda_limits *limits, cuda_spec *spec) {
    const stages_tuning *t = &limits->tuning->stages;
    rows_constants *c = &spec->rows;
    const early_rows early = early_of(limits, spec);
    int threads = early.threads;
    if (early.warps)
        c->warps = early.warps;
    if (!threads && is_gate_alone(spec) &&
        c->width * c->chunks_per_thread * c->rows <= t->gated_columns)
        threads = t->gated_threads;
    else if (!threads && early.of == EARLY_QUANTISED)
        threads = limits->tuning->rows_forward.threads;
    if (threads) {
        spec->min_blocks = most(1, threads / (WARP * c->warps));
        return;
    }
    if (is_short(limits, spec)) {
        c->rows = 1;
        spec->min_blocks = t->short_threads / (WARP * c->warps);
        return;
    }
    while (c->threads_per_row <= WARP && c->rows > 1 &&
           registers_of(limits, spec) > t->most_registers)
        c->rows /= 2;
    threads = WARP * limits->tuning->lane_registers / most(32, registers_of(limits, spec));
    spec->min_blocks = most(1, least(spec->min_blocks, threads / (WARP * c->warps)));
}

int stages_early(const cuda_limits *limits, const cuda_spec *spec) {
    return early_of(limits, spec).where;
}
