#include "spec.h"

#include <stdio.h>

static const char *const constant_names[C_COUNT] = {
    "REAL_DOUBLE",  "KIND",       "ACTIVATION",    "COLS",     "X_TYPE",    "Y_TYPE",
    "G_TYPE",       "D_TYPE",     "W_TYPE",        "B_TYPE",   "MEAN_TYPE", "RSTD_TYPE",
    "DW_TYPE",      "DB_TYPE",    "WEIGHT_OFFSET", "WIDTH",    "LANES",     "VECS",
    "ROWS",         "WARPS",      "TEAMS",         "CLUSTER",  "GROUP",     "HOLD",
    "STAGES",       "DELAY",      "EARLY",         "CORRECT",  "SLICES",    "MIN_BLOCKS",
    "WANT_DWEIGHT", "WANT_DBIAS", "X_ACCESS",      "Y_ACCESS", "G_ACCESS",  "D_ACCESS",
    "W_ACCESS",     "B_ACCESS",   "PASS",          "M2_TYPE",  "STAGE",     "GROUPS",
    "DEPTH",        "PIXELS",     "TILE",          "PIECE",    "PLANES",    "LAST",
    "DENSE",
};

size_t cuda_spec_prelude(const cuda_spec *spec, char *text, size_t bytes) {
    size_t length = 0;
    for (int c = 0; c < C_COUNT; c++) {
        size_t left = length < bytes ? bytes - length : 0;
        /* The first is asked by #if; constants of the language cannot be. */
        const char *form = c == C_REAL_DOUBLE ? "#define %s %d\n" : "constexpr int %s = %d;\n";
        length += (size_t)snprintf(left ? text + length : NULL, left, form, constant_names[c],
                                   spec->constant[c]);
    }
    return length;
}

void cuda_spec_describe(cuda_spec *spec, const problem *p) {
    int32_t *c = spec->constant;
    c[C_KIND] = p->kind;
    c[C_ACTIVATION] = p->activation;
    c[C_WEIGHT_OFFSET] = p->weight_offset;
    c[C_X_TYPE] = p->dtypes[ROLE_X];
    c[C_Y_TYPE] = p->dtypes[ROLE_Y];
    c[C_G_TYPE] = p->dtypes[ROLE_DY];
    c[C_D_TYPE] = p->dtypes[ROLE_DX];
    c[C_W_TYPE] = p->dtypes[ROLE_WEIGHT];
    c[C_B_TYPE] = p->dtypes[ROLE_BIAS];
    c[C_MEAN_TYPE] = p->dtypes[ROLE_MEAN];
    c[C_RSTD_TYPE] = p->dtypes[ROLE_RSTD];
    c[C_DW_TYPE] = p->dtypes[ROLE_DWEIGHT];
    c[C_DB_TYPE] = p->dtypes[ROLE_DBIAS];
}
