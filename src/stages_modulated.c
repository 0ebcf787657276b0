/* A norm whose modulation is all that stands around it, as a norm of other weights; see stages.h.
 */
#include "problem_axes.h"
#include "stages.h"

/* What becomes of the modulation's tensors. */
static const role becomes[][2] = {{ROLE_SCALE, ROLE_WEIGHT},
                                  {ROLE_SHIFT, ROLE_BIAS},
                                  {ROLE_DSCALE, ROLE_DWEIGHT},
                                  {ROLE_DSHIFT, ROLE_DBIAS}};
enum { PAIRS = sizeof becomes / sizeof *becomes };

bool stages_modulate_alone(const problem *p) {
    role_set others = p->present & STAGE_ROLES;
    bool weighs = false;
    for (int i = 0; i < PAIRS; i++) {
        others &= ~ROLE_BIT(becomes[i][0]);
        weighs |= has(p, becomes[i][1]);
    }
    return has_modulation(p) && !others && !weighs && !p->stages.rounding && !problem_masks_by_y(p);
}

static void weigh_modulated(axis list[], int count) {
    for (int k = 0; k < count; k++)
        list[k].affine = list[k].modulated;
}

void stages_norm_of_modulation(const problem *p, problem *norm) {
    problem_copy(norm, p);
    weigh_modulated(norm->kept, norm->kept_count);
    weigh_modulated(norm->reduced, norm->reduced_count);
    norm->weight_offset = has(p, ROLE_SCALE);
    norm->affine = p->stages.modulations;
    for (int i = 0; i < PAIRS; i++) {
        const role from = becomes[i][0], to = becomes[i][1];
        norm->place[to] = p->place[from];
        norm->dtypes[to] = p->dtypes[from];
        norm->present |= has(p, from) ? ROLE_BIT(to) : 0;
        norm->outputs |= p->outputs & ROLE_BIT(from) ? ROLE_BIT(to) : 0;
    }
    problem_drop_stages(norm);
}

role stages_role_of_modulation(role r) {
    for (int i = 0; i < PAIRS; i++)
        if (becomes[i][1] == r)
            return becomes[i][0];
    return r;
}

void stages_move_modulation(char *data[ROLE_COUNT]) {
    for (int i = 0; i < PAIRS; i++)
        data[becomes[i][1]] = data[becomes[i][0]];
}
