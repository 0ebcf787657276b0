#include "spec.h"

#include <stdio.h>
#include <string.h>

#include "families.h"

/* Every kernel's, but for what is asked by #if, which constants of the language cannot be. */
static const cuda_constant common_list[] = {
    {"KIND", offsetof(cuda_spec, kind)},
    {"ACTIVATION", offsetof(cuda_spec, activation)},
    {"PASS", offsetof(cuda_spec, pass)},
    {"WEIGHT_OFFSET", offsetof(cuda_spec, weight_offset)},
    {"CORRECT", offsetof(cuda_spec, correct)},
    {"WANT_DWEIGHT", offsetof(cuda_spec, want_dweight)},
    {"WANT_DBIAS", offsetof(cuda_spec, want_dbias)},
    {"X_TYPE", offsetof(cuda_spec, type[ROLE_X])},
    {"W_TYPE", offsetof(cuda_spec, type[ROLE_WEIGHT])},
    {"B_TYPE", offsetof(cuda_spec, type[ROLE_BIAS])},
    {"Y_TYPE", offsetof(cuda_spec, type[ROLE_Y])},
    {"MEAN_TYPE", offsetof(cuda_spec, type[ROLE_MEAN])},
    {"RSTD_TYPE", offsetof(cuda_spec, type[ROLE_RSTD])},
    {"M2_TYPE", offsetof(cuda_spec, type[ROLE_M2])},
    {"G_TYPE", offsetof(cuda_spec, type[ROLE_DY])},
    {"D_TYPE", offsetof(cuda_spec, type[ROLE_DX])},
    {"DW_TYPE", offsetof(cuda_spec, type[ROLE_DWEIGHT])},
    {"DB_TYPE", offsetof(cuda_spec, type[ROLE_DBIAS])},
    {"X_ACCESS", offsetof(cuda_spec, access[ROLE_X])},
    {"W_ACCESS", offsetof(cuda_spec, access[ROLE_WEIGHT])},
    {"B_ACCESS", offsetof(cuda_spec, access[ROLE_BIAS])},
    {"Y_ACCESS", offsetof(cuda_spec, access[ROLE_Y])},
    {"G_ACCESS", offsetof(cuda_spec, access[ROLE_DY])},
    {"D_ACCESS", offsetof(cuda_spec, access[ROLE_DX])},
    {"CLUSTER", offsetof(cuda_spec, cluster)},
    {"GROUP", offsetof(cuda_spec, group)},
    {"MIN_BLOCKS", offsetof(cuda_spec, min_blocks)},
    {NULL, 0},
};

const cuda_constant rows_forward_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},
    {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"LANES", offsetof(cuda_spec, rows.lanes)},
    {"VECS", offsetof(cuda_spec, rows.vecs)},
    {"ROWS", offsetof(cuda_spec, rows.rows)},
    {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"TILE", offsetof(cuda_spec, rows.variant)},
    {"HOLD", offsetof(cuda_spec, rows.hold)},
    {"STAGES", offsetof(cuda_spec, rows.stages)},
    {"DELAY", offsetof(cuda_spec, rows.delay)},
    {"EARLY", offsetof(cuda_spec, rows.early)},
    {"GROUPS", offsetof(cuda_spec, rows.groups)},
    {"PIXELS", offsetof(cuda_spec, rows.pixels)},
    {"DENSE", offsetof(cuda_spec, rows.dense)},
    {NULL, 0},
};

const cuda_constant rows_backward_list[] = {
    {"COLS", offsetof(cuda_spec, rows.cols)},   {"WIDTH", offsetof(cuda_spec, rows.width)},
    {"LANES", offsetof(cuda_spec, rows.lanes)}, {"VECS", offsetof(cuda_spec, rows.vecs)},
    {"ROWS", offsetof(cuda_spec, rows.rows)},   {"WARPS", offsetof(cuda_spec, rows.warps)},
    {"TEAMS", offsetof(cuda_spec, rows.teams)}, {"TILE", offsetof(cuda_spec, rows.variant)},
    {"HOLD", offsetof(cuda_spec, rows.hold)},   {"STAGES", offsetof(cuda_spec, rows.stages)},
    {"DELAY", offsetof(cuda_spec, rows.delay)}, {"PLANES", offsetof(cuda_spec, rows.planes)},
    {"DENSE", offsetof(cuda_spec, rows.dense)}, {NULL, 0},
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
    {"TILE", offsetof(cuda_spec, channels.tile_pixels)},
    {"DEPTH", offsetof(cuda_spec, channels.depth)},
    {"ROWS", offsetof(cuda_spec, channels.rows)},
    {"WIDTH", offsetof(cuda_spec, channels.width)},
    {"LANES", offsetof(cuda_spec, channels.lanes)},
    {"PLANES", offsetof(cuda_spec, channels.planes)},
    {"WARPS", offsetof(cuda_spec, channels.warps)},
    {"STAGES", offsetof(cuda_spec, channels.stages)},
    {"LAST", offsetof(cuda_spec, channels.last)},
    {"HOLD", offsetof(cuda_spec, channels.out_through_shared)},
    {NULL, 0},
};

const cuda_constant groups_list[] = {
    {"STAGE", offsetof(cuda_spec, groups.stage)},
    {"GROUPS", offsetof(cuda_spec, groups.groups)},
    {"DEPTH", offsetof(cuda_spec, groups.depth)},
    {"PIXELS", offsetof(cuda_spec, groups.pixels)},
    {"COLS", offsetof(cuda_spec, groups.cols)},
    {"PIECE", offsetof(cuda_spec, groups.piece)},
    {"WIDTH", offsetof(cuda_spec, groups.width)},
    {"LANES", offsetof(cuda_spec, groups.lanes)},
    {"PLANES", offsetof(cuda_spec, groups.planes)},
    {"WARPS", offsetof(cuda_spec, groups.warps)},
    {"ROWS", offsetof(cuda_spec, groups.rows)},
    {"HOLD", offsetof(cuda_spec, groups.out_lies_as_x)},
    {"LAST", offsetof(cuda_spec, groups.last)},
    {NULL, 0},
};

const cuda_constant strips_list[] = {
    {"GROUPS", offsetof(cuda_spec, groups.groups)},
    {"DEPTH", offsetof(cuda_spec, groups.depth)},
    {"PIXELS", offsetof(cuda_spec, groups.pixels)},
    {"COLS", offsetof(cuda_spec, groups.cols)},
    {"TILE", offsetof(cuda_spec, groups.tile_channels)},
    {"PIECE", offsetof(cuda_spec, groups.piece)},
    {"WIDTH", offsetof(cuda_spec, groups.width)},
    {"LANES", offsetof(cuda_spec, groups.lanes)},
    {"PLANES", offsetof(cuda_spec, groups.planes)},
    {"WARPS", offsetof(cuda_spec, groups.warps)},
    {"DELAY", offsetof(cuda_spec, groups.delay)},
    {NULL, 0},
};

const cuda_constant general_list[] = {
    {"LANES", offsetof(cuda_spec, general.lanes)},
    {"WARPS", offsetof(cuda_spec, general.warps)},
    {"SLICES", offsetof(cuda_spec, general.slices)},
    {NULL, 0},
};

const cuda_constant finish_list[] = {
    {"COLS", offsetof(cuda_spec, finish.cols)},
    {"LANES", offsetof(cuda_spec, finish.lanes)},
    {"ROWS", offsetof(cuda_spec, finish.rows)},
    {"SLICES", offsetof(cuda_spec, finish.slices)},
    {NULL, 0},
};

int32_t *cuda_spec_constant(cuda_spec *spec, const char *name) {
    const cuda_constant *const lists[] = {cuda_kernel_of(spec)->constants, common_list};
    for (int i = 0; i < 2; i++)
        for (const cuda_constant *c = lists[i]; c->name; c++)
            if (!strcmp(c->name, name))
                return (int32_t *)(void *)((char *)spec + c->offset);
    return NULL;
}

size_t cuda_spec_prelude(const cuda_spec *spec, char *text, size_t bytes) {
    const cuda_constant *const lists[] = {cuda_kernel_of(spec)->constants, common_list};
    size_t length = (size_t)snprintf(text, bytes, "#define REAL_DOUBLE %d\n", spec->real_double);
    for (int i = 0; i < 2; i++)
        for (const cuda_constant *c = lists[i]; c->name; c++) {
            const size_t left = length < bytes ? bytes - length : 0;
            int32_t value;
            memcpy(&value, (const char *)spec + c->offset, sizeof value);
            length += (size_t)snprintf(left ? text + length : NULL, left,
                                       "constexpr int %s = %d;\n", c->name, value);
        }
    return length;
}

void cuda_spec_describe(cuda_spec *spec, const problem *p) {
    spec->kind = p->kind;
    spec->activation = p->activation;
    spec->weight_offset = p->weight_offset;
    for (int r = 0; r < ROLE_COUNT; r++)
        spec->type[r] = p->dtypes[r];
}
