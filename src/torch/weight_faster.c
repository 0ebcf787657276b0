/*
 * Where torch's own weight norm on the CPU is faster; see weight_faster.h. Each row was measured by
 * `planish bench switch --only weight` (docs/notebook/050-weight-norm.md).
 */
#include "weight_faster.h"

typedef enum pass { FORWARD = 1, BACKWARD = 2, BOTH = 3 } pass;
typedef enum place { FIRST, LAST } place; /* of the axis along which the slices are */
typedef enum width { HALVES = 1, WIDE = 2, ANY = 3 } width;

/* All bounds are inclusive; 0: none. */
typedef struct rule {
    width dtypes;
    place axis;
    pass passes;
    int64_t least_run, most_run; /* elements behind an index of the first axis; of LAST: slices */
    int64_t least_outer;         /* at least so many times as many runs as a run has elements */
    int64_t most_elements, least_bytes, most_bytes; /* of v */
} rule;

/* From here on the pages of a new result count for more than the kernel
 * (docs/guide/pytorch-details.md, "Large results"). */
enum { MB = 1 << 20, LARGE = 32 * MB };

static const rule rules[] = {
    {ANY, FIRST, BOTH, 0, 0, 0, 511, 0, 0},
    /* Short slices, of which each costs torch less to begin with. */
    {WIDE, FIRST, FORWARD, 0, 255, 0, 0, 0, 0},
    {HALVES, FIRST, BOTH, 32, 127, 0, 0, 0, 0},
    {WIDE, FIRST, FORWARD, 1024, 4096, 0, 0, 2 * MB, LARGE - 1},
    {WIDE, FIRST, BACKWARD, 0, 2048, 0, 0, 0, LARGE - 1},
    {HALVES, FIRST, BACKWARD, 0, 1024, 0, 0, 4 * MB, 0},
    /* Many slices side by side. */
    {WIDE, LAST, BOTH, 64, 0, 0, 0, 0, LARGE - 1},
    {WIDE, LAST, FORWARD, 256, 0, 16, 0, 0, 0},
    {HALVES, LAST, BOTH, 256, 0, 4, 0, 0, 0},
    {HALVES, LAST, BACKWARD, 64, 255, 0, 0, 0, 0},
    {HALVES, LAST, FORWARD, 4, 4, 0, 0, MB, 0},
};

/*
 * A slice along the last axis is one thread's, and those of so many side by side are. torch shares
 * the indices of the other axes out among its threads, of which this many are faster: planish's one
 * takes a quarter to a half of the time of torch's one, half to nearly all backward and of 16 bits.
 */
static int64_t team_that_is_faster(const weights *w, width dtypes, pass passes) {
    enum { SIDE_BY_SIDE = 128 };
    const int64_t slices = w->v.shape[w->axis];
    if (slices == 1) /* a hundredth */
        return 64;
    const int64_t busy = (slices + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE;
    return (dtypes == WIDE && passes == FORWARD ? 4 : 2) * busy;
}

static bool is_between(int64_t value, int64_t least, int64_t most) {
    return value >= least && (!most || value <= most);
}

bool weight_torch_is_faster(const weights *w, bool backward) {
    const pass passes = backward ? BACKWARD : FORWARD;
    const width dtypes = view_is_half(&w->v) ? HALVES : WIDE;
    const place axis = w->axis ? LAST : FIRST;
    const int64_t elements = view_elements(&w->v), slices = w->v.shape[w->axis];
    if (elements == 0) /* torch's is none */
        return false;
    const int64_t run = axis == LAST ? slices : elements / slices;
    const int64_t bytes = elements * (w->v.dtype.bits / 8);
    if (axis == LAST && torch_threads() >= team_that_is_faster(w, dtypes, passes))
        return true;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const rule *r = &rules[i];
        if (r->dtypes & dtypes && r->axis == axis && r->passes & passes &&
            is_between(run, r->least_run, r->most_run) && elements / run >= r->least_outer * run &&
            is_between(elements, 0, r->most_elements) &&
            is_between(bytes, r->least_bytes, r->most_bytes))
            return true;
    }
    return false;
}
