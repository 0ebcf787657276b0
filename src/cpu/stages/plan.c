/* How a norm with stages around it is cut, and what it is called; see stages_path.h. */
#include "cpu/common/integers.h"
#include "cpu/stages/backward.h"
#include "cpu/stages/stages_path.h"

#include <stdio.h>

enum {
    BATCH_BYTES = 32768, /* of rows that are in scratch together, where they are not longer */
    MOST_BLOCKS = SLOTS  /* each thread has a slot */
};

/* Scratch of all blocks together stays below this, as long as there is one block. */
static const size_t scratch_limit = (size_t)256 << 20;

/* Whether a row's elements are neighbours in every tensor that has them. */
static bool rows_are_dense(const problem *p) {
    const axis *inner = &p->reduced[p->reduced_count - 1];
    if (p->reduced_count > 1)
        return false;
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const role_axes axes = axes_of(r);
        const bool of_row = axes != AXES_KEPT && axes < AXES_BLOCKS;
        if (of_row && axis_stride(p, inner, r) != 1 && p->cols > 1)
            return false;
    }
    return p->stages.dropout_p == 0 || axis_index_step(p, inner) == 1;
}

static int64_t batch_rows(const problem *p, size_t row_bytes) {
    const int64_t rows = BATCH_BYTES / (int64_t)row_bytes;
    const int64_t most = rows > STAGES_BATCH_ROWS ? STAGES_BATCH_ROWS : rows < 1 ? 1 : rows;
    const int64_t whole = most >= TOGETHER ? most / TOGETHER * TOGETHER : most;
    return whole < p->rows ? whole : p->rows;
}

static void plan_forward(cpu_plan *plan, const problem *p) {
    stages_cut *cut = &plan->cut.stages;
    cut->batch_rows = batch_rows(p, cut->row_bytes);
    const size_t slot =
        (size_t)(cut->batch_rows + STAGES_ROWS) * cut->row_bytes + STAGES_PIECE_BYTES;
    const size_t most = scratch_limit / slot;
    const int64_t blocks = most > MOST_BLOCKS ? MOST_BLOCKS : most ? (int64_t)most : 1;
    cut->block_rows = ceil_div(ceil_div(p->rows, blocks), cut->batch_rows) * cut->batch_rows;
    plan->blocks = ceil_div(p->rows, cut->block_rows);
    cut->slots = (thread_slots){0, slot};
    cut->largest_offset = (size_t)plan->blocks * slot;
    plan->workspace_bytes =
        cut->largest_offset + (has(p, ROLE_AMAX) ? (size_t)plan->blocks * sizeof(double) : 0);
}

void stages_plan(cpu_plan *plan, const problem *p) {
    stages_cut *cut = &plan->cut.stages;
    cut->row_bytes = round_up((size_t)p->cols * stages_real_bytes(plan));
    cut->general = !rows_are_dense(p);
    if (problem_is_backward(p))
        stages_plan_backward(plan, p);
    else
        plan_forward(plan, p);
}

/* ---- Its name -------------------------------------------------------------------------------- */

int stages_describe(const problem *p, char *text, size_t bytes) {
    static const char *const activations[] = {"",           "+silu",  "+relu",     "+gelu",
                                              "+gelu_tanh", "+relu6", "+hardswish"};
    const stages *s = &p->stages;
    const bool before = has(p, ROLE_GATE) && s->gate == PLANISH_GATE_BEFORE;
    return snprintf(text, bytes, "%s%s%s%s%s%s%s%s%s%s%s%s%s%s", before ? "gate+" : "",
                    has_column(p) ? "column_scale+" : "",
                    has(p, ROLE_ROW_SCALE) ? "row_scale+" : "",
                    s->dropout_p > 0 || has(p, ROLE_MASK) ? "dropout+" : "",
                    has(p, ROLE_RESIDUAL) ? "residual+" : "",
                    rule_is_l2(&p->rule)     ? "l2"
                    : p->kind == PLANISH_RMS ? "rms"
                                             : "layer",
                    s->rounding == PLANISH_ROUND_XHAT ? "+round_xhat" : "",
                    has_modulation(p) ? "+modulation" : "",
                    has(p, ROLE_ADDEND) || has(p, ROLE_DADDEND) ? "+addend" : "",
                    activations[p->activation], has(p, ROLE_GATE) && !before ? "+gate" : "",
                    has(p, ROLE_Q) ? "+" : "", has(p, ROLE_Q) ? dtype_name(p->dtypes[ROLE_Q]) : "",
                    has(p, ROLE_RUNNING_MEAN) || has(p, ROLE_RUNNING_VAR) ? "+running" : "");
}
