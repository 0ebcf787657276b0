/*
 * The canonical problem: what is left of an operator and its tensors once everything that makes no
 * difference to the arithmetic is gone. Pure: no allocation, no pointers to data, no device.
 *
 * Axes of size 1 are dropped. What is left falls in two lists, kept axes (a row for each index) and
 * reduced axes (the elements of a row), each in the order of x's axes; neighbours of one list merge
 * where the strides of every tensor allow it. A tensor that does not vary along an axis has stride
 * 0 there. So LayerNorm over dense rows becomes one kept and one reduced axis with reduced
 * strides 1.
 *
 * Only tensors that are there have strides in it, at the end of the struct: what is in use of a
 * problem is problem_bytes long, and problem_copy copies that.
 */
#ifndef PLANISH_PROBLEM_H
#define PLANISH_PROBLEM_H

#include <stdbool.h>

#include "norm_rule.h"
#include "roles.h"
#include "status.h"

typedef struct axis {
    int64_t size;
    int32_t at;     /* of its row in problem.strides */
    bool affine;    /* weight, bias, dweight and dbias vary along it */
    bool column;    /* column_scale and dcolumn_scale do */
    bool modulated; /* scale, shift, dscale and dshift do */
} axis;

/* The bytes that a tensor touches around its first element: from `low` (0 or less) up to `high`. */
typedef struct reach {
    int64_t low, high;
} reach;

/* What stands around the norm, beside the tensors that bring it. What makes no difference is 0. */
typedef struct stages {
    planish_gate gate;
    planish_rounding rounding;
    double dropout_p;
    dtype sum; /* what s is rounded to; NONE: it stays in the type of the arithmetic. Of a backward
                  whose dx goes on (stages_norm_before_dsum): what that is rounded to then */
    int64_t columns, modulations; /* elements of column_scale, of scale and shift */
    int64_t block, blocks;        /* columns under one of y_scales, and such blocks of a row */
    int64_t scale_stride;         /* from block to block: elements */
    planish_scale_format format;
    double scale_least, scale_most;
} stages;

/* Where a row of strides has which: always 0, the step of dropout's index, then a tensor each. */
enum { PLACE_OF_NONE, PLACE_OF_INDEX, FIRST_PLACE, MOST_PLACES = FIRST_PLACE + MOST_PRESENT };
_Static_assert(MOST_PLACES <= 64, "a set of places has 64 bits");

typedef struct problem {
    planish_pass pass;
    planish_kind kind;
    planish_activation activation;
    int weight_offset;
    norm_rule rule;
    double momentum;
    DLDevice device;
    role_set present;              /* the roles that there are */
    role_set outputs;              /* those that the pass writes, where they are there */
    uint8_t dtypes[ROLE_COUNT];    /* each a dtype; DTYPE_NONE: absent */
    uint8_t place[ROLE_COUNT + 1]; /* of its strides in a row; PLACE_OF_NONE: they are 0. The last
                                      is PLACE_OF_INDEX */
    int kept_count, reduced_count;
    axis kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    int64_t rows, cols;       /* products of the sizes of kept and reduced */
    bool first_reduced;       /* x's first axis is, and not all are: a row goes through the batch */
    int64_t affine;           /* elements of weight: the product of the sizes of the affine axes */
    stages stages;            /* read only where problem_has_stages */
    int places, stride_count; /* of a row; in use */
    /* Rows by place: one of zeros, that of an axis of size 1 which stands for one that is not
     * there; one for each axis; then the lowest and the highest byte that each tensor touches. */
    int64_t strides[(3 + PLANISH_MAX_NDIM) * MOST_PLACES];
} problem;

static inline size_t problem_bytes(const problem *p) {
    return offsetof(problem, strides) + (size_t)p->stride_count * sizeof *p->strides;
}

static inline void problem_copy(problem *to, const problem *from) {
    memcpy((void *)to, (const void *)from, problem_bytes(from));
}

/* How far a tensor's elements are apart along one of p's axes, in elements; ROLE_COUNT: see
 * axis_index_step. */
static inline int64_t axis_stride(const problem *p, const axis *a, int r) {
    return p->strides[a->at + p->place[r]];
}
static inline int64_t kept_stride(const problem *p, int k, int r) {
    return axis_stride(p, &p->kept[k], r);
}
static inline int64_t reduced_stride(const problem *p, int k, int r) {
    return axis_stride(p, &p->reduced[k], r);
}

/* From one place to the next: elements of x in row-major order of its own axes, which dropout
 * counts; 0 where nothing is dropped. */
static inline int64_t axis_index_step(const problem *p, const axis *a) {
    return p->strides[a->at + PLACE_OF_INDEX];
}

static inline bool has(const problem *p, role r) {
    return p->dtypes[r] != DTYPE_NONE;
}

static inline bool has_column(const problem *p) {
    return has(p, ROLE_COLUMN_SCALE) || has(p, ROLE_DCOLUMN_SCALE);
}
static inline bool has_modulation(const problem *p) {
    return p->present & (ROLE_BIT(ROLE_SCALE) | ROLE_BIT(ROLE_SHIFT) | ROLE_BIT(ROLE_DSCALE) |
                         ROLE_BIT(ROLE_DSHIFT));
}

/* Whether a ReLU's mask is y's, which the backward is given. */
static inline bool problem_masks_by_y(const problem *p) {
    return p->pass == PLANISH_BACKWARD && has(p, ROLE_Y);
}

/* Whether statistics are given that the pass would make, or are kept by those that came before. */
static inline bool problem_is_given(const problem *p) {
    return (p->pass != PLANISH_FORWARD && has(p, ROLE_RUNNING_MEAN)) || has(p, ROLE_C2);
}

/* Whether it is a half of a backward of rows that are split, with nothing around the norm: c1 and
 * c2 are made of a part, or dx is made by those of the whole. */
static inline bool problem_is_half(const problem *p) {
    const role_set others = STAGE_ROLES & ~(ROLE_BIT(ROLE_C1) | ROLE_BIT(ROLE_C2));
    return has(p, ROLE_C2) && !(p->present & others) && !p->stages.rounding &&
           p->activation == PLANISH_IDENTITY;
}

/* Whether anything stands around the norm, or is given for it, that its kernels alone do not know;
 * else no role of STAGE_ROLES is there. */
static inline bool problem_has_stages(const problem *p) {
    return ((p->present & STAGE_ROLES) || p->stages.rounding || problem_masks_by_y(p)) &&
           !problem_is_half(p);
}

/* The reach of a tensor over all axes but one of the kept ones (-1: over all). */
reach problem_reach(const problem *p, role r, int skip_kept);

/* The same over all, as problem_make found it, where there are elements. */
static inline reach problem_touches(const problem *p, role r) {
    const int64_t *low = &p->strides[p->stride_count - 2 * p->places], *high = low + p->places;
    return (reach){low[p->place[r]], high[p->place[r]]};
}

/* Whether the arithmetic is f64: any tensor is. */
bool problem_is_double(const problem *p);

/*
 * Whether x, dx and dweight all have 16 bits, and the mean has more. A saved mean is off by 2^-25
 * of itself; with 16-bit x that is at most 1.2e-4 standard deviations (more, and x's own rounding
 * is all there is), which 16-bit outputs do not show. One of 16 bits is off by 2^-8 or 2^-11 of
 * itself.
 */
bool problem_hides_rounding(const problem *p);

/* Whether an activation's slope jumps: then 16-bit outputs show on which side z is. These are the
 * ones without an exponential, too. */
static inline bool slope_jumps(planish_activation f) {
    return f == PLANISH_RELU || f == PLANISH_RELU6 || f == PLANISH_HARDSWISH;
}

/*
 * Whether every row is a dense run of `cols` elements in x, y, dy and dx, with weight, bias,
 * dweight and dbias (those there are) dense over the same elements and the same for every row.
 */
bool problem_is_rows(const problem *p);

/*
 * Whether every row is one run of elements with a stride, as is a row's place among the rows of the
 * innermost kept axis, one of the two being 1 in each of x, y, dy and dx, and the latter in at
 * least one; with weight, bias, dweight and dbias the same for every row. LayerNorm over the
 * channels of images stored by channel, or stored so on one side only.
 */
bool problem_is_channels(const problem *p);

/*
 * Whether every row is channels (none: one) of pixels, with weight, bias, dweight and dbias
 * constant over the pixels, of which there are GROUP_SPAN or more: GroupNorm and InstanceNorm of
 * images.
 */
enum { GROUP_SPAN = 4 };
bool problem_is_groups(const problem *p);

/* Whether these rows are dense in x, y, dy and dx: images are stored by channel. */
bool problem_has_dense_groups(const problem *p);

/*
 * Or are channels neighbours there, all of an image's, of which each has its own weight and bias:
 * images stored by pixel. Returns the groups of an image, which are a kept axis where they are more
 * than one; 0: they are not.
 */
int64_t problem_groups_by_pixel(const problem *p);

/*
 * Whether every row is a channel with one weight and bias, whose elements are pieces of neighbours
 * (by channel), or lie beside those of the next channels, a pixel of them after the other (by
 * pixel), alike in x, y, dy, dx, the addend and its gradient: BatchNorm, and other norms whose kept
 * axis is between two reduced ones.
 */
typedef enum batch_layout { BATCH_NEITHER, BATCH_BY_CHANNEL, BATCH_BY_PIXEL } batch_layout;
batch_layout problem_batch_layout(const problem *p);

/* Checks the operator and the tensors (all but their data) and makes the problem. */
planish_status problem_make(problem *p, const planish_norm *op, planish_pass pass,
                            const planish_tensors *tensors, message error);

#endif
