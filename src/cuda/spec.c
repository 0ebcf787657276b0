#include "cuda/spec.h"

#include <ctype.h>
#include <string.h>

#include "cuda/families.h"
#include "text.h"

/* A constant of this name in that field of a spec. */
#define AT(name, field) {name, offsetof(cuda_spec, field), sizeof(((cuda_spec *)NULL)->field)}

/* Every kernel's. The first is asked by #if, which constants of the language cannot be. */
static const cuda_constant common_list[] = {
    AT("REAL_DOUBLE", real_double),
    AT("KIND", kind),
    AT("ACTIVATION", activation),
    AT("PASS", pass),
    AT("WEIGHT_OFFSET", weight_offset),
    AT("CORRECT", correct),
    AT("WANT_DWEIGHT", want_dweight),
    AT("WANT_DBIAS", want_dbias),
    AT("CLUSTER", cluster),
    AT("COOPERATING_BLOCKS", cooperating_blocks),
    AT("MIN_BLOCKS", min_blocks),
    {NULL, 0, 0},
};

const cuda_constant rows_forward_list[] = {
    AT("COLS", rows.cols),
    AT("WIDTH", rows.width),
    AT("THREADS_PER_ROW", rows.threads_per_row),
    AT("CHUNKS_PER_THREAD", rows.chunks_per_thread),
    AT("ROWS", rows.rows),
    AT("WARPS", rows.warps),
    AT("VARIANT", rows.variant),
    AT("HOLD", rows.hold),
    AT("RING_SLOTS", rows.ring_slots),
    AT("DELAY", rows.delay),
    AT("HELD_AS_WORDS", rows.held_as_words),
    AT("EARLY", rows.early),
    AT("GROUPS", rows.groups),
    AT("PIXELS", rows.pixels),
    AT("DENSE", rows.dense),
    AT("LEVELS", rows.levels),
    AT("SLICED", rows.sliced),
    {NULL, 0, 0},
};

const cuda_constant rows_backward_list[] = {
    AT("COLS", rows.cols),
    AT("WIDTH", rows.width),
    AT("THREADS_PER_ROW", rows.threads_per_row),
    AT("CHUNKS_PER_THREAD", rows.chunks_per_thread),
    AT("ROWS", rows.rows),
    AT("WARPS", rows.warps),
    AT("TEAMS", rows.teams),
    AT("VARIANT", rows.variant),
    AT("HOLD", rows.hold),
    AT("RING_SLOTS", rows.ring_slots),
    AT("DELAY", rows.delay),
    AT("PLANES", rows.planes),
    AT("DENSE", rows.dense),
    AT("DSUM_IN_RING", rows.dsum_in_ring),
    AT("LEVELS", rows.levels),
    AT("SLICED", rows.sliced),
    {NULL, 0, 0},
};

const cuda_constant rows_long_list[] = {
    AT("COLS", rows.cols),
    AT("WIDTH", rows.width),
    AT("WARPS", rows.warps),
    {NULL, 0, 0},
};

const cuda_constant channels_list[] = {
    AT("COLS", channels.cols),
    AT("PIXELS", channels.pixels),
    AT("TILE_PIXELS", channels.tile_pixels),
    AT("DEPTH", channels.depth),
    AT("LINE_CHANNELS", channels.line_channels),
    AT("WIDTH", channels.width),
    AT("LANES", channels.lanes),
    AT("PLANES", channels.planes),
    AT("WARPS", channels.warps),
    AT("RING_SLOTS", channels.ring_slots),
    AT("LAST", channels.last),
    AT("OUT_THROUGH_SHARED", channels.out_through_shared),
    {NULL, 0, 0},
};

const cuda_constant groups_list[] = {
    AT("VARIANT", groups.variant),
    AT("GROUPS", groups.groups),
    AT("DEPTH", groups.depth),
    AT("PIXELS", groups.pixels),
    AT("COLS", groups.cols),
    AT("PIECE", groups.piece),
    AT("WIDTH", groups.width),
    AT("LANES", groups.lanes),
    AT("THREADS_PER_CHANNEL", groups.lanes), /* of tiles */
    AT("PLANES", groups.planes),
    AT("WARPS", groups.warps),
    AT("ROWS", groups.rows),
    AT("OUT_LIES_AS_X", groups.out_lies_as_x),
    AT("LAST", groups.last),
    {NULL, 0, 0},
};

const cuda_constant strips_list[] = {
    AT("GROUPS", groups.groups),
    AT("DEPTH", groups.depth),
    AT("PIXELS", groups.pixels),
    AT("COLS", groups.cols),
    AT("TILE_CHANNELS", groups.tile_channels),
    AT("PIECE", groups.piece),
    AT("WIDTH", groups.width),
    AT("LANES", groups.lanes),
    AT("PLANES", groups.planes),
    AT("WARPS", groups.warps),
    AT("HOLD", groups.hold),
    AT("AHEAD", groups.ahead),
    AT("LATE_HALF", groups.late_half),
    {NULL, 0, 0},
};

const cuda_constant batch_list[] = {
    AT("VARIANT", batch.variant),
    AT("LAST", batch.last),
    AT("PIXELS", batch.pixels),
    AT("WIDTH", batch.width),
    AT("LANES", batch.lanes),
    AT("WARPS", batch.warps),
    AT("AT_ONCE", batch.at_once),
    AT("HOLD", batch.hold),
    AT("HELD_COME", batch.held_come),
    AT("FROZEN", batch.frozen),
    AT("ALONE", batch.alone),
    AT("ASK_AHEAD", batch.ask_ahead),
    {NULL, 0, 0},
};

const cuda_constant stages_backward_rows_list[] = {
    AT("COLS", rows.cols),
    AT("WIDTH", rows.width),
    AT("THREADS_PER_ROW", rows.threads_per_row),
    AT("CHUNKS_PER_THREAD", rows.chunks_per_thread),
    AT("WARPS", rows.warps),
    AT("TEAMS", rows.teams),
    AT("RING_SLOTS", rows.ring_slots),
    AT("GATE_BEFORE", stages.gate_before),
    AT("DROPOUT", stages.dropout),
    AT("TWO_LEVELS", stages.two_levels),
    AT("BY_SAMPLE", stages.by_sample),
    AT("VARIES", stages.varies),
    AT("ALIKE", stages.alike),
    AT("INDEX_ALIGNED", stages.index_aligned),
    {NULL, 0, 0},
};

const cuda_constant stages_samples_list[] = {
    AT("COLS", finish.cols),
    AT("LANES", finish.lanes),
    AT("ROWS", finish.rows),
    AT("SLICES", finish.slices),
    {NULL, 0, 0},
};

#define STAGES_LIST                                                                                \
    AT("GATE_BEFORE", stages.gate_before), AT("ROUND_XHAT", stages.round_xhat),                    \
        AT("DROPOUT", stages.dropout), AT("POWER_OF_TWO", stages.power_of_two)

const cuda_constant stages_forward_list[] = {
    AT("COLS", rows.cols),
    AT("WIDTH", rows.width),
    AT("THREADS_PER_ROW", rows.threads_per_row),
    AT("CHUNKS_PER_THREAD", rows.chunks_per_thread),
    AT("ROWS", rows.rows),
    AT("WARPS", rows.warps),
    AT("VARIANT", rows.variant),
    AT("HOLD", rows.hold),
    AT("RING_SLOTS", rows.ring_slots),
    AT("DELAY", rows.delay),
    AT("HELD_AS_WORDS", rows.held_as_words),
    AT("EARLY", rows.early),
    AT("GROUPS", rows.groups),
    AT("PIXELS", rows.pixels),
    AT("DENSE", rows.dense),
    STAGES_LIST,
    AT("WANT_Y", stages.want_y),
    AT("GATE_IN_SHARED", stages.gate_in_shared),
    AT("TWO_LEVELS", stages.two_levels),
    AT("INDEX_ALIGNED", stages.index_aligned),
    AT("SCALE_BLOCK", stages.scale_block),
    AT("VARIES", stages.varies),
    AT("ALIKE", stages.alike),
    {NULL, 0, 0},
};

const cuda_constant general_list[] = {
    AT("LANES", general.lanes),
    AT("WARPS", general.warps),
    AT("SLICES", general.slices),
    AT("TARGET", general.target),
    AT("STAGES", general.stages),
    STAGES_LIST,
    AT("STAGES_DOUBLE", stages.is_double),
    AT("S_TYPE", stages.sum_type),
    {NULL, 0, 0},
};

const cuda_constant stages_sum_list[] = {
    AT("WIDTH", sum.width),
    AT("CHUNKS", sum.chunks),
    AT("WARPS", sum.warps),
    AT("AXES", sum.axes),
    AT("NARROW", sum.narrow),
    AT("DROPOUT", stages.dropout),
    AT("INDEX_ALIGNED", stages.index_aligned),
    AT("ALIKE", stages.alike),
    {NULL, 0, 0},
};

const cuda_constant merge_list[] = {{NULL, 0, 0}};

const cuda_constant finish_list[] = {
    AT("COLS", finish.cols),
    AT("LANES", finish.lanes),
    AT("ROWS", finish.rows),
    AT("SLICES", finish.slices),
    {NULL, 0, 0},
};

/* Whether it is role_words, and no number. */
static bool is_set(const cuda_constant *c) {
    return c->bytes == sizeof(role_words);
}

/* The number of the tensor that a text names, such as "x]"; -1: none. */
static int role_of(const char *name) {
    for (role r = 0; r < ROLE_COUNT; r++) {
        const size_t length = strlen(role_name(r));
        if (!strncmp(name, role_name(r), length) && !strcmp(name + length, "]"))
            return r;
    }
    return -1;
}

/* A number of one byte or of four. */
static int32_t number_at(const void *at, size_t bytes) {
    int32_t value;
    if (bytes == 1)
        return *(const uint8_t *)at;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Where such a constant is, and of how many bytes. NULL: there is none. */
static char *place_of(cuda_spec *spec, const char *name, size_t *bytes) {
    const cuda_constant *const lists[] = {cuda_kernel_of(spec)->constants, common_list};
    static const char type[] = "TYPES[", access[] = "ACCESSES[";
    const bool is_type = !strncmp(name, type, sizeof type - 1);
    *bytes = 1;
    if (is_type || !strncmp(name, access, sizeof access - 1)) {
        const int r = role_of(name + (is_type ? sizeof type : sizeof access) - 1);
        return r < 0 ? NULL : (char *)(is_type ? &spec->type[r] : &spec->access[r]);
    }
    for (int i = 0; i < 2; i++)
        for (const cuda_constant *c = lists[i]; c->name; c++)
            if (!strcmp(c->name, name) && !is_set(c)) {
                *bytes = c->bytes;
                return (char *)spec + c->offset;
            }
    return NULL;
}

bool cuda_spec_get(const cuda_spec *spec, const char *name, int32_t *value) {
    cuda_spec own = *spec;
    size_t bytes;
    const char *const at = place_of(&own, name, &bytes);
    if (at)
        *value = number_at(at, bytes);
    return at != NULL;
}

bool cuda_spec_set(cuda_spec *spec, const char *name, int32_t value) {
    size_t bytes;
    char *const at = place_of(spec, name, &bytes);
    if (!at)
        return false;
    if (bytes == 1)
        *(uint8_t *)at = (uint8_t)value;
    else
        memcpy(at, &value, bytes);
    return true;
}

/* An array with a number for each tensor. */
static void append_roles(text *to, const char *name, const uint8_t values[]) {
    append(to, "constexpr int %s[] = {", name);
    for (int r = 0; r < ROLE_COUNT; r++)
        append(to, "%s%d", r ? ", " : "", values[r]);
    append(to, "};\n");
}

static void append_constant(text *to, const cuda_constant *c, const void *at) {
    if (is_set(c)) {
        const role_words *set = at;
        append(to, "constexpr unsigned long long %s = 0x%x%08xull;\n", c->name, set->word[1],
               set->word[0]);
    } else {
        append(to, "constexpr int %s = %d;\n", c->name, number_at(at, c->bytes));
    }
}

size_t cuda_spec_prelude(const cuda_spec *spec, char *start, size_t bytes) {
    const cuda_constant *const lists[] = {cuda_kernel_of(spec)->constants, common_list};
    text to = {start, bytes, 0};
    append(&to, "#define %s %d\nconstexpr int WARP = %d;\n", common_list[0].name, spec->real_double,
           WARP);
    for (int i = 0; i < 2; i++)
        for (const cuda_constant *c = lists[i] + (i == 1); c->name; c++)
            append_constant(&to, c, (const char *)spec + c->offset);
    append(&to, "enum {");
    for (role r = 0; r < ROLE_COUNT; r++) {
        append(&to, " ROLE_");
        for (const char *c = role_name(r); *c; c++)
            append(&to, "%c", toupper((unsigned char)*c));
        append(&to, ",");
    }
    append(&to, " ROLE_COUNT };\n");
    append_roles(&to, "TYPES", spec->type);
    append_roles(&to, "ACCESSES", spec->access);
    return to.length;
}

void cuda_spec_describe(cuda_spec *spec, const problem *p) {
    spec->kind = rule_is_l2(&p->rule) ? PLANISH_L2 : p->kind;
    spec->activation = p->activation;
    spec->weight_offset = p->weight_offset;
    for (int r = 0; r < ROLE_COUNT; r++)
        spec->type[r] = p->dtypes[r];
}
