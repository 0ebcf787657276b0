/*
 * Groups of any other layout and dtypes: the rows of a tile are brought into planes, in the compute
 * type and stored by channel, taken there by the kernels of cpu/groups/groups.h, and brought back.
 */
#include "cpu/groups/groups_planes.h"
#include "cpu/common/stretch.h"
#include "cpu/groups/groups_job.h"
#include "cpu/groups/groups_row.h"

/* The rows of a tile in a tensor, seen as `channels` planes. Elements. */
typedef struct plane_view {
    int64_t channels;            /* in one step of `row`, side by side where pixels are not */
    int64_t row, channel, pixel; /* strides */
} plane_view;

static plane_view view_of(const problem *p, role r, int64_t rows) {
    const axis *inner = &p->kept[p->kept_count - 1];
    plane_view v = {group_channels(p), axis_stride(p, inner, r), reduced_stride(p, 0, r),
                    reduced_stride(p, p->reduced_count - 1, r)};
    if (p->reduced_count == 1) {
        v.channel = v.row;
        v.channels = rows;
    } else if (v.row == v.channels * v.channel) {
        v.channels *= rows;
    }
    return v;
}

/* All rows of a tile between a tensor and planes: in (gather) or out. */
static void move_planes(const cpu_job *job, role r, char *tensor, char *planes, int64_t rows,
                        bool in) {
    const cpu_plan *plan = job->plan;
    const problem *p = job->problem;
    const dtype type = p->dtypes[r];
    const int64_t bytes = dtype_bytes(type);
    const int64_t pixels = p->reduced[p->reduced_count - 1].size;
    const int64_t plane_bytes = pixels * (int64_t)group_real_bytes(plan);
    const plane_view v = view_of(p, r, rows);
    const plane_kernels *kernels = plan->kernels->planes[plan->is_double];
    const int64_t all = rows * group_channels(p);
    for (int64_t first = 0; first < all; first += v.channels) {
        char *at = tensor + first / v.channels * v.row * bytes;
        char *to = planes + first * plane_bytes;
        if (v.channel == 1 && v.pixel != 1) {
            if (in)
                kernels->gather(to, pixels, at, v.pixel * bytes, type, pixels, v.channels);
            else
                kernels->scatter(at, v.pixel * bytes, to, pixels, type, pixels, v.channels);
            continue;
        }
        for (int64_t c = 0; c < v.channels; c++, at += v.channel * bytes, to += plane_bytes)
            if (in)
                stretch_gather(plan, to, at, v.pixel, type, pixels);
            else
                stretch_scatter(plan, at, to, v.pixel, type, pixels);
    }
}

/* Adds planes to planes. */
static void add_planes(const cpu_plan *plan, char *planes, const char *terms, int64_t count) {
    if (plan->is_double)
        for (int64_t i = 0; i < count; i++)
            ((double *)planes)[i] += ((const double *)terms)[i];
    else
        for (int64_t i = 0; i < count; i++)
            ((float *)planes)[i] += ((const float *)terms)[i];
}

void group_planes(const cpu_job *job, int slot, int64_t row, int64_t rows) {
    const cpu_plan *plan = job->plan;
    const group_tiles_cut *cut = &plan->cut.tiles;
    const bool backward = job->problem->pass == PLANISH_BACKWARD;
    const int64_t row_bytes = job->problem->cols * (int64_t)group_real_bytes(plan);
    const row_run run = row_run_at(job, row, row + rows);
    const role output = backward ? ROLE_DX : ROLE_Y;
    char *x = slot_data(job, &cut->slots, slot), *dy = x + cut->tile_rows * row_bytes;
    char *out = !run.data[output] ? NULL : backward ? dy : x;
    move_planes(job, ROLE_X, run.data[ROLE_X], x, rows, true);
    if (backward)
        move_planes(job, ROLE_DY, run.data[ROLE_DY], dy, rows, true);
    for (int64_t i = 0; i < rows; i++) {
        row_run one = row_run_at(job, row + i, row + i + 1);
        one.data[ROLE_X] = x + i * row_bytes;
        one.data[ROLE_DY] = dy + i * row_bytes;
        one.data[output] = out ? out + i * row_bytes : NULL;
        one.data[ROLE_DSUM] = NULL; /* it is added to all rows, in place of x */
        group_rows(job, plan->is_double ? DTYPE_F64 : DTYPE_F32, row + i, 1, &one, TRAFFIC_CACHED,
                   NULL);
    }
    if (out && run.data[ROLE_DSUM]) {
        move_planes(job, ROLE_DSUM, run.data[ROLE_DSUM], x, rows, true);
        add_planes(plan, out, x, rows * job->problem->cols);
    }
    if (out)
        move_planes(job, output, run.data[output], out, rows, false);
}
