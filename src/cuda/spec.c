#include "cuda/spec.h"

#include <ctype.h>
#include <string.h>

#include "cuda/families.h"
#include "text.h"

/* Every kernel's. The first is asked by #if, which constants of the language cannot be. */
static const cuda_constant common_list[] = {
    {"REAL_DOUBLE", offsetof(cuda_spec, real_double)},
    {"KIND", offsetof(cuda_spec, kind)},
    {"ACTIVATION", offsetof(cuda_spec, activation)},
    {"PASS", offsetof(cuda_spec, pass)},
    {"WEIGHT_OFFSET", offsetof(cuda_spec, weight_offset)},
    {"CORRECT", offsetof(cuda_spec, correct)},
    {"WANT_DWEIGHT", offsetof(cuda_spec, want_dweight)},
    {"WANT_DBIAS", offsetof(cuda_spec, want_dbias)},
    {"CLUSTER", offsetof(cuda_spec, cluster)},
    {"COOPERATING_BLOCKS", offsetof(cuda_spec, cooperating_blocks)},
    {"MIN_BLOCKS", offsetof(cuda_spec, min_blocks)},
    {NULL, 0},
};

const cuda_constant rows_forward_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"THREADS_PER_ROW", offsetof(cuda_spec, rows.threads_per_row)},
    {"CHUNKS_PER_THREAD", offsetof(cuda_spec, rows.chunks_per_thread)},
    {"ROWS", offsetof(cuda_spec, rows.rows)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"VARIANT", offsetof(cuda_spec, rows.variant)},
    {"HOLD", offsetof(cuda_spec, rows.hold)},
    {"RING_SLOTS", offsetof(cuda_spec, rows.ring_slots)},
    {"DELAY", offsetof(cuda_spec, rows.delay)},
    {"HELD_AS_WORDS", offsetof(cuda_spec, rows.held_as_words)},
    {"EARLY", offsetof(cuda_spec, rows.early)},
    {"GROUPS", offsetof(cuda_spec, rows.groups)},
    {"PIXELS", offsetof(cuda_spec, rows.pixels)},
    {"DENSE", offsetof(cuda_spec, rows.dense)},
    {"LEVELS", offsetof(cuda_spec, rows.levels)},
    {"SLICED", offsetof(cuda_spec, rows.sliced)},
    {NULL, 0},
};

const cuda_constant rows_backward_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"THREADS_PER_ROW", offsetof(cuda_spec, rows.threads_per_row)},
    {"CHUNKS_PER_THREAD", offsetof(cuda_spec, rows.chunks_per_thread)},
    {"ROWS", offsetof(cuda_spec, rows.rows)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"TEAMS", offsetof(cuda_spec, rows.teams)},
    {"VARIANT", offsetof(cuda_spec, rows.variant)},
    {"HOLD", offsetof(cuda_spec, rows.hold)},
    {"RING_SLOTS", offsetof(cuda_spec, rows.ring_slots)},
    {"DELAY", offsetof(cuda_spec, rows.delay)},
    {"PLANES", offsetof(cuda_spec, rows.planes)},
    {"DENSE", offsetof(cuda_spec, rows.dense)},
    {"DSUM_IN_RING", offsetof(cuda_spec, rows.dsum_in_ring)},
    {"LEVELS", offsetof(cuda_spec, rows.levels)},
    {"SLICED", offsetof(cuda_spec, rows.sliced)},
    {NULL, 0},
};

const cuda_constant rows_long_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {NULL, 0},
};

const cuda_constant channels_list[] = {
    {"COLS", offsetof(cuda_spec, channels.cols)},
    {"PIXELS", offsetof(cuda_spec, channels.pixels)},
    {"TILE_PIXELS", offsetof(cuda_spec, channels.tile_pixels)},
    {"DEPTH", offsetof(cuda_spec, channels.depth)},
    {"LINE_CHANNELS", offsetof(cuda_spec, channels.line_channels)},
    {"WIDTH", offsetof(cuda_spec, channels.width)},
    {"LANES", offsetof(cuda_spec, channels.lanes)},
    {"PLANES", offsetof(cuda_spec, channels.planes)},
    {"WARPS", offsetof(cuda_spec, channels.warps)},
    {"RING_SLOTS", offsetof(cuda_spec, channels.ring_slots)},
    {"LAST", offsetof(cuda_spec, channels.last)},
    {"OUT_THROUGH_SHARED", offsetof(cuda_spec, channels.out_through_shared)},
    {NULL, 0},
};

const cuda_constant groups_list[] = {
    {"VARIANT", offsetof(cuda_spec, groups.variant)},
    {"GROUPS", offsetof(cuda_spec, groups.groups)},
    {"DEPTH", offsetof(cuda_spec, groups.depth)},
    {"PIXELS", offsetof(cuda_spec, groups.pixels)},
    {"COLS", offsetof(cuda_spec, groups.cols)},
    {"PIECE", offsetof(cuda_spec, groups.piece)},
    {"WIDTH", offsetof(cuda_spec, groups.width)},
    {"LANES", offsetof(cuda_spec, groups.lanes)},
    {"THREADS_PER_CHANNEL", offsetof(cuda_spec, groups.lanes)}, /* of tiles */
    {"PLANES", offsetof(cuda_spec, groups.planes)},
    {"WARPS", offsetof(cuda_spec, groups.warps)},
    {"ROWS", offsetof(cuda_spec, groups.rows)},
    {"OUT_LIES_AS_X", offsetof(cuda_spec, groups.out_lies_as_x)},
    {"LAST", offsetof(cuda_spec, groups.last)},
    {NULL, 0},
};

const cuda_constant strips_list[] = {
    {"GROUPS", offsetof(cuda_spec, groups.groups)},
    {"DEPTH", offsetof(cuda_spec, groups.depth)},
    {"PIXELS", offsetof(cuda_spec, groups.pixels)},
    {"COLS", offsetof(cuda_spec, groups.cols)},
    {"TILE_CHANNELS", offsetof(cuda_spec, groups.tile_channels)},
    {"PIECE", offsetof(cuda_spec, groups.piece)},
    {"WIDTH", offsetof(cuda_spec, groups.width)},
    {"LANES", offsetof(cuda_spec, groups.lanes)},
    {"PLANES", offsetof(cuda_spec, groups.planes)},
    {"WARPS", offsetof(cuda_spec, groups.warps)},
    {"HOLD", offsetof(cuda_spec, groups.hold)},
    {"AHEAD", offsetof(cuda_spec, groups.ahead)},
    {"LATE_HALF", offsetof(cuda_spec, groups.late_half)},
    {NULL, 0},
};

const cuda_constant batch_list[] = {
    {"VARIANT", offsetof(cuda_spec, batch.variant)},
    {"LAST", offsetof(cuda_spec, batch.last)},
    {"PIXELS", offsetof(cuda_spec, batch.pixels)},
    {"WIDTH", offsetof(cuda_spec, batch.width)},
    {"LANES", offsetof(cuda_spec, batch.lanes)},
    {"WARPS", offsetof(cuda_spec, batch.warps)},
    {"AT_ONCE", offsetof(cuda_spec, batch.at_once)},
    {"HOLD", offsetof(cuda_spec, batch.hold)},
    {"FROZEN", offsetof(cuda_spec, batch.frozen)},
    {"ALONE", offsetof(cuda_spec, batch.alone)},
    {NULL, 0},
};

const cuda_constant general_list[] = {
    {"LANES", offsetof(cuda_spec, general.lanes)},
    {"WARPS", offsetof(cuda_spec, general.warps)},
    {"SLICES", offsetof(cuda_spec, general.slices)},
    {NULL, 0},
};

const cuda_constant stages_backward_rows_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"THREADS_PER_ROW", offsetof(cuda_spec, rows.threads_per_row)},
    {"CHUNKS_PER_THREAD", offsetof(cuda_spec, rows.chunks_per_thread)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"TEAMS", offsetof(cuda_spec, rows.teams)},
    {"RING_SLOTS", offsetof(cuda_spec, rows.ring_slots)},
    {"GATE_BEFORE", offsetof(cuda_spec, stages.gate_before)},
    {"DROPOUT", offsetof(cuda_spec, stages.dropout)},
    {"TWO_LEVELS", offsetof(cuda_spec, stages.two_levels)},
    {"BY_SAMPLE", offsetof(cuda_spec, stages.by_sample)},
    {"VARIES", offsetof(cuda_spec, stages.varies)},
    {"ALIKE", offsetof(cuda_spec, stages.alike)},
    {"INDEX_ALIGNED", offsetof(cuda_spec, stages.index_aligned)},
    {NULL, 0},
};

const cuda_constant stages_samples_list[] = {
    {"COLS", offsetof(cuda_spec, finish.cols)},
    {"LANES", offsetof(cuda_spec, finish.lanes)},
    {"ROWS", offsetof(cuda_spec, finish.rows)},
    {"SLICES", offsetof(cuda_spec, finish.slices)},
    {NULL, 0},
};

const cuda_constant stages_backward_list[] = {
    {"LANES", offsetof(cuda_spec, stages_back.lanes)},
    {"WARPS", offsetof(cuda_spec, stages_back.warps)},
    {"SLICES", offsetof(cuda_spec, stages_back.slices)},
    {"TARGET", offsetof(cuda_spec, stages_back.target)},
    {"GATED", offsetof(cuda_spec, stages_back.gate)},
    {"DROPS", offsetof(cuda_spec, stages_back.drops)},
    {"SINGLE", offsetof(cuda_spec, stages_back.single)},
    {NULL, 0},
};

#define STAGES_LIST                                                                                \
    {"GATE_BEFORE", offsetof(cuda_spec, stages.gate_before)},                                      \
        {"ROUND_XHAT", offsetof(cuda_spec, stages.round_xhat)},                                    \
        {"DROPOUT", offsetof(cuda_spec, stages.dropout)}, {                                        \
        "POWER_OF_TWO", offsetof(cuda_spec, stages.power_of_two)                                   \
    }

const cuda_constant stages_forward_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"THREADS_PER_ROW", offsetof(cuda_spec, rows.threads_per_row)},
    {"CHUNKS_PER_THREAD", offsetof(cuda_spec, rows.chunks_per_thread)},
    {"ROWS", offsetof(cuda_spec, rows.rows)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"VARIANT", offsetof(cuda_spec, rows.variant)},
    {"HOLD", offsetof(cuda_spec, rows.hold)},
    {"RING_SLOTS", offsetof(cuda_spec, rows.ring_slots)},
    {"DELAY", offsetof(cuda_spec, rows.delay)},
    {"HELD_AS_WORDS", offsetof(cuda_spec, rows.held_as_words)},
    {"EARLY", offsetof(cuda_spec, rows.early)},
    {"GROUPS", offsetof(cuda_spec, rows.groups)},
    {"PIXELS", offsetof(cuda_spec, rows.pixels)},
    {"DENSE", offsetof(cuda_spec, rows.dense)},
    STAGES_LIST,
    {"WANT_Y", offsetof(cuda_spec, stages.want_y)},
    {"GATE_IN_SHARED", offsetof(cuda_spec, stages.gate_in_shared)},
    {"TWO_LEVELS", offsetof(cuda_spec, stages.two_levels)},
    {"INDEX_ALIGNED", offsetof(cuda_spec, stages.index_aligned)},
    {"SCALE_BLOCK", offsetof(cuda_spec, stages.scale_block)},
    {"VARIES", offsetof(cuda_spec, stages.varies)},
    {"ALIKE", offsetof(cuda_spec, stages.alike)},
    {NULL, 0},
};

const cuda_constant stages_general_list[] = {
    {"LANES", offsetof(cuda_spec, general.lanes)},
    {"WARPS", offsetof(cuda_spec, general.warps)},
    {"SLICES", offsetof(cuda_spec, general.slices)},
    STAGES_LIST,
    {"STAGES_DOUBLE", offsetof(cuda_spec, stages.is_double)},
    {"S_TYPE", offsetof(cuda_spec, stages.sum_type)},
    {NULL, 0},
};

const cuda_constant stages_sum_list[] = {
    {"WIDTH", offsetof(cuda_spec, sum.width)},
    {"CHUNKS", offsetof(cuda_spec, sum.chunks)},
    {"WARPS", offsetof(cuda_spec, sum.warps)},
    {"AXES", offsetof(cuda_spec, sum.axes)},
    {"NARROW", offsetof(cuda_spec, sum.narrow)},
    {"DROPOUT", offsetof(cuda_spec, stages.dropout)},
    {"INDEX_ALIGNED", offsetof(cuda_spec, stages.index_aligned)},
    {"ALIKE", offsetof(cuda_spec, stages.alike)},
    {NULL, 0},
};

const cuda_constant finish_list[] = {
    {"COLS", offsetof(cuda_spec, finish.cols)},
    {"LANES", offsetof(cuda_spec, finish.lanes)},
    {"ROWS", offsetof(cuda_spec, finish.rows)},
    {"SLICES", offsetof(cuda_spec, finish.slices)},
    {NULL, 0},
};

/* Whether it is role_words, and no number. */
static bool is_set(const cuda_constant *c) {
    return c->offset == offsetof(cuda_spec, stages.varies) ||
           c->offset == offsetof(cuda_spec, stages.alike);
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

/* Where such a constant is: one byte or four of them. NULL: there is none. */
static char *place_of(cuda_spec *spec, const char *name, size_t *bytes) {
    const cuda_constant *const lists[] = {cuda_kernel_of(spec)->constants, common_list};
    static const char type[] = "TYPES[", access[] = "ACCESSES[";
    const bool is_type = !strncmp(name, type, sizeof type - 1);
    *bytes = 1;
    if (is_type || !strncmp(name, access, sizeof access - 1)) {
        const int r = role_of(name + (is_type ? sizeof type : sizeof access) - 1);
        return r < 0 ? NULL : (char *)(is_type ? &spec->type[r] : &spec->access[r]);
    }
    *bytes = sizeof(int32_t);
    for (int i = 0; i < 2; i++)
        for (const cuda_constant *c = lists[i]; c->name; c++)
            if (!strcmp(c->name, name) && !is_set(c))
                return (char *)spec + c->offset;
    return NULL;
}

bool cuda_spec_get(const cuda_spec *spec, const char *name, int32_t *value) {
    cuda_spec own = *spec;
    size_t bytes;
    const char *const at = place_of(&own, name, &bytes);
    if (!at)
        return false;
    if (bytes == 1)
        *value = *(const uint8_t *)at;
    else
        memcpy(value, at, bytes);
    return true;
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
        append(to, "constexpr int %s = %d;\n", c->name, *(const int32_t *)at);
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
    spec->kind = p->kind;
    spec->activation = p->activation;
    spec->weight_offset = p->weight_offset;
    for (int r = 0; r < ROLE_COUNT; r++)
        spec->type[r] = p->dtypes[r];
}
