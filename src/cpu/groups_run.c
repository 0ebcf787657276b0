/*
 * Work items of PATH_GROUPS, and the sums over rows. What is done with a row is cpu/groups.h. The
 * workspace holds weight and bias in the compute type, the sums of dweight and dbias, and each
 * row's own sums of its channels.
 */
#include "cpu/groups_run.h"
#include "cpu/affine.h"

static int64_t channels_of(const problem *p) {
    return p->cols / p->reduced[p->reduced_count - 1].size;
}

/* The affine element of a row's first channel. */
static int64_t first_affine(const problem *p, int64_t row) {
    const bool vary = p->reduced_count == 2 && p->reduced[0].affine;
    int64_t span = vary ? p->reduced[0].size : 1, first = 0;
    for (int k = p->kept_count - 1; k >= 0; k--) {
        if (p->kept[k].affine) {
            first += row % p->kept[k].size * span;
            span *= p->kept[k].size;
        }
        row /= p->kept[k].size;
    }
    return first;
}

static size_t real_bytes(const planish_plan *plan) {
    return plan->is_double ? sizeof(double) : sizeof(float);
}

/* weight (which = 0) or bias (1) of all affine elements; NULL: absent. */
static char *dense_weights(const cpu_job *job, int which) {
    const planish_plan *plan = job->plan;
    const bool there = has(&plan->problem, which ? ROLE_BIAS : ROLE_WEIGHT);
    return there ? job->workspace + (size_t)which * plan->weight_bytes : NULL;
}

static double *total_sums(const cpu_job *job, int which) {
    const planish_plan *plan = job->plan;
    return (double *)(job->workspace + 2 * plan->weight_bytes + (size_t)which * plan->sum_bytes);
}

static double *row_sums(const cpu_job *job, int which, int64_t row) {
    const planish_plan *plan = job->plan;
    const size_t rows = (size_t)plan->problem.rows;
    char *at = job->workspace + 2 * (plan->weight_bytes + plan->sum_bytes);
    return (double *)(at + ((size_t)which * rows + (size_t)row) * plan->row_sum_bytes);
}

void group_weights(const cpu_job *job) {
    for (int which = 0; which < 2; which++)
        if (dense_weights(job, which))
            load_affine(job, which ? ROLE_BIAS : ROLE_WEIGHT, dense_weights(job, which));
}

static const void *weights_at(const cpu_job *job, int which, int64_t first) {
    const char *weights = dense_weights(job, which);
    return weights ? weights + (size_t)first * real_bytes(job->plan) : NULL;
}

/* A row whose elements are where `run` says, of a dtype that has these kernels. */
static void forward_row(const cpu_job *job, const group_kernels *kernels, int64_t row,
                        const row_run *run, traffic traffic) {
    const problem *p = &job->plan->problem;
    const int64_t first = first_affine(p, row);
    const group_forward_args args = {
        .channels = channels_of(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .x = run->data[ROLE_X],
        .y = run->data[ROLE_Y],
        .weight = weights_at(job, 0, first),
        .bias = weights_at(job, 1, first),
        .weight_offset = p->weight_offset,
        .eps = p->eps,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .m2 = run_stat(p, run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = traffic,
    };
    kernels->forward[p->kind](&args);
}

static void backward_row(const cpu_job *job, const group_kernels *kernels, int64_t row,
                         const row_run *run, traffic traffic) {
    const problem *p = &job->plan->problem;
    const group_backward_args args = {
        .channels = channels_of(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .dy = run->data[ROLE_DY],
        .x = run->data[ROLE_X],
        .dx = run->data[ROLE_DX],
        .weight = weights_at(job, 0, first_affine(p, row)),
        .weight_offset = p->weight_offset,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .traffic = traffic,
        .dweight = row_sums(job, 0, row),
        .dbias = row_sums(job, 1, row),
    };
    kernels->backward[p->kind](&args);
}

static void group_row(const cpu_job *job, dtype element, int64_t row, const row_run *run,
                      traffic traffic) {
    const planish_plan *plan = job->plan;
    (plan->problem.pass == PLANISH_BACKWARD ? backward_row : forward_row)(
        job, &plan->kernels->groups[element], row, run, traffic);
}

/* ---- Rows by way of planes --------------------------------------------------------------------
 */

/* The rows of a tile in a tensor, seen as `channels` planes. Elements. */
typedef struct plane_view {
    int64_t channels;            /* in one step of `row`, side by side where pixels are not */
    int64_t row, channel, pixel; /* strides */
} plane_view;

static plane_view view_of(const problem *p, role r, int64_t rows) {
    const axis *inner = &p->kept[p->kept_count - 1];
    plane_view v = {channels_of(p), inner->stride[r], p->reduced[0].stride[r],
                    p->reduced[p->reduced_count - 1].stride[r]};
    if (p->reduced_count == 1) {
        v.channel = v.row;
        v.channels = rows;
    } else if (v.row == v.channels * v.channel) {
        v.channels *= rows;
    }
    return v;
}

static void gather_plane(const planish_plan *plan, char *plane, const char *from, int64_t stride,
                         dtype type) {
    const int64_t pixels = plan->problem.reduced[plan->problem.reduced_count - 1].size;
    const int bytes = dtype_bytes(type);
    const dtype real = plan->is_double ? DTYPE_F64 : DTYPE_F32;
    if (stride == 1 && !plan->is_double)
        plan->kernels->widen[type]((float *)plane, from, pixels);
    else
        for (int64_t i = 0; i < pixels; i++)
            element_store(plane + i * dtype_bytes(real), real,
                          element_load(from + i * stride * bytes, type));
}

static void scatter_plane(const planish_plan *plan, char *to, const char *plane, int64_t stride,
                          dtype type) {
    const int64_t pixels = plan->problem.reduced[plan->problem.reduced_count - 1].size;
    const int bytes = dtype_bytes(type);
    const dtype real = plan->is_double ? DTYPE_F64 : DTYPE_F32;
    if (stride == 1 && !plan->is_double)
        plan->kernels->narrow[type](to, (const float *)plane, pixels);
    else
        for (int64_t i = 0; i < pixels; i++)
            element_store(to + i * stride * bytes, type,
                          element_load(plane + i * dtype_bytes(real), real));
}

/* All rows of a tile between a tensor and planes: in (gather) or out. */
static void move_planes(const planish_plan *plan, role r, char *tensor, char *planes, int64_t rows,
                        bool in) {
    const problem *p = &plan->problem;
    const dtype type = p->dtypes[r];
    const int64_t bytes = dtype_bytes(type);
    const int64_t pixels = p->reduced[p->reduced_count - 1].size;
    const int64_t plane_bytes = pixels * (int64_t)real_bytes(plan);
    const plane_view v = view_of(p, r, rows);
    const plane_kernels *kernels = &plan->kernels->planes[plan->is_double];
    const int64_t all = rows * channels_of(p);
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
                gather_plane(plan, to, at, v.pixel, type);
            else
                scatter_plane(plan, at, to, v.pixel, type);
    }
}

/* `rows` rows from `row` on, which are along the innermost kept axis. */
static void group_tile(const cpu_job *job, int slot, int64_t row, int64_t rows) {
    const planish_plan *plan = job->plan;
    const bool backward = plan->problem.pass == PLANISH_BACKWARD;
    const int64_t row_bytes = plan->problem.cols * (int64_t)real_bytes(plan);
    const row_run run = row_run_at(job, row, row + rows);
    const role output = backward ? ROLE_DX : ROLE_Y;
    char *x = slot_data(job, slot), *dy = x + plan->tile_rows * row_bytes;
    char *out = !run.data[output] ? NULL : backward ? dy : x;
    move_planes(plan, ROLE_X, run.data[ROLE_X], x, rows, true);
    if (backward)
        move_planes(plan, ROLE_DY, run.data[ROLE_DY], dy, rows, true);
    for (int64_t i = 0; i < rows; i++) {
        row_run one = row_run_at(job, row + i, row + i + 1);
        one.data[ROLE_X] = x + i * row_bytes;
        one.data[ROLE_DY] = dy + i * row_bytes;
        one.data[output] = out ? out + i * row_bytes : NULL;
        group_row(job, plan->is_double ? DTYPE_F64 : DTYPE_F32, row + i, &one, TRAFFIC_CACHED);
    }
    if (out)
        move_planes(plan, output, run.data[output], out, rows, false);
}

static void group_tiles(cpu_job *job, int64_t begin, int64_t end) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const int64_t run = p->kept[p->kept_count - 1].size;
    const int64_t all = p->rows / run * plan->run_tiles;
    const int64_t last = end * plan->block_tiles < all ? end * plan->block_tiles : all;
    const int slot = slot_take(job);
    for (int64_t tile = begin * plan->block_tiles; tile < last; tile++) {
        const int64_t first = tile % plan->run_tiles * plan->tile_rows;
        const int64_t rows = run - first < plan->tile_rows ? run - first : plan->tile_rows;
        group_tile(job, slot, tile / plan->run_tiles * run + first, rows);
    }
    slot_return(job, slot);
}

/* ---- All rows ----------------------------------------------------------------------------------
 */

void group_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    if (plan->tile_rows) {
        group_tiles(job, begin, end);
        return;
    }
    const int64_t last = end * plan->block_rows < p->rows ? end * plan->block_rows : p->rows;
    for (int64_t row = begin * plan->block_rows; row < last; row++) {
        const row_run run = row_run_at(job, row, row + 1);
        group_row(job, p->dtypes[ROLE_X], row, &run, plan->traffic);
    }
}

void group_sums(const cpu_job *job) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    const int64_t channels = channels_of(p);
    for (int which = 0; which < 2; which++) {
        if (!has(p, outputs[which]))
            continue;
        double *total = total_sums(job, which);
        memset(total, 0, plan->sum_bytes);
        for (int64_t row = 0; row < p->rows; row++) {
            double *to = total + first_affine(p, row);
            const double *sums = row_sums(job, which, row);
            for (int64_t c = 0; c < channels; c++)
                to[c] += sums[c];
        }
        const bool dense = affine_is_dense(p, outputs[which]);
        for (int64_t first = 0; first < p->affine; first += SUM_TILE) {
            const int64_t count = p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE;
            store_affine(job, outputs[which], first, count, total + first, dense);
        }
    }
}
