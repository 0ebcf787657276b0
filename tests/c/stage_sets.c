/* Rows of the tables of norms with stages around them; see stage_sets.h. */
#include "stage_sets.h"

#include <string.h>

norm_case case_over(planish_pass pass, planish_kind kind, const stage_axes *s, uint64_t seed) {
    norm_case c = bare_case(pass, kind, 1, 1);
    c.ndim = s->ndim;
    memcpy(c.shape, s->shape, sizeof s->shape);
    c.op.reduce_axes = s->reduce;
    c.op.affine_axes = s->affine;
    c.op.column_axes = s->column;
    c.op.modulation_axes = s->modulation;
    c.op.weight_offset = seed % 3 == 0;
    c.full_rank = seed % 5 == 0;
    c.seed = seed;
    return c;
}

void put_stages(norm_case *c, const stage_set *a) {
    c->has |= a->has;
    c->op.activation = a->f;
    c->op.dropout_p = a->p;
    c->op.gate = a->gate;
    c->draw[0] = 0x123456789abcdef0u + c->seed;
    c->draw[1] = 4 * c->seed;
}

void put_layouts(norm_case *c, uint64_t turn) {
    static const layout layouts[][2] = {{DENSE, DENSE},
                                        {PADDED, PERMUTED},
                                        {PERMUTED, REVERSED},
                                        {INNER_STRIDE_2, PADDED},
                                        {BROADCAST_FIRST, DENSE}};
    c->in = layouts[turn / 2 % 5][0];
    c->out = layouts[turn / 2 % 5][1];
    if (c->op.kind == PLANISH_L2 && turn % 3)
        c->op.eps = 2; /* as long as some rows are */
}

planish_exec exec_by_turns(uint64_t turn) {
    static int threads = 3;
    return turn % 3 == 0   ? (planish_exec){.struct_size = sizeof(planish_exec)}
           : turn % 3 == 1 ? exec_backwards()
                           : exec_threads(&threads);
}
