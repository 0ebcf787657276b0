#include "roles.h"

static const pass_roles passes[] = {
    [PLANISH_FORWARD] = {ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_Y),
                         ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_BIAS) | ROLE_BIT(ROLE_MEAN) |
                             ROLE_BIT(ROLE_RSTD),
                         ROLE_BIT(ROLE_Y) | ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD)},
    [PLANISH_BACKWARD] = {ROLE_BIT(ROLE_DY) | ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_MEAN) |
                              ROLE_BIT(ROLE_RSTD),
                          ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_DX) | ROLE_BIT(ROLE_DWEIGHT) |
                              ROLE_BIT(ROLE_DBIAS),
                          ROLE_BIT(ROLE_DX) | ROLE_BIT(ROLE_DWEIGHT) | ROLE_BIT(ROLE_DBIAS)},
    [PLANISH_BACKWARD_FROM_Y] = {ROLE_BIT(ROLE_DY) | ROLE_BIT(ROLE_Y) | ROLE_BIT(ROLE_RSTD),
                                 ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_BIAS) | ROLE_BIT(ROLE_DX) |
                                     ROLE_BIT(ROLE_DWEIGHT) | ROLE_BIT(ROLE_DBIAS),
                                 ROLE_BIT(ROLE_DX) | ROLE_BIT(ROLE_DWEIGHT) | ROLE_BIT(ROLE_DBIAS)},
    [PLANISH_STATISTICS] = {ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_M2), 0,
                            ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_M2)},
    [PLANISH_APPLY] = {ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD) |
                           ROLE_BIT(ROLE_Y),
                       ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_BIAS), ROLE_BIT(ROLE_Y)},
};

pass_roles roles_of_pass(planish_pass pass) {
    return passes[pass];
}

const char *role_name(role r) {
    static const char *const names[ROLE_COUNT] = {"x",  "weight", "bias", "y",       "mean", "rstd",
                                                  "m2", "dy",     "dx",   "dweight", "dbias"};
    return names[r];
}

const char *dtype_name(dtype d) {
    static const char *const names[] = {"f32", "f16", "bf16", "f64", "none"};
    return names[d];
}
