/*
 * How many threads of rows with stages around the norm a multiprocessor holds at a time, and what
 * waits in registers or in shared memory for that. Rules of registers that were counted
 * (tests/cuda/test_quantised_registers.py, test_compile.py) and timed (docs/notebook/033).
 */
#include "cuda/around/around_registers.h"

#include "cuda/common/integers.h"

enum {
    MOST_CENTRED = 512,   /* columns of CENTRED rows */
    MOST_GATED = 32,      /* columns of a thread whose gate waits */
    GATED_THREADS = 1024, /* of a multiprocessor then */
    EARLY_THREADS = 768,  /* whose weights are loaded beside x */
    MOST_EARLY_LANES = 256,
    SUM_THREADS = 1024,   /* of rows of a warp with a residual */
    LAYER_THREADS = 896,  /* of longer ones, of LayerNorm */
    QUANTISED_WARPS = 2,  /* of a block of rows of a warp that are quantised */
    SHORT_THREADS = 1024, /* of short rows that are quantised */
};

/* The gate behind the norm of rows in registers can wait in shared memory; short rows, of which a
 * thread has several, do without. */
bool around_gate_can_wait(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    return spec->type[ROLE_GATE] != DTYPE_NONE && !spec->stages.gate_before && !spec->real_double &&
           c->hold == HOLD_IN_REGISTERS && c->variant == ROWS_PLAIN && c->cols > MOST_CENTRED &&
           c->width * role_bytes(spec, ROLE_GATE) >= 4;
}

/* RMSNorm, its weight of 16 bits and a gate that waits: as many threads as plain rows have at most,
 * of 64 registers, whatever x is. */
static bool is_gate_alone(const cuda_spec *spec) {
    for (role r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (r != ROLE_GATE && r != ROLE_BRANCH && spec->type[r] != DTYPE_NONE)
            return false;
    return spec->stages.gate_in_shared && spec->kind == PLANISH_RMS &&
           spec->activation == PLANISH_IDENTITY && !spec->stages.round_xhat &&
           !spec->stages.dropout && spec->type[ROLE_BIAS] == DTYPE_NONE &&
           role_bytes(spec, ROLE_X) == 2 && role_bytes(spec, ROLE_BRANCH) == 2 &&
           role_bytes(spec, ROLE_WEIGHT) <= 2 && role_bytes(spec, ROLE_GATE) == 2;
}

/* Registers of a thread, in words: what is held, what is under way, and the rest. */
static int registers_of(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    const int in_registers = c->hold == HOLD_IN_REGISTERS;
    const int chunks = in_registers ? c->chunks_per_thread * c->rows : 4 * c->rows,
              width = c->width;
    static const role under_way[] = {ROLE_BRANCH, ROLE_RESIDUAL, ROLE_GATE};
    int bytes = 0;
    for (int i = 0; i < 3 - spec->stages.gate_in_shared; i++)
        bytes += spec->type[under_way[i]] == DTYPE_NONE ? 0 : role_bytes(spec, under_way[i]);
    int words = chunks * width * bytes / 4;
    if (c->variant != ROWS_PLAIN || c->cols <= MOST_CENTRED) /* a row as numbers */
        words = most(words,
                     c->chunks_per_thread * width + chunks * width * role_bytes(spec, ROLE_X) / 4);
    /* As numbers, too, where y waits for its scale; beside q where it is given. */
    if (spec->type[ROLE_Q] != DTYPE_NONE && in_registers && !spec->real_double)
        words = most(words, c->chunks_per_thread * width +
                                (spec->type[ROLE_Y_SCALES] == DTYPE_NONE ? 16 : 0));
    return 44 + words + (spec->real_double ? 40 : 0) + 2 * width;
}

/* Whether 16-bit rows in registers are quantised and little else stands around the norm. */
static bool is_quantised_alone(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    static const role more[] = {ROLE_GATE, ROLE_SCALE,        ROLE_SHIFT,
                                ROLE_MASK, ROLE_COLUMN_SCALE, ROLE_ROW_SCALE};
    bool bare = spec->type[ROLE_Q] != DTYPE_NONE && !spec->activation && !spec->stages.dropout &&
                !spec->stages.round_xhat && !spec->stages.want_y;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        bare = bare && spec->type[more[i]] == DTYPE_NONE;
    static const role narrow[] = {ROLE_BRANCH, ROLE_X, ROLE_RESIDUAL, ROLE_WEIGHT, ROLE_BIAS};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        bare = bare && (spec->type[narrow[i]] == DTYPE_NONE || role_bytes(spec, narrow[i]) == 2);
    return bare && !spec->real_double && c->hold == HOLD_IN_REGISTERS && c->width == 8 &&
           c->variant == ROWS_PLAIN && c->chunks_per_thread <= 4 && spec->cluster == 1;
}

/* Whether such a row's y waits for its scale in the registers that had the row: 64 of them do
 * (tests/cuda/test_quantised_registers.py). */
static bool is_lean(const cuda_limits *limits, const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    if (!is_quantised_alone(spec) || c->cols <= MOST_CENTRED || c->rows > 1)
        return false;
    const bool found = spec->type[ROLE_Y_SCALES] != DTYPE_NONE, layer = spec->kind == 0;
    const bool blocks = found && spec->stages.scale_block < c->cols;
    const int arch = limits->arch;
    if (arch >= 110 || (layer && (arch >= 100 || blocks || !found)) || (!found && arch < 89) ||
        (!found && arch >= 100 && spec->type[ROLE_Q] == DTYPE_I8))
        return false;
    /* A last chunk that some lanes have not takes more. */
    return c->chunks_per_thread * c->threads_per_row * c->width == c->cols ||
           (arch >= 90 && !layer && spec->type[ROLE_Q] != DTYPE_I8);
}

/* A row of one warp waits for its sums, its largest and its weights one after the other, and
 * nothing is left to hide that: the weights come beside x, for a quarter of the warps. Not where a
 * residual is under way already, nor where the scale is given and y waits for nothing. */
static bool loads_early(const cuda_limits *limits, const cuda_spec *spec) {
    return is_lean(limits, spec) && spec->rows.threads_per_row == 32 &&
           spec->type[ROLE_Y_SCALES] != DTYPE_NONE && spec->type[ROLE_RESIDUAL] == DTYPE_NONE &&
           spec->type[ROLE_BIAS] == DTYPE_NONE;
}

/* Longer rows whose weights wait in shared memory, where there is time for them: y waits for no
 * scale, or a residual is under way as well. */
static bool weights_wait(const cuda_limits *limits, const cuda_spec *spec) {
    return is_lean(limits, spec) && spec->rows.threads_per_row > 32 &&
           spec->type[ROLE_WEIGHT] != DTYPE_NONE && spec->type[ROLE_BIAS] == DTYPE_NONE &&
           (spec->type[ROLE_Y_SCALES] == DTYPE_NONE || spec->type[ROLE_RESIDUAL] != DTYPE_NONE);
}

/* Rows of 16 bits, their parameters too, in registers, one at a time, with these stages and no
 * other. */
static bool has_only(const cuda_spec *spec, unsigned stages) {
    const rows_constants *c = &spec->rows;
    const unsigned of_rows = ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD) | ROLE_BIT(ROLE_RNG);
    for (role r = 0; r < ROLE_COUNT; r++)
        if (spec->type[r] != DTYPE_NONE && !(of_rows & ROLE_BIT(r)) &&
            ((r >= NORM_ROLES && !(stages & ROLE_BIT(r))) || role_bytes(spec, r) != 2))
            return false;
    return !spec->real_double && spec->activation == PLANISH_IDENTITY && !spec->stages.round_xhat &&
           c->hold == HOLD_IN_REGISTERS && c->variant == ROWS_PLAIN && c->cols > MOST_CENTRED &&
           c->rows == 1 && c->width == 8 && c->chunks_per_thread <= 4 && spec->cluster == 1;
}

static bool is_sum(const cuda_spec *spec) {
    return spec->type[ROLE_RESIDUAL] != DTYPE_NONE &&
           has_only(spec, ROLE_BIT(ROLE_BRANCH) | ROLE_BIT(ROLE_RESIDUAL) | ROLE_BIT(ROLE_SUM));
}

/* Where weight and bias wait that are asked for before the statistics, and how many threads a
 * multiprocessor holds then, 0: as many as else. */
typedef struct early {
    int where; /* a forward_early, or 0 */
    int threads;
} early;

static early early_of_quantised(const cuda_limits *limits, const cuda_spec *spec) {
    if (loads_early(limits, spec))
        return (early){EARLY_IN_REGISTERS, EARLY_THREADS};
    if (weights_wait(limits, spec))
        return (early){EARLY_IN_SHARED, 0};
    return (early){is_lean(limits, spec) && spec->rows.threads_per_row > 32 ? EARLY_TO_L1 : 0, 0};
}

static early early_of_sum(const cuda_spec *spec) {
    const bool layer = spec->kind == PLANISH_LAYER, of_warp = spec->rows.threads_per_row == 32;
    if (spec->stages.dropout)
        return (early){EARLY_IN_REGISTERS, EARLY_THREADS};
    if (layer)
        return of_warp ? (early){0, SUM_THREADS} : (early){EARLY_TO_L1, LAYER_THREADS};
    return of_warp ? (early){EARLY_IN_REGISTERS, SUM_THREADS} : (early){0, 0};
}

/* By stage, kind and length the fastest of what was timed (docs/notebook/034). */
static early early_of(const cuda_limits *limits, const cuda_spec *spec) {
    if (spec->type[ROLE_Q] != DTYPE_NONE)
        return early_of_quantised(limits, spec);
    if (!limits->tuning->rows_forward.early)
        return (early){0, 0};
    if (is_gate_alone(spec) && has_only(spec, ROLE_BIT(ROLE_BRANCH) | ROLE_BIT(ROLE_GATE)))
        return spec->rows.threads_per_row <= MOST_EARLY_LANES
                   ? (early){EARLY_IN_REGISTERS, EARLY_THREADS}
                   : (early){EARLY_TO_L1, 0};
    return is_sum(spec) ? early_of_sum(spec) : (early){0, 0};
}

/* Short rows, one at a time, of which registers hold so many warps' on a H100 or H200. */
static bool is_short_quantised(const cuda_limits *limits, const cuda_spec *spec) {
    return limits->arch >= 90 && limits->arch < 100 && spec->kind != 0 &&
           is_quantised_alone(spec) && spec->type[ROLE_Q] != DTYPE_I8 &&
           spec->type[ROLE_RESIDUAL] == DTYPE_NONE && spec->rows.cols <= MOST_CENTRED;
}

void around_set_blocks(const cuda_limits *limits, cuda_spec *spec) {
    rows_constants *c = &spec->rows;
    if (loads_early(limits, spec))
        c->warps = QUANTISED_WARPS;
    int threads = early_of(limits, spec).threads;
    if (!threads && is_gate_alone(spec) && c->width * c->chunks_per_thread * c->rows <= MOST_GATED)
        threads = GATED_THREADS;
    else if (!threads && is_lean(limits, spec))
        threads = limits->tuning->rows_forward.threads;
    if (threads) {
        spec->min_blocks = most(1, threads / (32 * c->warps));
        return;
    }
    if (is_short_quantised(limits, spec)) {
        c->rows = 1;
        spec->min_blocks = SHORT_THREADS / (32 * c->warps);
        return;
    }
    while (c->threads_per_row <= 32 && c->rows > 1 && registers_of(spec) > 100)
        c->rows /= 2;
    threads = 32 * limits->tuning->lane_registers / most(32, registers_of(spec));
    spec->min_blocks = most(1, least(spec->min_blocks, threads / (32 * c->warps)));
}

int around_early(const cuda_limits *limits, const cuda_spec *spec) {
    return early_of(limits, spec).where;
}
