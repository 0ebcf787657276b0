/*
 * What the number of rows changes in a specialisation, and the forward's is the only one, changes
 * no bit of a result: so both run by that of the larger problem. How many blocks share rows follows
 * from each problem alone, for a backward's sums depend on it.
 */
#include "cuda/rows/rows_pair.h"

#include <string.h>

#include "cuda/arguments.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"

/* Rows of each, at most: a launch has fewer than 2^31 blocks. */
enum { MOST_ROWS = (1 << 30) - 1 };

static int64_t all_rows(const cuda_plan *plan) {
    return plan->rows * rows_slices(plan);
}

/*
 * Whether a plan is one of short rows, which lanes of a warp share evenly, in one read by blocks
 * that do not wait for each other. Tiles and rows whose lanes have unlike numbers of chunks have no
 * registers to spare: for two sets they would spill. Longer rows have blocks enough.
 */
static bool may_pair(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const rows_constants *c = &spec->rows;
    return (spec->kernel == CUDA_FORWARD || spec->kernel == CUDA_BACKWARD) && spec->cluster == 1 &&
           plan->cooperative.kernel < 0 && !rows_are_parts(spec) && !plan->sum.problem &&
           !c->groups && c->variant == ROWS_PLAIN && c->threads_per_row <= WARP &&
           c->threads_per_row * c->chunks_per_thread * c->width == c->cols &&
           all_rows(plan) <= MOST_ROWS;
}

/* Every spec begins as zeros and has 32-bit numbers alone, so that equal ones have equal bytes. */
static bool same_spec(const cuda_spec *a, const cuda_spec *b) {
    return !memcmp(a, b, sizeof *a); /* NOLINT(bugprone-suspicious-memory-comparison) */
}

/* Whether the specialisations for two runs' buffers differ in nothing but what the number of rows
 * has changed. */
static bool fit_alike(const cuda_spec *a, const cuda_spec *b) {
    return !memcmp(a->access, b->access, sizeof a->access) && a->rows.dense == b->rows.dense &&
           (a->kernel == CUDA_FORWARD || same_spec(a, b));
}

int rows_pair_specs(const cuda_pair *pair, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_plan *const *plan = pair->plan;
    cuda_launch second[CUDA_MOST_LAUNCHES];
    if (!may_pair(plan[0]) || !may_pair(plan[1]) || !same_spec(&plan[0]->main, &plan[1]->main))
        return 0;
    const int count = cuda_launch_specs(plan[0], pair->buffers[0], launches);
    if (!count || cuda_launch_specs(plan[1], pair->buffers[1], second) != count ||
        !fit_alike(&launches[0].spec, &second[0].spec))
        return 0;
    if (all_rows(plan[1]) > all_rows(plan[0]))
        launches[0].spec = second[0].spec;
    launches[0].spec.kernel =
        launches[0].spec.kernel == CUDA_FORWARD ? CUDA_FORWARD_PAIR : CUDA_BACKWARD_PAIR;
    if (count == 1)
        return 1;
    if (same_spec(&launches[1].spec, &second[1].spec)) {
        launches[1].spec.kernel = CUDA_FINISH_PAIR;
        return 2;
    }
    launches[2].spec = second[1].spec;
    return 3;
}

/* Puts what a run of one of the two launches beside what the other does. */
static void put(const cuda_plan *plan, const cuda_launch *own, int which,
                cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    cuda_launch *main = &launches[0], *finish = &launches[1];
    const uint32_t first_block = which ? (uint32_t)main->blocks_x : 0;
    const pair_place place = {first_block, (uint32_t)rows_slices(plan)};
    main->blocks_x = first_block + own[0].blocks_x * own[0].blocks_y;
    main->blocks_y = 1;
    if (main->spec.kernel == CUDA_FORWARD_PAIR) {
        main->args.forward_pair.of[which] = own[0].args.forward;
        main->args.forward_pair.of[which].place = place;
    } else {
        main->args.backward_pair.of[which] = own[0].args.backward;
        main->args.backward_pair.of[which].place = place;
    }
    if (plan->finish.kernel < 0)
        return;
    if (finish->spec.kernel == CUDA_FINISH_PAIR) {
        if (which)
            finish->args.finish_pair.first_block = (uint32_t)finish->blocks_x;
        finish->args.finish_pair.of[which] = own[1].args.finish;
        finish->blocks_x = own[1].blocks_x + (which ? finish->blocks_x : 0);
        finish->blocks_y = own[1].blocks_y;
    } else {
        const cuda_spec spec = finish[which].spec;
        finish[which] = own[1];
        finish[which].spec = spec;
    }
}

void rows_pair_arguments(const cuda_pair *pair, void *const workspace[2],
                         cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    for (int which = 0; which < 2; which++) {
        const cuda_plan *plan = pair->plan[which];
        cuda_launch own[CUDA_MOST_LAUNCHES];
        own[0].spec = launches[0].spec;
        own[1].spec = plan->finish;
        /* Nothing here is launched in clusters: how many of them are resident does not count. */
        cuda_launch_arguments(plan, pair->buffers[which], workspace[which], 1, own);
        put(plan, own, which, launches);
    }
}

const cuda_family rows_pair_family = {.threads = rows_threads, .shared_bytes = rows_shared_bytes};
