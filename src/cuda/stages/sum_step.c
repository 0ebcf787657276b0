#include "cuda/stages/sum_step.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/integers.h"
#include "cuda/stages/stages_forward.h"
#include "stages.h"

enum {
    WARPS = 8,           /* of a block */
    THREAD_BYTES = 64,   /* of x, or of what has more, that a thread has on their way */
    CHUNK_BYTES = 32,    /* most of a chunk in any tensor */
    ROOM_ALIGNMENT = 256 /* of what follows s in the workspace */
};

/* The tensors, as the kernel counts them. */
#define ENUMERATOR(role) OF_##role,
enum { EACH_SUM_TENSOR(ENUMERATOR) };
#undef ENUMERATOR

/* What roles they have there; s has that of sum. */
#define ROLE_OF(role) ROLE_##role,
static const role roles[] = {EACH_SUM_TENSOR(ROLE_OF)};
#undef ROLE_OF

/* Whose memory that is, where it is any tensor's. */
static role role_of(const cuda_sum *sum, int t) {
    if (!sum->is_last)
        return roles[t];
    return t == OF_RESIDUAL ? ROLE_DSUM : t == OF_SUM ? ROLE_DX : roles[t];
}

static int64_t size_of_stride(int64_t stride) {
    return stride < 0 ? -stride : stride;
}

static int64_t elements_of(const cuda_sum *sum) {
    return sum->problem->rows * sum->problem->cols;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Adds an axis to a list that is sorted by the strides of s, the smallest last. */
static void insert(sum_axis list[], int *count, const sum_axis *next) {
    int at = (*count)++;
    for (; at > 0 &&
           size_of_stride(list[at - 1].stride[OF_SUM]) < size_of_stride(next->stride[OF_SUM]);
         at--)
        list[at] = list[at - 1];
    list[at] = *next;
}

/* Makes one of neighbours that are; returns how many axes there are then. */
static int merge(sum_axis list[], int count) {
    int last = 0;
    for (int i = 1; i < count; i++) {
        sum_axis *outer = &list[last];
        bool merges = outer->index_step == list[i].index_step * list[i].size;
        for (int t = 0; merges && t < SUM_TENSORS; t++)
            merges = outer->stride[t] == list[i].stride[t] * list[i].size;
        const int64_t size = outer->size;
        last += !merges;
        list[last] = list[i];
        list[last].size *= merges ? size : 1;
    }
    return last + 1;
}

/* Where x is, if it is dense and not where the problem says, and where s is: strides along an axis,
 * in elements. */
typedef struct own_strides {
    const int64_t *x, *s;
} own_strides;

static sum_axis axis_of(const cuda_sum *sum, const problem *p, const axis *a, int k,
                        own_strides own) {
    sum_axis made = {.size = a->size, .index_step = axis_index_step(p, a)};
    for (int t = 0; t < SUM_TENSORS; t++) {
        const int64_t stride = t == OF_X && own.x     ? own.x[k]
                               : t == OF_SUM && own.s ? own.s[k]
                                                      : axis_stride(p, a, role_of(sum, t));
        made.stride[t] = stride * role_bytes(&sum->spec, roles[t]);
    }
    return made;
}

static bool is_scale(int t) {
    return t == OF_ROW_SCALE || t == OF_COLUMN_SCALE;
}

/* Elements of a chunk: a power of two that divides the innermost axis, whose elements are
 * neighbours. */
static int width_of(const cuda_spec *spec, const sum_axis *inner) {
    int narrowest = 8, widest = 1;
    for (int t = 0; t < SUM_TENSORS; t++) {
        const int bytes = role_bytes(spec, roles[t]);
        if (!bytes || is_scale(t))
            continue;
        if (inner->size > 1 && inner->stride[t] != bytes)
            return 1;
        narrowest = bytes > 1 ? least(narrowest, bytes) : narrowest;
        widest = most(widest, bytes);
    }
    if (spec->stages.dropout && inner->index_step != 1)
        return 1;
    int width = least(16 / narrowest, CHUNK_BYTES / widest);
    while (inner->size % width)
        width /= 2;
    return width;
}

/* The largest power of two up to 4 that divides the number of every chunk's first element. */
static int index_alignment(const sum_axis list[], int count, int width) {
    uint64_t bits = 4 | (uint64_t)width;
    for (int k = 0; k < count - 1; k++)
        bits |= (uint64_t)list[k].index_step;
    return (int)(bits & ~(bits - 1));
}

static void describe(cuda_sum *sum, const problem *p) {
    cuda_spec *spec = &sum->spec;
    for (role r = 0; r < ROLE_COUNT; r++)
        spec->type[r] = DTYPE_NONE;
    for (int t = 0; t < SUM_TENSORS; t++)
        spec->type[roles[t]] = p->dtypes[role_of(sum, t)];
    spec->kernel = CUDA_STAGES_SUM;
    spec->real_double = problem_is_double(p);
    spec->cluster = spec->cooperating_blocks = spec->min_blocks = 1;
    spec->stages.dropout = p->stages.dropout_p > 0;
}

/* Its axes, by the strides of s, the smallest last; returns how many. */
static int sum_axes(const cuda_sum *sum, const problem *p, sum_axis axes[SUM_AXES]) {
    int64_t strides[2][PLANISH_MAX_NDIM];
    own_strides kept = {NULL, NULL}, reduced = {NULL, NULL};
    int count = 0;
    if (sum->is_last) {
        stages_dx_strides(p, strides[0], strides[1]);
        kept.x = strides[0];
        reduced.x = strides[1];
    } else {
        stages_sum_strides(p, strides[0], strides[1]);
        kept.s = strides[0];
        reduced.s = strides[1];
    }
    for (int k = 0; k < p->kept_count; k++) {
        const sum_axis a = axis_of(sum, p, &p->kept[k], k, kept);
        insert(axes, &count, &a);
    }
    for (int k = 0; k < p->reduced_count; k++) {
        const sum_axis a = axis_of(sum, p, &p->reduced[k], k, reduced);
        insert(axes, &count, &a);
    }
    return merge(axes, count);
}

/* How it is cut, once the types are known. */
static void cut(cuda_sum *sum, const problem *p) {
    cuda_spec *spec = &sum->spec;
    sum_constants *c = &spec->sum;
    sum_axis axes[SUM_AXES];
    c->axes = sum_axes(sum, p, axes);
    const sum_axis *inner = &axes[c->axes - 1];
    c->width = width_of(spec, inner);
    c->warps = WARPS;
    c->chunks = least(4, most(1, THREAD_BYTES / (c->width * role_bytes(spec, ROLE_X))));
    c->narrow = elements_of(sum) < (int64_t)1 << 31;
    spec->stages.index_aligned = index_alignment(axes, c->axes, c->width);
    for (int t = 0; t < SUM_TENSORS; t++) {
        uint64_t bits = 0;
        if (is_scale(t) && inner->stride[t] == 0)
            role_words_add(&spec->stages.alike, roles[t]);
        for (int k = 0; k < c->axes - 1; k++)
            bits |= (uint64_t)axes[k].stride[t];
        sum->aligned[t] = (uint8_t)common_alignment(bits);
    }
}

/* The workspace begins with what the two kernels share. */
static void add_room(cuda_plan *plan, dtype type) {
    const size_t bytes = (size_t)elements_of(&plan->sum) * (size_t)dtype_bytes(type);
    plan->sum.place = ROLE_COUNT;
    plan->sum.room = (bytes + ROOM_ALIGNMENT - 1) & ~(size_t)(ROOM_ALIGNMENT - 1);
    plan->workspace_bytes += plan->sum.room;
}

void sum_step_plan(cuda_plan *plan, const problem *p) {
    cuda_sum *sum = &plan->sum;
    const sum_place place = stages_sum_place(p);
    *sum = (cuda_sum){.problem = p};
    describe(sum, p);
    sum->spec.type[ROLE_SUM] = p->stages.sum;
    cut(sum, p);
    sum->place = place == SUM_IN_SUM ? ROLE_SUM : ROLE_Y;
    if (place == SUM_IN_WORKSPACE)
        add_room(plan, p->stages.sum);
}

void sum_step_plan_dsum(cuda_plan *plan, const problem *p, dtype made) {
    cuda_sum *sum = &plan->sum;
    *sum = (cuda_sum){.problem = p, .is_last = true};
    describe(sum, p);
    sum->spec.type[ROLE_X] = made;
    cut(sum, p);
    add_room(plan, made);
}

int sum_step_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const sum_constants *c = &plan->sum.spec.sum;
    return snprintf(text, bytes, "cuda stages sum %s, %d axes, %d chunks of %d; ",
                    plan->sum.is_last ? "behind" : "before", c->axes, c->chunks, c->width);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* What the kernel reads and writes; `shared`: what the norm's kernels do, too. */
static void *data_of(const cuda_sum *sum, void *const buffers[ROLE_COUNT], void *shared, int t) {
    return t == (sum->is_last ? OF_X : OF_SUM) ? shared : buffers[role_of(sum, t)];
}

void *sum_step_share(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                     void *of_norm[ROLE_COUNT]) {
    const cuda_sum *sum = &plan->sum;
    void *const shared = sum->place == ROLE_COUNT ? workspace : buffers[sum->place];
    of_norm[sum->is_last ? ROLE_DX : ROLE_X] = shared;
    return shared;
}

cuda_spec sum_step_spec(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *shared) {
    cuda_spec spec = plan->sum.spec;
    for (role r = 0; r < ROLE_COUNT; r++)
        spec.access[r] = 16;
    for (int t = 0; t < SUM_TENSORS; t++)
        spec.access[roles[t]] = common_alignment(
            (uint64_t)(uintptr_t)data_of(&plan->sum, buffers, shared, t) | plan->sum.aligned[t]);
    return spec;
}

void sum_step_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *shared,
                        cuda_launch *l) {
    const cuda_sum *sum = &plan->sum;
    const sum_constants *c = &sum->spec.sum;
    sum_args *a = &l->args.sum;
    *a = (sum_args){.rng = buffers[ROLE_RNG],
                    .elements = elements_of(sum),
                    .dropped = stages_dropped(sum->problem->stages.dropout_p),
                    .keep_factor = 1 / (1 - sum->problem->stages.dropout_p)};
    for (int t = 0; t < SUM_TENSORS; t++)
        a->data[t] = data_of(sum, buffers, shared, t);
    sum_axes(sum, sum->problem, a->axis);
    l->blocks_x = ceil_div_i64(elements_of(sum), (int64_t)c->width * c->chunks * WARP * c->warps);
    l->blocks_y = 1;
}

static unsigned threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->sum.warps;
}

const cuda_family stages_sum_family = {.threads = threads};
