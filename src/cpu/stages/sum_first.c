/* s of rows that are read next; see sum_first.h. */
#include "cpu/stages/sum_first.h"
#include "cpu/common/stretch.h"
#include "cpu/stages/stages_path.h"
#include "stages.h"

#include <stdlib.h>

/* Elements that go through the stages at once, in the compute type; and how far ahead of it memory
 * is prefetched where what lies in it together is short. */
enum { PIECE = 1024, SHORT_BYTES = 4096, AHEAD_BYTES = 8192, LEAST_AHEAD = 8 };

static const role roles[SUM_TENSORS] = {ROLE_X,         ROLE_RESIDUAL, ROLE_COLUMN_SCALE,
                                        ROLE_ROW_SCALE, ROLE_MASK,     ROLE_SUM};

/* ---- The plan -------------------------------------------------------------------------------- */

/* Whether the elements that are neighbours in s are so in x and the residual. */
static bool lies_alike(const problem *p) {
    int64_t kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    stages_sum_strides(p, kept, reduced);
    for (int list = 0; list < 2; list++) {
        const axis *axes = list ? p->reduced : p->kept;
        const int64_t *strides = list ? reduced : kept;
        for (int k = 0; k < (list ? p->reduced_count : p->kept_count); k++)
            if (strides[k] == 1 && axes[k].size > 1)
                return axis_stride(p, &axes[k], ROLE_X) == 1 &&
                       (!has(p, ROLE_RESIDUAL) || axis_stride(p, &axes[k], ROLE_RESIDUAL) == 1);
    }
    return false;
}

void sum_first_plan(cpu_plan *plan, const problem *p) {
    const sum_place place = stages_sum_place(p);
    plan->sum = (sum_cut){.offset = plan->workspace_bytes, .general = !lies_alike(p)};
    if (place == SUM_IN_WORKSPACE)
        plan->workspace_bytes +=
            ((size_t)(p->rows * p->cols) * (size_t)dtype_bytes(p->stages.sum) + 63) & ~(size_t)63;
    /* What a kernel reads is near; lines that it reads are not streamed. */
    plan->hints.prefetch_groups = false;
    if (place == SUM_IN_Y && plan->traffic == TRAFFIC_STREAM)
        plan->traffic = TRAFFIC_AHEAD;
}

/* ---- A stretch of elements ------------------------------------------------------------------- */

typedef struct sum_axis sum_axis;

/* Where a stretch begins in each tensor, and in dropout's order. */
typedef struct place {
    char *at[SUM_TENSORS];
    int64_t index;
} place;

static void move(place *p, const sum_axis *a, int64_t count) {
    for (int t = 0; t < SUM_TENSORS; t++)
        p->at[t] += count * a->stride[t];
    p->index += count * a->index_step;
}

/* Elements of a tensor in the compute type: where they are, or in `room`. */
static const void *operand(const sum_maker *m, const place *p, const sum_axis *a, int t, void *room,
                           int64_t count) {
    const int bytes = dtype_bytes(m->type[t]);
    const dtype real = m->plan.is_double ? DTYPE_F64 : DTYPE_F32;
    if (m->type[t] == real && a->stride[t] == bytes)
        return p->at[t];
    if (m->type[t] == DTYPE_F64 && real == DTYPE_F32) /* of rows: it does not make it all double */
        for (int64_t i = 0; i < count; i++)
            ((float *)room)[i] = (float)element_load(p->at[t] + i * a->stride[t], m->type[t]);
    else
        stretch_gather(&m->plan, room, p->at[t], a->stride[t] / bytes, m->type[t], count);
    return room;
}

/* u times a scale, of each element or one for all. */
static void scale(const sum_maker *m, const place *p, const sum_axis *a, int t, void *u, void *room,
                  int64_t count) {
    const stage_kernels *kernels = stages_kernels(&m->plan);
    if (!m->data[t])
        return;
    if (a->stride[t] == 0 || count == 1)
        kernels->scale(u, element_load(p->at[t], m->type[t]), count);
    else
        kernels->multiply(u, operand(m, p, a, t, room, count), count);
}

static void drop(const sum_maker *m, const place *p, const sum_axis *a, char *u, int64_t count) {
    const stage_kernels *kernels = stages_kernels(&m->plan);
    const double dropout_p = m->problem->stages.dropout_p, factor = philox_factor(dropout_p);
    const int64_t together = a->index_step == 1 ? count : 1;
    uint8_t mask[PIECE];
    if (dropout_p > 0)
        for (int64_t i = 0; i < count; i += together)
            kernels->drop(u + (size_t)i * stages_real_bytes(&m->plan),
                          m->data[SUM_MASK] ? mask + i : NULL, &m->draw,
                          p->index + i * a->index_step, factor, together);
    for (int64_t i = 0; m->data[SUM_MASK] && i < count; i++)
        p->at[SUM_MASK][i * a->stride[SUM_MASK]] = dropout_p > 0 ? (char)mask[i] : 1;
}

static void make_piece(const sum_maker *m, const place *p, const sum_axis *a, int64_t count) {
    _Alignas(64) double u[PIECE], room[PIECE];
    const stage_kernels *kernels = stages_kernels(&m->plan);
    const size_t bytes = (size_t)count * stages_real_bytes(&m->plan);
    const int s_bytes = dtype_bytes(m->type[SUM_S]);
    const void *const x = operand(m, p, a, SUM_X, u, count);
    if (x != u)
        memcpy(u, x, bytes);
    scale(m, p, a, SUM_COLUMN_SCALE, u, room, count);
    scale(m, p, a, SUM_ROW_SCALE, u, room, count);
    drop(m, p, a, (char *)u, count);
    if (m->data[SUM_RESIDUAL])
        kernels->add(u, operand(m, p, a, SUM_RESIDUAL, room, count), count);
    if ((size_t)s_bytes == stages_real_bytes(&m->plan) && a->stride[SUM_S] == s_bytes)
        memcpy(p->at[SUM_S], u, bytes);
    else
        stretch_scatter(&m->plan, p->at[SUM_S], u, a->stride[SUM_S] / s_bytes, m->type[SUM_S],
                        count);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Axes of a box, by the strides that s has, the smallest last; those that are one are merged. */
static int sort_axes(sum_axis axes[], int count) {
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && llabs(axes[k].stride[SUM_S]) > llabs(axes[k - 1].stride[SUM_S]);
             k--) {
            const sum_axis swapped = axes[k];
            axes[k] = axes[k - 1];
            axes[k - 1] = swapped;
        }
    int last = 0;
    for (int i = 1; i < count; i++) {
        bool merges = axes[last].index_step == axes[i].index_step * axes[i].size;
        for (int t = 0; merges && t < SUM_TENSORS; t++)
            merges = axes[last].stride[t] == axes[i].stride[t] * axes[i].size;
        const int64_t size = axes[last].size;
        last += !merges;
        axes[last] = axes[i];
        axes[last].size *= merges ? size : 1;
    }
    return last + 1;
}

/* Prefetches what is read some steps of an axis later. */
static void prefetch(const sum_maker *m, const place *p, const sum_axis *inner,
                     const sum_axis *outer, int64_t i) {
    for (int t = SUM_X; t <= SUM_RESIDUAL; t++) {
        const int64_t bytes = m->data[t] ? inner->size * dtype_bytes(m->type[t]) : 0;
        if (!bytes || bytes > SHORT_BYTES)
            continue;
        const int64_t steps = AHEAD_BYTES / bytes < LEAST_AHEAD ? LEAST_AHEAD : AHEAD_BYTES / bytes;
        if (i + steps >= outer->size)
            continue;
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(p->at[t] + steps * outer->stride[t] + at, 0, 3);
    }
}

/* All of a stretch at once, where it is dense and nothing but an addition. */
static bool join(const sum_maker *m, const place *p, const sum_axis *a) {
    bool dense = m->adds_alone;
    for (int t = 0; dense && t < SUM_TENSORS; t++)
        dense = !m->data[t] || a->stride[t] == dtype_bytes(m->type[t]);
    return dense && stages_kernels(&m->plan)->join(p->at[SUM_S], p->at[SUM_X], p->at[SUM_RESIDUAL],
                                                   m->type[SUM_X], m->type[SUM_RESIDUAL],
                                                   m->type[SUM_S], a->size);
}

static void make_box(const sum_maker *m, place p, const sum_axis axes[], int count) {
    const sum_axis *inner = &axes[count - 1];
    if (count > 2) {
        for (int64_t i = 0; i < axes[0].size; i++, move(&p, &axes[0], 1))
            make_box(m, p, axes + 1, count - 1);
        return;
    }
    for (int64_t i = 0; i < (count > 1 ? axes[0].size : 1); i++) {
        place piece = p;
        if (count > 1)
            prefetch(m, &p, inner, &axes[0], i);
        for (int64_t at = join(m, &p, inner) ? inner->size : 0; at < inner->size; at += PIECE) {
            const int64_t left = inner->size - at, n = left < PIECE ? left : PIECE;
            make_piece(m, &piece, inner, n);
            move(&piece, inner, n);
        }
        if (count > 1)
            move(&p, &axes[0], 1);
    }
}

/* cpu_job's make_x. */
static void make_rows(const cpu_job *job, int64_t row, int64_t rows) {
    const sum_maker *m = job->maker;
    const problem *p = m->problem;
    const int inner = p->kept_count - 1;
    while (rows > 0) {
        place at = {.index = 0};
        int64_t rest = row, left = 0;
        memcpy(at.at, m->data, sizeof at.at);
        for (int k = inner; k >= 0; k--) {
            const int64_t i = k ? rest % p->kept[k].size : rest;
            rest /= p->kept[k].size;
            move(&at, &m->kept[k], i);
            left = k == inner ? p->kept[k].size - i : left;
        }
        sum_axis axes[PLANISH_MAX_NDIM + 1];
        memcpy(axes, m->reduced, (size_t)p->reduced_count * sizeof *axes);
        axes[p->reduced_count] = m->kept[inner];
        axes[p->reduced_count].size = left < rows ? left : rows;
        make_box(m, at, axes, sort_axes(axes, p->reduced_count + 1));
        row += left;
        rows -= left;
    }
}

/* ---- The data -------------------------------------------------------------------------------- */

static sum_axis axis_of(const sum_maker *m, const axis *a, int64_t s_stride) {
    const problem *p = m->problem;
    sum_axis made = {.size = a->size, .index_step = axis_index_step(p, a)};
    for (int t = 0; t < SUM_S; t++)
        made.stride[t] = m->data[t] ? axis_stride(p, a, roles[t]) * dtype_bytes(m->type[t]) : 0;
    made.stride[SUM_S] = s_stride * dtype_bytes(m->type[SUM_S]);
    return made;
}

void sum_first_begin(sum_maker *maker, cpu_job *job, const problem *p,
                     void *const buffers[ROLE_COUNT]) {
    const sum_place where = stages_sum_place(p);
    char *const s = where == SUM_IN_SUM ? buffers[ROLE_SUM]
                    : where == SUM_IN_Y ? buffers[ROLE_Y]
                                        : job->workspace + job->plan->sum.offset;
    int64_t kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    stages_sum_strides(p, kept, reduced);
    *maker = (sum_maker){.problem = p, .plan = *job->plan};
    maker->plan.is_double = problem_is_double(p);
    for (int t = 0; t < SUM_S; t++) {
        maker->type[t] = p->dtypes[roles[t]];
        maker->data[t] = has(p, roles[t]) ? buffers[roles[t]] : NULL;
    }
    maker->type[SUM_S] = p->stages.sum;
    maker->data[SUM_S] = s;
    for (int k = 0; k < p->kept_count; k++)
        maker->kept[k] = axis_of(maker, &p->kept[k], kept[k]);
    for (int k = 0; k < p->reduced_count; k++)
        maker->reduced[k] = axis_of(maker, &p->reduced[k], reduced[k]);
    maker->adds_alone = has(p, ROLE_RESIDUAL) && !has(p, ROLE_COLUMN_SCALE) &&
                        !has(p, ROLE_ROW_SCALE) && !has(p, ROLE_MASK) && p->stages.dropout_p == 0;
    if (p->stages.dropout_p > 0)
        maker->draw = philox_of((const uint64_t *)buffers[ROLE_RNG], p->stages.dropout_p);
    job->data[ROLE_X] = s;
    job->maker = maker;
    job->make_x = make_rows;
}
