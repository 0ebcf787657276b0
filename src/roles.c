/* What EACH_ROLE says, by pass and by role; see roles.h. */
#include "roles.h"

#define ANY_NORMS (LAYER_NORMS | RMS_NORMS)
#define LAYER_NORMS (1u << PLANISH_LAYER)
#define RMS_NORMS (1u << PLANISH_RMS)

#define NAME(arg, role, field, ...) #field,
static const char *const names[ROLE_COUNT] = {EACH_ROLE(NAME, )};
#undef NAME

#define OVER(arg, role, field, axes, kinds, needed, optional, activated, written, over, types) over,
static const role_set over_of[ROLE_COUNT] = {EACH_ROLE(OVER, )};
#undef OVER

#define AXES(arg, role, field, axes, ...) AXES_##axes,
static const role_axes axes[ROLE_COUNT] = {EACH_ROLE(AXES, )};
#undef AXES

#define TYPES(arg, role, field, axes, kinds, needed, optional, activated, written, over, types)    \
    TYPES_##types,
static const role_types types[ROLE_COUNT] = {EACH_ROLE(TYPES, )};
#undef TYPES

/* The roles whose set of passes has this one. */
#define WHERE(passes, pass, role) | (role_set)((passes) >> (pass) & 1) << ROLE_##role
#define NEEDED(pass, role, field, axes, kinds, needed, optional, activated, written, over, types)  \
    WHERE(needed, pass, role)
#define OPTIONAL(pass, role, field, axes, kinds, needed, optional, activated, written, over,       \
                 types)                                                                            \
    WHERE(optional, pass, role)
#define ACTIVATED(pass, role, field, axes, kinds, needed, optional, activated, written, over,      \
                  types)                                                                           \
    WHERE(activated, pass, role)
#define WRITTEN(pass, role, field, axes, kinds, needed, optional, activated, written, over, types) \
    WHERE(written, pass, role)
#define SETS(pass)                                                                                 \
    [pass] = {0 EACH_ROLE(NEEDED, pass), 0 EACH_ROLE(OPTIONAL, pass),                              \
              0 EACH_ROLE(ACTIVATED, pass), 0 EACH_ROLE(WRITTEN, pass)}

static const struct {
    role_set needed, optional, activated, written;
} passes[] = {SETS(PLANISH_FORWARD),    SETS(PLANISH_BACKWARD), SETS(PLANISH_BACKWARD_FROM_Y),
              SETS(PLANISH_STATISTICS), SETS(PLANISH_APPLY),    SETS(PLANISH_BACKWARD_STATISTICS)};

#define OF_RMS(arg, role, field, axes, kinds, ...)                                                 \
    | (role_set)((kinds##_NORMS & RMS_NORMS) != 0) << ROLE_##role
#define OF_LAYER(arg, role, field, axes, kinds, ...)                                               \
    | (role_set)((kinds##_NORMS & LAYER_NORMS) != 0) << ROLE_##role
static const role_set roles_of_kind[] = {[PLANISH_LAYER] = 0 EACH_ROLE(OF_LAYER, ),
                                         [PLANISH_RMS] = 0 EACH_ROLE(OF_RMS, ),
                                         [PLANISH_L2] = 0 EACH_ROLE(OF_RMS, )};

pass_roles roles_of_pass(planish_pass pass, planish_kind kind, planish_activation activation) {
    const role_set all = roles_of_kind[kind];
    const role_set more = activation != PLANISH_IDENTITY ? passes[pass].activated : 0;
    return (pass_roles){passes[pass].needed & all, (passes[pass].optional | more) & all,
                        passes[pass].written & all};
}

const char *kind_name(planish_kind kind) {
    static const char *const kinds[] = {"LAYER", "RMS", "L2"};
    return kinds[kind];
}

bool kind_lacks(planish_kind kind, role r) {
    return !(roles_of_kind[kind] & ROLE_BIT(r));
}

bool may_alias(role output, role other) {
    return over_of[output] & ROLE_BIT(other);
}

role_axes axes_of(role r) {
    return axes[r];
}

role_types types_of(role r) {
    return types[r];
}

const char *role_name(role r) {
    return names[r];
}

const char *planish_tensor_name(int index) {
    return index >= 0 && index < ROLE_COUNT ? names[index] : NULL;
}
