/*
 * The tensors of a pass by their roles: what each is called, which axes it has, which passes need,
 * take and write it, and whose memory it may be. A role is one row here, and one field at the same
 * place of planish_tensors and of planish_buffers; the lists of all roles are made of the rows.
 * What a kernel or a planner does with some of the roles, it lists by itself.
 */
#ifndef PLANISH_ROLES_H
#define PLANISH_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "dtypes.h"

/* Sets of passes, and of roles, are bit masks. */
enum {
    PASS_F = 1 << PLANISH_FORWARD,
    PASS_B = 1 << PLANISH_BACKWARD,
    PASS_Y = 1 << PLANISH_BACKWARD_FROM_Y,
    PASS_S = 1 << PLANISH_STATISTICS,
    PASS_A = 1 << PLANISH_APPLY,
    PASS_BS = 1 << PLANISH_BACKWARD_STATISTICS
};
typedef uint64_t role_set;
#define ROLE_BIT(r) ((role_set)1 << (r))
#define ALIAS_X ROLE_BIT(ROLE_X)
#define ALIAS_Y ROLE_BIT(ROLE_Y)
#define ALIAS_DY ROLE_BIT(ROLE_DY)
#define ALIAS_RESIDUAL ROLE_BIT(ROLE_RESIDUAL)
#define ALIAS_GATE ROLE_BIT(ROLE_GATE)
#define ALIAS_BRANCH ROLE_BIT(ROLE_BRANCH)
#define ALIAS_DSUM ROLE_BIT(ROLE_DSUM)

/* clang-format off */
/*
 * MAKE(arg, role, field, axes, kinds, needed, optional, activated, written, over, types) for each role.
 *
 * axes       FULL: all of x's; AFFINE: the affine ones; KEPT: those that are not reduced; COLUMN and
 *            MODULATION: those of planish_norm.column_axes and modulation_axes; BLOCKS: the kept ones, and a
 *            last one of the blocks of a row where there are any; ONE, PAIR: so many elements
 * kinds      RMS or LAYER: only these norms have it; ANY
 * needed     the passes that cannot do without it
 * optional   the passes that may have it; activated: those that may where an activation follows
 * written    the passes whose output it is
 * over       the inputs that an output may be itself: the same data, dtype and strides
 * types      REAL: f16, bf16, f32, f64; FLOAT: f32; BYTE: u8, bool; SEED: u64, i64; QUANTISED: f8_e4m3fn,
 *            f8_e5m2, i8; BLOCK_SCALE: f32, f8_e8m0
 *
 * The roles of the norm alone come first; then those of the stages around it.
 */
#define EACH_NORM_ROLE(MAKE, arg)                                                                                                                                                                                                                 \
    /*        role     field    axes    kinds  needed                                       optional                                     activated  written                    over                                                      types */ \
    MAKE(arg, X,       x,       FULL,   ANY,   PASS_F | PASS_B | PASS_S | PASS_A | PASS_BS, 0,                                           0,         0,                         0,                                                        REAL)    \
    MAKE(arg, WEIGHT,  weight,  AFFINE, ANY,   0,                                           PASS_F | PASS_B | PASS_Y | PASS_A | PASS_BS, 0,         0,                         0,                                                        REAL)    \
    MAKE(arg, BIAS,    bias,    AFFINE, ANY,   0,                                           PASS_F | PASS_Y | PASS_A,                    PASS_B,    0,                         0,                                                        REAL)    \
    MAKE(arg, Y,       y,       FULL,   ANY,   PASS_F | PASS_Y | PASS_A,                    0,                                           PASS_B,    PASS_F | PASS_A,           ALIAS_X,                                                  REAL)    \
    MAKE(arg, MEAN,    mean,    KEPT,   LAYER, PASS_B | PASS_S | PASS_A | PASS_BS,          PASS_F,                                      0,         PASS_F | PASS_S,           0,                                                        REAL)    \
    MAKE(arg, RSTD,    rstd,    KEPT,   ANY,   PASS_B | PASS_Y | PASS_A | PASS_BS,          PASS_F,                                      0,         PASS_F,                    0,                                                        REAL)    \
    MAKE(arg, M2,      m2,      KEPT,   ANY,   PASS_S,                                      0,                                           0,         PASS_S,                    0,                                                        REAL)    \
    MAKE(arg, DY,      dy,      FULL,   ANY,   PASS_B | PASS_Y | PASS_BS,                   0,                                           0,         0,                         0,                                                        REAL)    \
    MAKE(arg, DX,      dx,      FULL,   ANY,   0,                                           PASS_B | PASS_Y,                             0,         PASS_B | PASS_Y,           ALIAS_X | ALIAS_DY | ALIAS_Y | ALIAS_BRANCH | ALIAS_DSUM, REAL)    \
    MAKE(arg, DWEIGHT, dweight, AFFINE, ANY,   0,                                           PASS_B | PASS_Y | PASS_BS,                   0,         PASS_B | PASS_Y | PASS_BS, 0,                                                        REAL)    \
    MAKE(arg, DBIAS,   dbias,   AFFINE, ANY,   0,                                           PASS_B | PASS_Y | PASS_BS,                   0,         PASS_B | PASS_Y | PASS_BS, 0,                                                        REAL)    \
    /* those of stages come last */
#define EACH_ROLE(MAKE, arg)                                                                                                                          \
    EACH_NORM_ROLE(MAKE, arg)                                                                                                                         \
    /*        role           field          axes        kinds needed optional         activated written over                             types */     \
    MAKE(arg, RESIDUAL,      residual,      FULL,       ANY,  0,     PASS_F,          0,        0,      0,                               REAL)        \
    MAKE(arg, SUM,           sum,           FULL,       ANY,  0,     PASS_F,          0,        PASS_F, ALIAS_X | ALIAS_RESIDUAL,        REAL)        \
    MAKE(arg, ROW_SCALE,     row_scale,     KEPT,       ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               REAL)        \
    MAKE(arg, COLUMN_SCALE,  column_scale,  COLUMN,     ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               REAL)        \
    MAKE(arg, SCALE,         scale,         MODULATION, ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               REAL)        \
    MAKE(arg, SHIFT,         shift,         MODULATION, ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               REAL)        \
    MAKE(arg, GATE,          gate,          FULL,       ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               REAL)        \
    MAKE(arg, RNG,           rng,           PAIR,       ANY,  0,     PASS_F | PASS_B, 0,        0,      0,                               SEED)        \
    MAKE(arg, MASK,          mask,          FULL,       ANY,  0,     PASS_F,          0,        PASS_F, 0,                               BYTE)        \
    MAKE(arg, Q,             q,             FULL,       ANY,  0,     PASS_F,          0,        PASS_F, 0,                               QUANTISED)   \
    MAKE(arg, Y_SCALE,       y_scale,       ONE,        ANY,  0,     PASS_F,          0,        0,      0,                               FLOAT)       \
    MAKE(arg, Y_SCALES,      y_scales,      BLOCKS,     ANY,  0,     PASS_F,          0,        PASS_F, 0,                               BLOCK_SCALE) \
    MAKE(arg, AMAX,          amax,          ONE,        ANY,  0,     PASS_F,          0,        PASS_F, 0,                               FLOAT)       \
    MAKE(arg, BRANCH,        branch,        FULL,       ANY,  0,     PASS_B,          0,        0,      0,                               REAL)        \
    MAKE(arg, DSUM,          dsum,          FULL,       ANY,  0,     PASS_B,          0,        0,      0,                               REAL)        \
    MAKE(arg, DRESIDUAL,     dresidual,     FULL,       ANY,  0,     PASS_B,          0,        PASS_B, ALIAS_X | ALIAS_DY | ALIAS_DSUM, REAL)        \
    MAKE(arg, DSCALE,        dscale,        MODULATION, ANY,  0,     PASS_B,          0,        PASS_B, 0,                               REAL)        \
    MAKE(arg, DSHIFT,        dshift,        MODULATION, ANY,  0,     PASS_B,          0,        PASS_B, 0,                               REAL)        \
    MAKE(arg, DGATE,         dgate,         FULL,       ANY,  0,     PASS_B,          0,        PASS_B, ALIAS_GATE | ALIAS_DY,           REAL)        \
    MAKE(arg, DCOLUMN_SCALE, dcolumn_scale, COLUMN,     ANY,  0,     PASS_B,          0,        PASS_B, 0,                               REAL)        \
    MAKE(arg, ADDEND,        addend,        FULL,       ANY,  0,     PASS_F | PASS_B | PASS_A, 0, 0,  0,                               REAL)        \
    MAKE(arg, DADDEND,       daddend,       FULL,       ANY,  0,     PASS_B,          0,        PASS_B, 0,                               REAL)        \
    /* statistics that are kept or given */                                                                                                           \
    MAKE(arg, C1,            c1,            KEPT,       LAYER, PASS_BS, PASS_B,       0,        PASS_BS, 0,                              REAL)        \
    MAKE(arg, C2,            c2,            KEPT,       ANY,  PASS_BS, PASS_B,        0,        PASS_BS, 0,                              REAL)        \
    MAKE(arg, RUNNING_MEAN,  running_mean,  KEPT,       LAYER, 0,    PASS_F | PASS_B | PASS_A, 0, PASS_F, 0,                             REAL)        \
    MAKE(arg, RUNNING_VAR,   running_var,   KEPT,       LAYER, 0,    PASS_F | PASS_B | PASS_A, 0, PASS_F, 0,                             REAL)        \
    /* a new role comes last, as its field does */
/* clang-format on */

#define ENUMERATOR(arg, role, ...) ROLE_##role,
typedef enum role { EACH_ROLE(ENUMERATOR, ) ROLE_COUNT } role;
#undef ENUMERATOR
_Static_assert(ROLE_COUNT <= 64, "a set of roles has 64 bits");
/* Those of the norm alone, which are the first. */
#define NORM_ROLES (ROLE_DBIAS + 1)
#define STAGE_ROLES (~(role_set)0 << NORM_ROLES)
/* Of these the ones that are no stage, but statistics that the kernels of a norm alone do not know
 * either. */
#define STATISTIC_ROLES                                                                            \
    (ROLE_BIT(ROLE_C1) | ROLE_BIT(ROLE_C2) | ROLE_BIT(ROLE_RUNNING_MEAN) |                         \
     ROLE_BIT(ROLE_RUNNING_VAR))

/* The field's name. */
const char *role_name(role r);

/* The first role of a set that is not empty; a loop over a set drops it by `set &= set - 1`. */
static inline role first_role(role_set set) {
    return (role)__builtin_ctzll(set);
}

/* By the axes they have. */
typedef enum role_axes {
    AXES_FULL,
    AXES_AFFINE,
    AXES_KEPT,
    AXES_COLUMN,
    AXES_MODULATION,
    AXES_BLOCKS,
    AXES_ONE,
    AXES_PAIR
} role_axes;
role_axes axes_of(role r);

#define BIT_OF(wanted, role, field, axes, ...) | (role_set)(AXES_##axes == (wanted)) << ROLE_##role
static const role_set FULL_ROLES = 0 EACH_NORM_ROLE(BIT_OF, AXES_FULL),
                      AFFINE_ROLES = 0 EACH_NORM_ROLE(BIT_OF, AXES_AFFINE);
/* With those of the stages. */
static const role_set every_full_role = 0 EACH_ROLE(BIT_OF, AXES_FULL);
#undef BIT_OF

/* What a pass of such a norm needs, may have, and writes (planish.h, planish_pass). */
typedef struct pass_roles {
    role_set required, optional, outputs;
} pass_roles;

/* The most tensors that a pass has. */
#define COUNTED(pass, role, field, axes, kinds, needed, optional, activated, ...)                  \
    +(((needed) | (optional) | (activated)) >> (pass) & 1)
#define TENSORS_OF(pass) (0 EACH_ROLE(COUNTED, pass))
enum {
    MOST_PRESENT = TENSORS_OF(PLANISH_FORWARD) > TENSORS_OF(PLANISH_BACKWARD)
        ? TENSORS_OF(PLANISH_FORWARD)
        : TENSORS_OF(PLANISH_BACKWARD)
};
#undef TENSORS_OF
#undef COUNTED

pass_roles roles_of_pass(planish_pass pass, planish_kind kind, planish_activation activation);

/* "LAYER", "RMS" or "L2". */
const char *kind_name(planish_kind kind);

/* Whether this norm has such a tensor in none of its passes. */
bool kind_lacks(planish_kind kind, role r);

/* Whether an output may be the same memory as another tensor. */
bool may_alias(role output, role other);

/* ---- The callers' structs, by role ----------------------------------------------------------- */

#define SAME_PLACE(arg, role, field, ...)                                                          \
    _Static_assert(offsetof(planish_tensors, field) ==                                             \
                           offsetof(planish_tensors, x) + ROLE_##role * sizeof(void *) &&          \
                       offsetof(planish_buffers, field) ==                                         \
                           offsetof(planish_buffers, x) + ROLE_##role * sizeof(void *),            \
                   #field " is at another place in planish_tensors or planish_buffers");
EACH_ROLE(SAME_PLACE, )
#undef SAME_PLACE

static inline void tensors_by_role(const planish_tensors *t, const DLTensor *list[ROLE_COUNT]) {
    memcpy((void *)list, (const char *)t + offsetof(planish_tensors, x), ROLE_COUNT * sizeof *list);
}

static inline planish_tensors tensors_of_roles(const DLTensor *const list[ROLE_COUNT]) {
    planish_tensors t = {.struct_size = sizeof t};
    memcpy((char *)&t + offsetof(planish_tensors, x), (const void *)list,
           ROLE_COUNT * sizeof *list);
    return t;
}

static inline void buffers_by_role(const planish_buffers *b, void *list[ROLE_COUNT]) {
    memcpy((void *)list, (const char *)b + offsetof(planish_buffers, x), ROLE_COUNT * sizeof *list);
}

static inline planish_buffers buffers_of_roles(void *const list[ROLE_COUNT]) {
    planish_buffers b = {.struct_size = sizeof b};
    memcpy((char *)&b + offsetof(planish_buffers, x), (const void *)list,
           ROLE_COUNT * sizeof *list);
    return b;
}

/* ---- Their dtypes ---------------------------------------------------------------------------- */

/* What dtypes a role may have. */
typedef enum role_types {
    TYPES_REAL,
    TYPES_FLOAT,
    TYPES_BYTE,
    TYPES_SEED,
    TYPES_QUANTISED,
    TYPES_BLOCK_SCALE
} role_types;
role_types types_of(role r);

/* What such a role's element is here, NONE: not one of these; and a sentence's words for them. */
dtype dtype_of(DLDataType d, role_types types);
const char *types_name(role_types types);

#endif
