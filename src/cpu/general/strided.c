/*
 * The general path: any strides, any axes, any dtypes. Each row is gathered into dense scratch in
 * the compute type, run through the same row kernels as dense rows, and scattered back. Right for
 * everything, fast for nothing in particular.
 */
#include "cpu/general/strided.h"
#include "cpu/common/affine.h"
#include "cpu/common/saved_mean.h"
#include "cpu/common/stretch.h"
#include "cpu/common/sums.h"

#include <math.h>

/* Calls for each dense-in-scratch stretch of a row: `count` elements from scratch index `at` on, at
 * `offset` elements in tensor r with `stride` between them. */
typedef void (*stretch)(void *context, int64_t at, int64_t offset, int64_t stride, int64_t count);

static void for_each_stretch(const problem *p, role r, stretch visit, void *context) {
    const axis *inner = &p->reduced[p->reduced_count - 1];
    for (int64_t at = 0; at < p->cols; at += inner->size) {
        int64_t offset = 0, rest = at / inner->size;
        for (int k = p->reduced_count - 2; k >= 0; k--) {
            offset += rest % p->reduced[k].size * reduced_stride(p, k, r);
            rest /= p->reduced[k].size;
        }
        visit(context, at, offset, axis_stride(p, inner, r), inner->size);
    }
}

typedef struct transfer {
    const cpu_plan *plan;
    char *tensor;
    dtype type;
    char *scratch;
} transfer;

static char *scratch_at(const transfer *t, int64_t at) {
    return t->scratch + at * (t->plan->is_double ? 8 : 4);
}

static void gather_stretch(void *context, int64_t at, int64_t offset, int64_t stride,
                           int64_t count) {
    const transfer *t = context;
    stretch_gather(t->plan, scratch_at(t, at), t->tensor + offset * dtype_bytes(t->type), stride,
                   t->type, count);
}

static void scatter_stretch(void *context, int64_t at, int64_t offset, int64_t stride,
                            int64_t count) {
    const transfer *t = context;
    stretch_scatter(t->plan, t->tensor + offset * dtype_bytes(t->type), scratch_at(t, at), stride,
                    t->type, count);
}

/* Gathered rows by their place in a block's slice. */
enum { ROW_INPUT, ROW_RESULT, ROW_WEIGHT, ROW_BIAS, ROW_DY };

typedef struct strided_block {
    const cpu_job *job;
    block_space space;
} strided_block;

static void *scratch_row(const strided_block *b, int place) {
    return b->space.rows + (size_t)place * b->job->plan->cut.strided.row_bytes;
}

static transfer transfer_of(const strided_block *b, role r, char *tensor, int place) {
    return (transfer){b->job->plan, tensor, b->job->problem->dtypes[r], scratch_row(b, place)};
}

/* Returns the gathered row, or NULL where the tensor is absent. */
static void *gather(const strided_block *b, const row_run *run, role r, int place) {
    if (!run->data[r])
        return NULL;
    transfer t = transfer_of(b, r, run->data[r], place);
    for_each_stretch(b->job->problem, r, gather_stretch, &t);
    return t.scratch;
}

static void scatter(const strided_block *b, const row_run *run, role r, int place) {
    transfer t = transfer_of(b, r, run->data[r], place);
    for_each_stretch(b->job->problem, r, scatter_stretch, &t);
}

/* xhat from y; 0 where y holds no digit of it (planish.h, PLANISH_BACKWARD_FROM_Y). */
static inline double xhat_from(double y, double weight, double bias, double ulp) {
    const double xhat = (y - bias) / weight;
    return weight == 0 || fabs(weight) <= ulp * fabs(bias) ? 0 : xhat;
}

/* Of a row in place. */
static void rebuild_xhat(const cpu_job *job, void *y, const void *weight, const void *bias) {
    const problem *p = job->problem;
    const double ulp = ulp_at_one(p->dtypes[ROLE_Y]), offset = p->weight_offset;
    if (job->plan->is_double) {
        double *const row = y;
        const double *const w = weight, *const b = bias;
        for (int64_t i = 0; i < p->cols; i++)
            row[i] = xhat_from(row[i], w ? w[i] + offset : 1, b ? b[i] : 0, ulp);
    } else {
        float *const row = y;
        const float *const w = weight, *const b = bias;
        for (int64_t i = 0; i < p->cols; i++)
            row[i] = (float)xhat_from(row[i], w ? w[i] + offset : 1, b ? (double)b[i] : 0, ulp);
    }
}

/* ---- One row --------------------------------------------------------------------------------- */

/* Of what a row is gathered in. */
static const row_kernels *kernels_of(const cpu_plan *plan) {
    return &plan->kernels->of[plan->is_double ? DTYPE_F64 : DTYPE_F32].rows[WEIGHT_SAME];
}

static void forward_row(const strided_block *b, const row_run *run, const void *weight,
                        const void *bias) {
    const cpu_plan *plan = b->job->plan;
    const problem *p = b->job->problem;
    const forward_args args = {
        .hints = &plan->hints,
        .rows = 1,
        .cols = p->cols,
        .x = gather(b, run, ROLE_X, ROW_INPUT),
        .y = run->data[ROLE_Y] ? scratch_row(b, ROW_RESULT) : NULL,
        .weight = weight,
        .bias = bias,
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .m2 = run_stat(p, run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .kind = p->kind,
        .activation = p->activation,
    };
    kernels_of(plan)->forward[kernel_kind(p->kind, p->activation)](&args);
    if (args.y)
        scatter(b, run, ROLE_Y, ROW_RESULT);
}

static void backward_row(const strided_block *b, const row_run *run, const void *weight,
                         const void *bias) {
    const cpu_plan *plan = b->job->plan;
    const problem *p = b->job->problem;
    const bool from_y = p->pass == PLANISH_BACKWARD_FROM_Y;
    void *x = gather(b, run, from_y ? ROLE_Y : ROLE_X, ROW_INPUT);
    if (from_y)
        rebuild_xhat(b->job, x, weight, bias);
    const backward_args args = {
        .hints = &plan->hints,
        .rows = 1,
        .cols = p->cols,
        .dy = gather(b, run, ROLE_DY, ROW_DY),
        .x = x,
        .dx = run->data[ROLE_DX] ? scratch_row(b, ROW_RESULT) : NULL,
        .weight = weight,
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .x_is_xhat = from_y,
        .dweight = b->space.chunk[0],
        .dbias = b->space.chunk[1],
        .kind = p->kind,
        .activation = p->activation,
        .bias = bias,
        .half = problem_half(p),
        .c1 = run_stat(p, run, ROLE_C1),
        .c2 = run_stat(p, run, ROLE_C2),
    };
    const row_kernels *const kernels = kernels_of(plan);
    (args.half ? kernels->halves[p->kind]
               : kernels->backward[kernel_kind(p->kind, p->activation)])(&args);
    if (args.dx)
        scatter(b, run, ROLE_DX, ROW_RESULT);
}

/* ---- Sums over rows -------------------------------------------------------------------------- */

/* Whether every row adds to the same affine elements, one for each of its own. */
static bool rows_share_affine(const problem *p) {
    for (int k = 0; k < p->kept_count; k++)
        if (p->kept[k].affine)
            return false;
    for (int k = 0; k < p->reduced_count; k++)
        if (!p->reduced[k].affine && p->reduced[k].size != 1)
            return false;
    return true;
}

static bool weight_varies_by_row(const problem *p) {
    for (int k = 0; k < p->kept_count; k++)
        if (p->kept[k].affine)
            return true;
    return false;
}

/* Adds the sums of one row to the affine elements it belongs to, and clears them. */
static void flush_row(const cpu_job *job, int64_t row, void *chunk, double *sum) {
    const problem *p = job->problem;
    const dtype real = job->plan->is_double ? DTYPE_F64 : DTYPE_F32;
    int64_t step[PLANISH_MAX_NDIM], span = 1, first = 0;
    for (int k = p->reduced_count - 1; k >= 0; k--) {
        step[k] = p->reduced[k].affine ? span : 0;
        span *= p->reduced[k].affine ? p->reduced[k].size : 1;
    }
    for (int k = p->kept_count - 1; k >= 0; k--) {
        first += p->kept[k].affine ? row % p->kept[k].size * span : 0;
        span *= p->kept[k].affine ? p->kept[k].size : 1;
        row /= p->kept[k].size;
    }
    const int inner = p->reduced_count - 1;
    for (int64_t at = 0; at < p->cols; at += p->reduced[inner].size) {
        int64_t to = first, rest = at / p->reduced[inner].size;
        for (int k = inner - 1; k >= 0; k--) {
            to += rest % p->reduced[k].size * step[k];
            rest /= p->reduced[k].size;
        }
        for (int64_t i = 0; i < p->reduced[inner].size; i++)
            sum[to + i * step[inner]] +=
                element_load((const char *)chunk + (at + i) * dtype_bytes(real), real);
    }
    memset(chunk, 0, job->plan->slices.chunk_bytes);
}

void strided_blocks(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const block_slices *slices = &job->plan->slices;
    const int64_t block_rows = job->plan->cut.strided.block_rows;
    const problem *p = job->problem;
    const bool share = rows_share_affine(p), weight_varies = weight_varies_by_row(p);
    const bool backward = problem_is_backward(p);
    for (int64_t block = begin; block < end; block++) {
        const strided_block b = {job, block_space_of(job, block)};
        const int64_t first = block * block_rows;
        const int64_t last = first + block_rows < p->rows ? first + block_rows : p->rows;
        for (int i = 0; i < 2; i++)
            if (b.space.chunk[i]) {
                memset(b.space.chunk[i], 0, slices->chunk_bytes);
                memset(b.space.sum[i], 0, slices->sum_bytes);
            }
        const void *weight = NULL, *bias = NULL;
        for (int64_t row = first; row < last; row++) {
            const row_run run = row_run_at(job, row, row + 1);
            if (row == first || weight_varies) {
                weight = gather(&b, &run, ROLE_WEIGHT, ROW_WEIGHT);
                bias = gather(&b, &run, ROLE_BIAS, ROW_BIAS);
            }
            if (backward)
                backward_row(&b, &run, weight, bias);
            else
                forward_row(&b, &run, weight, bias);
            const bool chunk_ends = (row - first) % CHUNK_ROWS == CHUNK_ROWS - 1 || row == last - 1;
            for (int i = 0; i < 2; i++) {
                if (!b.space.chunk[i])
                    continue;
                if (!share)
                    flush_row(job, row, b.space.chunk[i], b.space.sum[i]);
                else if (chunk_ends)
                    flush_dense(job, b.space.chunk[i], b.space.sum[i]);
            }
        }
    }
}
