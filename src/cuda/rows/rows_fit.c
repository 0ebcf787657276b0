#include "cuda/rows/rows_fit.h"

#include "cuda/rows/rows_backward.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"

enum { WORD = 4, ALIGNED = 16, APART = 2 }; /* bytes; an asynchronous copy has at least a word */

/* What is not at addresses of whole words: a class is a set of these. */
static const role_set members[] = {
    ROLE_BIT(ROLE_X) | ROLE_BIT(ROLE_DY) | ROLE_BIT(ROLE_DSUM) | ROLE_BIT(ROLE_BRANCH), /* rows */
    ROLE_BIT(ROLE_WEIGHT) | ROLE_BIT(ROLE_BIAS),
    ROLE_BIT(ROLE_GATE),
};
enum { MEMBERS = sizeof members / sizeof *members };
_Static_assert(1 << MEMBERS == ROWS_CLASSES, "a plan has a fit for each class");

/* The tensors of one kind that a kernel has. */
static role_set tensors_of(const cuda_spec *spec, int kind) {
    role_set found = 0;
    for (role_set rest = members[kind]; rest; rest &= rest - 1)
        if (spec->type[first_role(rest)] != DTYPE_NONE)
            found |= ROLE_BIT(first_role(rest));
    return found;
}

static int class_of(const cuda_spec *spec) {
    int class = 0;
    for (int kind = 0; kind < MEMBERS; kind++)
        for (role_set rest = tensors_of(spec, kind); rest; rest &= rest - 1)
            if (spec->access[first_role(rest)] < WORD)
                class |= 1 << kind;
    return class;
}

static void set_class(cuda_spec *spec, int class) {
    for (int kind = 0; kind < MEMBERS; kind++)
        for (role_set rest = tensors_of(spec, kind); rest; rest &= rest - 1)
            spec->access[first_role(rest)] = class >> kind & 1 ? APART : ALIGNED;
}

void rows_fit_make(cuda_plan *plan, rows_fit_function *fit) {
    for (int class = 0; class < ROWS_CLASSES; class++) {
        cuda_spec spec = plan->main;
        set_class(&spec, class);
        fit(plan, &spec);
        plan->fits[class] = (rows_fit){.rows = (uint8_t)spec.rows.rows,
                                       .warps = (uint8_t)spec.rows.warps,
                                       .hold = (uint8_t)spec.rows.hold,
                                       .ring_slots = (uint8_t)spec.rows.ring_slots,
                                       .early = (uint8_t)spec.rows.early,
                                       .min_blocks = (uint8_t)spec.min_blocks,
                                       .gate_in_shared = (uint8_t)spec.stages.gate_in_shared};
    }
}

void rows_fit_alone(cuda_plan *plan) {
    cuda_spec *spec = &plan->main;
    spec->rows.dense = rows_are_tiled(spec) ? rows_that_follow(plan) : 0;
    rows_fit_make(plan, rows_are_forward(spec) ? forward_fit : backward_fit);
}

void rows_fit_apply(const cuda_plan *plan, cuda_spec *spec) {
    const rows_fit *fit = &plan->fits[class_of(spec)];
    spec->rows.rows = fit->rows;
    spec->rows.warps = fit->warps;
    spec->rows.hold = fit->hold;
    spec->rows.ring_slots = fit->ring_slots;
    spec->rows.early = fit->early;
    spec->min_blocks = fit->min_blocks;
    spec->stages.gate_in_shared = fit->gate_in_shared;
}
