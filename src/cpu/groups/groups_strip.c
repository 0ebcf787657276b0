/* Groups of images stored by pixel; what is done with a strip of them is cpu/groups/pixels.h. */
#include "cpu/groups/groups_strip.h"
#include "cpu/groups/groups_job.h"

/* Bytes from pixel to pixel. */
static int64_t pixel_pitch(const problem *p, role r) {
    return reduced_stride(p, p->reduced_count - 1, r) * dtype_bytes(p->dtypes[r]);
}

void group_strip(const cpu_job *job, int slot, int64_t row, int64_t rows) {
    const cpu_plan *plan = job->plan;
    const problem *p = job->problem;
    const group_tiles_cut *cut = &plan->cut.tiles;
    const group_kernels *kernels = &plan->kernels->of[p->dtypes[ROLE_X]].groups;
    const row_run run = row_run_at(job, row, row + rows);
    const int64_t first = group_first_affine(p, row), depth = group_channels(p);
    const int64_t pixels = p->reduced[p->reduced_count - 1].size;
    const row_stat mean = run_stat(p, &run, ROLE_MEAN), rstd = run_stat(p, &run, ROLE_RSTD);
    if (p->pass == PLANISH_BACKWARD) {
        const strip_backward_args args = {
            .hints = &plan->hints,
            .groups = rows,
            .depth = depth,
            .pixels = pixels,
            .dy = run.data[ROLE_DY],
            .dy_pitch = pixel_pitch(p, ROLE_DY),
            .x = run.data[ROLE_X],
            .x_pitch = pixel_pitch(p, ROLE_X),
            .dx = run.data[ROLE_DX],
            .dx_pitch = pixel_pitch(p, ROLE_DX),
            .weight = group_weights_at(job, 0, first),
            .weight_offset = p->weight_offset,
            .rule = p->rule,
            .mean = mean,
            .rstd = rstd,
            .traffic = plan->traffic,
            .kind = p->kind,
            .activation = p->activation,
            .bias = group_weights_at(job, 1, first),
            .keeps = cut->keeps,
            .dsum = run.data[ROLE_DSUM],
            .dsum_pitch = pixel_pitch(p, ROLE_DSUM),
            .dweight = group_row_sums(job, 0, row),
            .dbias = group_row_sums(job, 1, row),
            .scratch = slot_data(job, &cut->slots, slot),
        };
        kernels->strip_backward[kernel_kind(p->kind, p->activation)](&args);
        return;
    }
    const strip_forward_args args = {
        .hints = &plan->hints,
        .groups = rows,
        .depth = depth,
        .pixels = pixels,
        .x = run.data[ROLE_X],
        .x_pitch = pixel_pitch(p, ROLE_X),
        .y = run.data[ROLE_Y],
        .y_pitch = pixel_pitch(p, ROLE_Y),
        .weight = group_weights_at(job, 0, first),
        .bias = group_weights_at(job, 1, first),
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = mean,
        .rstd = rstd,
        .m2 = run_stat(p, &run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = plan->traffic,
        .kind = p->kind,
        .activation = p->activation,
        .scratch = slot_data(job, &cut->slots, slot),
    };
    kernels->strip_forward[kernel_kind(p->kind, p->activation)](&args);
}
