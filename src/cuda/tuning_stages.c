/*
 * Rows of registers that were counted (tests/cuda/test_quantised_registers.py, test_compile.py) and
 * timed (docs/notebook/033, 034).
 */
#include "cuda/tuning_stages.h"

#include "cuda/spec.h"

enum { LAYER = 1 << PLANISH_LAYER, RMS = 1 << PLANISH_RMS | 1 << PLANISH_L2 };
enum { ANY_KIND = LAYER | RMS };
enum { ANY_LANES = 1 << 10 };

/* By stage, kind and length the fastest of what was timed. The first rows hold for every
 * architecture, the rest for that on which they were timed. */
enum { EARLY_EVERYWHERE = 4 };
static const early_rows early[] = {
    /* A quantised row of one warp waits for its sums, its largest and its weights one after the
     * other, and nothing is left to hide that: the weights come beside x, for a quarter of the
     * warps. Not where a residual is under way already, nor where the scale is given and y waits
     * for nothing. */
    {.of = EARLY_QUANTISED,
     .kinds = ANY_KIND,
     .has = ROLE_BIT(ROLE_Y_SCALES),
     .lacks = ROLE_BIT(ROLE_RESIDUAL) | ROLE_BIT(ROLE_BIAS),
     .least_lanes = WARP,
     .most_lanes = WARP,
     .where = EARLY_IN_REGISTERS,
     .threads = 768,
     .warps = 2},
    /* Longer ones have time for weights that wait in shared memory where y waits for no scale, or a
     * residual is under way as well. */
    {.of = EARLY_QUANTISED,
     .kinds = ANY_KIND,
     .has = ROLE_BIT(ROLE_WEIGHT),
     .lacks = ROLE_BIT(ROLE_BIAS) | ROLE_BIT(ROLE_Y_SCALES),
     .least_lanes = WARP + 1,
     .most_lanes = ANY_LANES,
     .where = EARLY_IN_SHARED},
    {.of = EARLY_QUANTISED,
     .kinds = ANY_KIND,
     .has = ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_RESIDUAL),
     .lacks = ROLE_BIT(ROLE_BIAS),
     .least_lanes = WARP + 1,
     .most_lanes = ANY_LANES,
     .where = EARLY_IN_SHARED},
    {.of = EARLY_QUANTISED,
     .kinds = ANY_KIND,
     .least_lanes = WARP + 1,
     .most_lanes = ANY_LANES,
     .where = EARLY_TO_L1},
    /* The rest. */
    {.of = EARLY_GATED,
     .kinds = ANY_KIND,
     .most_lanes = 256,
     .where = EARLY_IN_REGISTERS,
     .threads = 768},
    {.of = EARLY_GATED, .kinds = ANY_KIND, .most_lanes = ANY_LANES, .where = EARLY_TO_L1},
    {.of = EARLY_DROPPED,
     .kinds = ANY_KIND,
     .most_lanes = ANY_LANES,
     .where = EARLY_IN_REGISTERS,
     .threads = 768},
    {.of = EARLY_SUM, .kinds = LAYER, .least_lanes = WARP, .most_lanes = WARP, .threads = 1024},
    {.of = EARLY_SUM,
     .kinds = LAYER,
     .most_lanes = ANY_LANES,
     .where = EARLY_TO_L1,
     .threads = 896},
    {.of = EARLY_SUM,
     .kinds = RMS,
     .least_lanes = WARP,
     .most_lanes = WARP,
     .where = EARLY_IN_REGISTERS,
     .threads = 1024},
};
enum { EARLY_ALL = sizeof early / sizeof *early };

/* Of quantised rows whose y needs no registers of its own: what 64 of them do without a spill. A
 * last chunk that some lanes have not takes more. */
static const quantised_rows lean_80[] = {
    {RMS, SCALE_OF_ROWS | SCALE_OF_BLOCKS, ANY_QUANTISED, false},
    {LAYER, SCALE_OF_ROWS, ANY_QUANTISED, false},
};
static const quantised_rows lean_89[] = {
    {RMS, ANY_SCALE, ANY_QUANTISED, false},
    {LAYER, SCALE_OF_ROWS, ANY_QUANTISED, false},
};
static const quantised_rows lean_90[] = {
    {RMS, ANY_SCALE, QUANTISED_F8, true},
    {RMS, ANY_SCALE, QUANTISED_I8, false},
    {LAYER, SCALE_OF_ROWS, ANY_QUANTISED, false},
};
static const quantised_rows lean_100[] = {
    {RMS, ANY_SCALE, QUANTISED_F8, true},
    {RMS, SCALE_OF_ROWS | SCALE_OF_BLOCKS, QUANTISED_I8, false},
};

/* Sets a list and its length. */
#define SET_LEAN(row, list)                                                                        \
    ((row)->lean = (list), (row)->lean_count = (int)(sizeof(list) / sizeof *(list)))

static void sm_80(stages_tuning *t) {
    *t = (stages_tuning){.held_chunks = 4,
                         .gated_columns = 32,
                         .gated_threads = 1024,
                         .early = early,
                         .early_count = EARLY_EVERYWHERE,
                         .registers = 44,
                         .double_registers = 40,
                         .column_registers = 2,
                         .scaled_registers = 16,
                         .most_registers = 100,
                         .has_room = false,
                         .modulated_cluster = 2, /* no device has room for 16 clusters of eight */
                         .back_lanes = 512,
                         .back_teams = 8,
                         .back_warps = 4,
                         .back_words = 72,
                         .back_threads = 512};
    SET_LEAN(t, lean_80);
}

static void sm_89(stages_tuning *t) {
    SET_LEAN(t, lean_89);
}

static void sm_90(stages_tuning *t) {
    SET_LEAN(t, lean_90);
    t->early_count = EARLY_ALL;
    t->short_rows = (quantised_rows){RMS, ANY_SCALE, QUANTISED_F8, true};
    t->short_threads = 1024;
    t->has_room = true;
}

/* The assembler takes a few registers more, and nothing was timed. */
static void sm_100(stages_tuning *t) {
    SET_LEAN(t, lean_100);
    t->early_count = EARLY_EVERYWHERE;
    t->short_rows.kinds = 0;
    t->has_room = false;
}

static void sm_110(stages_tuning *t) {
    t->lean_count = 0;
}

void stages_tuning_change(int arch, stages_tuning *row) {
    static const struct {
        int arch;
        void (*change)(stages_tuning *row);
    } changes[] = {{80, sm_80}, {89, sm_89}, {90, sm_90}, {100, sm_100}, {110, sm_110}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (changes[i].arch == arch)
            changes[i].change(row);
}
