/*
 * The tensors of a pass by their roles: what each is called, which axes it has, which passes need,
 * take and write it, and whose memory it may be. A role is one row here, and one field at the same
 * place of planish_tensors and of planish_buffers; every other list of roles is made of the rows.
 */
#ifndef PLANISH_ROLES_H
#define PLANISH_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "planish.h"

/* Sets of passes, and of roles, are bit masks. */
enum {
    PASS_F = 1 << PLANISH_FORWARD,
    PASS_B = 1 << PLANISH_BACKWARD,
    PASS_Y = 1 << PLANISH_BACKWARD_FROM_Y,
    PASS_S = 1 << PLANISH_STATISTICS,
    PASS_A = 1 << PLANISH_APPLY
};
#define ROLE_BIT(r) (1u << (r))
#define ALIAS_X ROLE_BIT(ROLE_X)
#define ALIAS_Y ROLE_BIT(ROLE_Y)
#define ALIAS_DY ROLE_BIT(ROLE_DY)

/* clang-format off */
/*
 * MAKE(arg, role, field, axes, kinds, needed, optional, activated, written, over) for each role.
 *
 * axes       FULL: all of x's; AFFINE: the affine ones; KEPT: those that are not reduced
 * kinds      RMS or LAYER: only these norms have it; ANY
 * needed     the passes that cannot do without it
 * optional   the passes that may have it; activated: those that may where an activation follows
 * written    the passes whose output it is
 * over       the inputs that an output may be itself: the same data, dtype and strides
 */
#define EACH_ROLE(MAKE, arg)                                                                                                                                                  \
    /*        role     field    axes    kinds  needed                             optional                           activated  written          over                      */ \
    MAKE(arg, X,       x,       FULL,   ANY,   PASS_F | PASS_B | PASS_S | PASS_A, 0,                                 0,         0,               0)                           \
    MAKE(arg, WEIGHT,  weight,  AFFINE, ANY,   0,                                 PASS_F | PASS_B | PASS_Y | PASS_A, 0,         0,               0)                           \
    MAKE(arg, BIAS,    bias,    AFFINE, ANY,   0,                                 PASS_F | PASS_Y | PASS_A,          PASS_B,    0,               0)                           \
    MAKE(arg, Y,       y,       FULL,   ANY,   PASS_F | PASS_Y | PASS_A,          0,                                 0,         PASS_F | PASS_A, ALIAS_X)                      \
    MAKE(arg, MEAN,    mean,    KEPT,   LAYER, PASS_B | PASS_S | PASS_A,          PASS_F,                            0,         PASS_F | PASS_S, 0)                           \
    MAKE(arg, RSTD,    rstd,    KEPT,   ANY,   PASS_B | PASS_Y | PASS_A,          PASS_F,                            0,         PASS_F,          0)                           \
    MAKE(arg, M2,      m2,      KEPT,   ANY,   PASS_S,                            0,                                 0,         PASS_S,          0)                           \
    MAKE(arg, DY,      dy,      FULL,   ANY,   PASS_B | PASS_Y,                   0,                                 0,         0,               0)                           \
    MAKE(arg, DX,      dx,      FULL,   ANY,   0,                                 PASS_B | PASS_Y,                   0,         PASS_B | PASS_Y, ALIAS_X | ALIAS_DY | ALIAS_Y)   \
    MAKE(arg, DWEIGHT, dweight, AFFINE, ANY,   0,                                 PASS_B | PASS_Y,                   0,         PASS_B | PASS_Y, 0)                           \
    MAKE(arg, DBIAS,   dbias,   AFFINE, ANY,   0,                                 PASS_B | PASS_Y,                   0,         PASS_B | PASS_Y, 0)                           \
    /* a new role comes last, as its field does */
/* clang-format on */

#define ENUMERATOR(arg, role, ...) ROLE_##role,
typedef enum role { EACH_ROLE(ENUMERATOR, ) ROLE_COUNT } role;
#undef ENUMERATOR
_Static_assert(ROLE_COUNT <= 32, "a set of roles has 32 bits");

/* The field's name. */
const char *role_name(role r);

/* The first role of a set that is not empty; a loop over a set drops it by `set &= set - 1`. */
static inline role first_role(unsigned set) {
    return (role)__builtin_ctz(set);
}

/* By the axes they have. */
typedef enum role_axes { AXES_FULL, AXES_AFFINE, AXES_KEPT } role_axes;
#define FULL_BIT(arg, role, field, axes, ...) | (unsigned)(AXES_##axes == AXES_FULL) << ROLE_##role
#define AFFINE_BIT(arg, role, field, axes, ...)                                                    \
    | (unsigned)(AXES_##axes == AXES_AFFINE) << ROLE_##role
enum { FULL_ROLES = 0 EACH_ROLE(FULL_BIT, ), AFFINE_ROLES = 0 EACH_ROLE(AFFINE_BIT, ) };
#undef FULL_BIT
#undef AFFINE_BIT

static inline role_axes axes_of(role r) {
    return ROLE_BIT(r) & FULL_ROLES     ? AXES_FULL
           : ROLE_BIT(r) & AFFINE_ROLES ? AXES_AFFINE
                                        : AXES_KEPT;
}

/* What a pass of such a norm needs, may have, and writes (planish.h, planish_pass). */
typedef struct pass_roles {
    unsigned required, optional, outputs;
} pass_roles;

pass_roles roles_of_pass(planish_pass pass, planish_kind kind, planish_activation activation);

/* Whether this norm has such a tensor in none of its passes. */
bool kind_lacks(planish_kind kind, role r);

/* Whether an output may be the same memory as another tensor. */
bool may_alias(role output, role other);

/* ---- The callers' structs, by role ------------------------------------------------------------
 */

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

/* ---- Their dtypes ------------------------------------------------------------------------------
 */

typedef enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64, DTYPE_NONE } dtype;

/* Bytes of one element; 0 for DTYPE_NONE. */
static inline int dtype_bytes(dtype d) {
    static const unsigned char bytes[] = {4, 2, 2, 8, 0};
    return bytes[d];
}

const char *dtype_name(dtype d);

#endif
