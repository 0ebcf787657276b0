/*
 * The tensors of a pass: what each is called, which axes it has, which passes need, take and write
 * it, and their dtypes.
 */
#ifndef PLANISH_ROLES_H
#define PLANISH_ROLES_H

#include "planish.h"

/* The order of planish_buffers' and planish_tensors' fields. */
typedef enum role {
    ROLE_X,
    ROLE_WEIGHT,
    ROLE_BIAS,
    ROLE_Y,
    ROLE_MEAN,
    ROLE_RSTD,
    ROLE_M2,
    ROLE_DY,
    ROLE_DX,
    ROLE_DWEIGHT,
    ROLE_DBIAS,
    ROLE_COUNT
} role;

const char *role_name(role r);

typedef enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64, DTYPE_NONE } dtype;

/* Bytes of one element; 0 for DTYPE_NONE. */
static inline int dtype_bytes(dtype d) {
    static const unsigned char bytes[] = {4, 2, 2, 8, 0};
    return bytes[d];
}

const char *dtype_name(dtype d);

/* Sets of roles are bit masks. */
#define ROLE_BIT(r) (1u << (r))

/* The first role of a set that is not empty; a loop over a set drops it by `set &= set - 1`. */
static inline role first_role(unsigned set) {
    return (role)__builtin_ctz(set);
}

/* By the axes they have: all of x's, or the affine ones. The others have the axes that are not
 * reduced. */
enum {
    FULL_ROLES = ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_Y) | ROLE_BIT(ROLE_DY) | ROLE_BIT(ROLE_DX),
    AFFINE_ROLES = ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_BIAS) | ROLE_BIT(ROLE_DWEIGHT) |
        ROLE_BIT(ROLE_DBIAS)
};

/* What a pass needs, may have, and writes (planish.h, planish_pass). */
typedef struct pass_roles {
    unsigned required, optional, outputs;
} pass_roles;

pass_roles roles_of_pass(planish_pass pass);

#endif
