/* Rows between tensors and scratch in the compute type, and dropout of them; see stages_path.h. */
#include "cpu/common/stretch.h"
#include "cpu/stages/stages_path.h"

void stages_each_run(const problem *p, int r, stages_visit *visit, void *context) {
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
    bool streams; /* dense runs go past the cache */
    char *tensor;
    dtype type;
    char *row;
    size_t real_bytes; /* of the row's elements */
} transfer;

static void gather_run(void *context, int64_t at, int64_t offset, int64_t stride, int64_t count) {
    const transfer *t = context;
    stretch_gather(t->plan, t->row + (size_t)at * t->real_bytes,
                   t->tensor + offset * dtype_bytes(t->type), stride, t->type, count);
}

void stages_gather(const cpu_job *job, role r, const char *data, void *row) {
    transfer t = {
        job->plan, false, (char *)data, job->problem->dtypes[r], row, stages_real_bytes(job->plan)};
    stages_each_run(job->problem, (int)r, gather_run, &t);
}

static void scatter_run(void *context, int64_t at, int64_t offset, int64_t stride, int64_t count) {
    const transfer *t = context;
    char *const to = t->tensor + offset * dtype_bytes(t->type);
    const char *const from = t->row + (size_t)at * t->real_bytes;
    if (t->streams && stride == 1 && (uintptr_t)to % (size_t)dtype_bytes(t->type) == 0)
        t->plan->kernels->spans->stream[t->type](to, (const float *)(const void *)from, count);
    else
        stretch_scatter(t->plan, to, from, stride, t->type, count);
}

/* Of bytes, which masks and quantised elements are. */
static void scatter_bytes(void *context, int64_t at, int64_t offset, int64_t stride,
                          int64_t count) {
    const transfer *t = context;
    if (stride == 1 && t->streams)
        t->plan->kernels->spans->stream_bytes(t->tensor + offset, t->row + at, count);
    else if (stride == 1)
        memcpy(t->tensor + offset, t->row + at, (size_t)count);
    else
        for (int64_t i = 0; i < count; i++)
            t->tensor[offset + i * stride] = t->row[at + i];
}

void stages_scatter(const cpu_job *job, role r, char *data, const void *row) {
    const role_types types = types_of(r);
    const bool bytes = types == TYPES_BYTE || types == TYPES_QUANTISED;
    const bool streams = job->plan->traffic == TRAFFIC_STREAM && (bytes || !job->plan->is_double);
    transfer t = {job->plan,   streams,
                  data,        job->problem->dtypes[r],
                  (char *)row, stages_real_bytes(job->plan)};
    stages_each_run(job->problem, (int)r, bytes ? scatter_bytes : scatter_run, &t);
}

void stages_prefetch_row(const cpu_job *job, const row_run *run, int64_t r) {
    static const role read[] = {ROLE_X, ROLE_DY, ROLE_RESIDUAL, ROLE_GATE, ROLE_DSUM, ROLE_BRANCH};
    const problem *p = job->problem;
    if (job->plan->traffic == TRAFFIC_CACHED || p->reduced_count > 1)
        return;
    for (size_t k = 0; k < sizeof read / sizeof *read; k++)
        for (int64_t at = 0; has(p, read[k]) && at < p->cols * dtype_bytes(p->dtypes[read[k]]);
             at += 64)
            __builtin_prefetch(run->data[read[k]] + r * run->pitch[read[k]] + at, 0, 2);
}

void stages_round(const cpu_plan *plan, void *row, dtype to, int64_t count, void *piece) {
    const size_t real_bytes = stages_real_bytes(plan);
    if ((size_t)dtype_bytes(to) == real_bytes)
        return;
    for (int64_t at = 0; at < count; at += STAGES_PIECE) {
        const int64_t n = count - at < STAGES_PIECE ? count - at : STAGES_PIECE;
        char *const elements = (char *)row + (size_t)at * real_bytes;
        stretch_scatter(plan, piece, elements, 1, to, n);
        stretch_gather(plan, elements, piece, 1, to, n);
    }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

int64_t stages_row_index(const problem *p, int64_t row) {
    int64_t index = 0;
    for (int k = p->kept_count - 1; k >= 0; k--) {
        index += row % p->kept[k].size * axis_index_step(p, &p->kept[k]);
        row /= p->kept[k].size;
    }
    return index;
}

typedef struct dropping {
    const cpu_job *job;
    const philox *draw;
    int64_t index;
    double factor;
    char *row;
    uint8_t *mask;
} dropping;

static void drop_run(void *context, int64_t at, int64_t offset, int64_t step, int64_t count) {
    const dropping *d = context;
    const size_t real_bytes = stages_real_bytes(d->job->plan);
    const stage_kernels *kernels = stages_kernels(d->job->plan);
    const bool together = step == 1;
    const int64_t n = together ? count : 1;
    for (int64_t i = 0; i < count; i += n)
        kernels->drop(d->row + (size_t)(at + i) * real_bytes, d->mask ? d->mask + at + i : NULL,
                      d->draw, d->index + offset + i * step, d->factor, n);
}

void stages_drop(const cpu_job *job, const philox *draw, int64_t index, void *row, uint8_t *mask) {
    dropping d = {job, draw, index, philox_factor(job->problem->stages.dropout_p), row, mask};
    stages_each_run(job->problem, ROLE_COUNT, drop_run, &d);
}
