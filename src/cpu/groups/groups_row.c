/* Rows stored by channel; what is done with one is cpu/groups/groups.h. */
#include "cpu/groups/groups_row.h"
#include "cpu/groups/groups_job.h"

/* Rows whose elements are where `run` says, of a dtype that has these kernels. */
static void forward_rows(const cpu_job *job, const group_kernels *kernels, int64_t row, int count,
                         const row_run *run, traffic traffic) {
    const problem *p = job->problem;
    const int64_t first = group_first_affine(p, row), channels = group_channels(p);
    const group_forward_args args = {
        .hints = &job->plan->hints,
        .rows = count,
        .channels = channels,
        .span = p->reduced[p->reduced_count - 1].size,
        .x = run->data[ROLE_X],
        .x_pitch = run->pitch[ROLE_X],
        .y = run->data[ROLE_Y],
        .y_pitch = run->pitch[ROLE_Y],
        .weight_step = p->kept[p->kept_count - 1].affine ? channels : 0,
        .weight = group_weights_at(job, 0, first),
        .bias = group_weights_at(job, 1, first),
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .m2 = run_stat(p, run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = traffic,
        .kind = p->kind,
        .activation = p->activation,
    };
    kernels->forward[kernel_kind(p->kind, p->activation)](&args);
}

static void backward_rows(const cpu_job *job, const group_kernels *kernels, int64_t row, int count,
                          const row_run *run, traffic traffic, void *kept) {
    const problem *p = job->problem;
    const int64_t first = group_first_affine(p, row), channels = group_channels(p);
    const group_backward_args args = {
        .hints = &job->plan->hints,
        .rows = count,
        .channels = channels,
        .span = p->reduced[p->reduced_count - 1].size,
        .dy = run->data[ROLE_DY],
        .dy_pitch = run->pitch[ROLE_DY],
        .x = run->data[ROLE_X],
        .x_pitch = run->pitch[ROLE_X],
        .dx = run->data[ROLE_DX],
        .dx_pitch = run->pitch[ROLE_DX],
        .weight_step = p->kept[p->kept_count - 1].affine ? channels : 0,
        .weight = group_weights_at(job, 0, first),
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .prefetch_dx =
            job->plan->hints.prefetch_dx && traffic == TRAFFIC_AHEAD && run->data[ROLE_DX],
        .traffic = traffic,
        .kind = p->kind,
        .activation = p->activation,
        .bias = group_weights_at(job, 1, first),
        .kept = kept,
        .dsum = run->data[ROLE_DSUM],
        .dsum_pitch = run->pitch[ROLE_DSUM],
        .dweight = group_row_sums(job, 0, row),
        .dbias = group_row_sums(job, 1, row),
    };
    kernels->backward[kernel_kind(p->kind, p->activation)](&args);
}

void group_rows(const cpu_job *job, dtype element, int64_t row, int count, const row_run *run,
                traffic traffic, void *kept) {
    const group_kernels *kernels = &job->plan->kernels->of[element].groups;
    if (job->problem->pass == PLANISH_BACKWARD)
        backward_rows(job, kernels, row, count, run, traffic, kept);
    else
        forward_rows(job, kernels, row, count, run, traffic);
}
