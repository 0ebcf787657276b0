#include "steps.h"

#include "stages.h"

void steps_of_whole(steps *s, const problem *p) {
    *s = (steps){.count = 1, .step = {{STEP_NORM, p}}};
}

void steps_of_sum(steps *s, const problem *p, problem *norm) {
    stages_norm_of_sum(p, norm);
    *s = (steps){.count = 2, .step = {{STEP_MAKE_SUM, p}, {STEP_NORM, norm}}};
}

void steps_of_dsum(steps *s, const problem *p, problem *norm) {
    stages_norm_before_dsum(p, norm);
    *s = (steps){.count = 2, .step = {{STEP_NORM, norm}, {STEP_ADD_DSUM, p}}};
}

void steps_of_modulation(steps *s, const problem *p, problem *norm) {
    stages_norm_of_modulation(p, norm);
    *s = (steps){.count = 1, .step = {{STEP_MODULATED_NORM, norm}}};
}
