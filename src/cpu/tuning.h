/*
 * What was measured of each CPU, as data: a row of numbers for each microarchitecture, with why
 * each is what it is beside it (tuning.c). Nothing else under src/cpu asks which CPU it runs on;
 * src/torch/group_faster.c does, which has rows of its own of where torch's group norm is faster.
 * No result depends on a row, only speed: what sums are cut by is in cpu/plan.c.
 *
 * A row is of a CPU and not of an instruction set: PLANISH_CPU_TIER, which caps the latter, leaves
 * it. Kernels whose vectors are shorter than a line have no text for some of what a row may want,
 * and then do without (cpu/common/unit.h, LINE_VECTORS).
 */
#ifndef PLANISH_CPU_TUNING_H
#define PLANISH_CPU_TUNING_H

#include <stdint.h>

#include "cpu/identify.h"

/* Bytes of a row, both ends inclusive; {0}: no row. */
typedef struct byte_range {
    int64_t least, most;
} byte_range;

static inline bool range_has(byte_range r, int64_t bytes) {
    return bytes >= r.least && bytes <= r.most;
}

/* Where there are two of something: forward, backward. "Elements" are those of x, y, dy and dx. */
typedef struct cpu_tuning {
    const char *name;            /* as PLANISH_CPU has it */
    int64_t fork_elements;       /* less work than this is done by the calling thread, */
    int64_t fork_group_elements; /* and less of groups */

    /* Where data lies. */
    size_t near_bytes;   /* more elements than this are not all in a core's own cache */
    size_t stream_bytes; /* outputs larger than this are written by non-temporal stores, ... */
    /* ... but y of rows where all elements have more than one in stream_rows_share of a shared
     * cache, within these bounds. */
    int stream_rows_share;
    size_t stream_rows_least, stream_rows_most;

    /* How non-temporal stores go: a piece of some rows at a time, or */
    bool stream_lines;          /* short rows each line as it is made; */
    size_t stream_run_bytes[2]; /* where elements are more than this, RUN_BYTES of two rows */

    /* What the CPU's own prefetcher brings in time, so that no prefetch is wanted: */
    byte_range fetched_rows; /* f32 rows, forward, of no more elements than fetched_bytes; */
    size_t fetched_bytes;
    bool fetches_groups; /* what groups read, 16 bits stored by channel excepted */

    /* Prefetches of rows beyond the near cache. */
    bool prefetch_sums;              /* while rows are summed too, where y is streamed */
    byte_range prefetch_steps[2][2]; /* streamed f32 rows that go in steps: of these lengths */
    int prefetch_elements;           /* so far ahead, but no more than prefetch_most_rows; ... */
    int prefetch_most_rows;          /* ... 0: a step ahead */
    size_t prefetch_y_bytes;         /* y, where elements are more than this, or of 16 bits ... */
    size_t prefetch_y_bytes_16;      /* ... than this, ... */
    int64_t prefetch_y_row_bytes;    /* ... of rows no longer than this */
    bool prefetch_group_dx;          /* dx of groups, while its row is summed */

    /* Which rows go together. */
    int64_t turn_row_bytes;  /* the longest rows whose next ones' moments come before their y */
    int64_t alone_row_bytes; /* f32 rows of this and more go one at a time, forward; 0: none */
    size_t far_bytes;        /* of more elements than this y is made row by row */
    /* f32 rows of a few hundred bytes, backward, one by one in place of steps: asked for so
     * many elements ahead where they lie beyond the near cache, and where dx is streamed; 0: in
     * steps. */
    int single_elements[2];
    int64_t single_short_bytes; /* rows not streamed and no longer than this ... */
    size_t single_bytes;        /* ... only where elements are more than this */
    bool steps_of_parts;    /* backward in steps of streamed rows that are no whole lines, too */
    bool large_short_steps; /* forward of the longest short rows as of the others where streamed */
    bool more_short_rows;   /* f32 rows of up to twice the canonical lanes are short, backward */

    /* Groups. */
    int64_t together_bytes[2]; /* the longest rows of them that are done together */
    int64_t joined_bytes;      /* of a pixel, of strips that a thread takes as one */
    bool by_pixel;             /* backward reads pixels one behind the other, not four at once */
} cpu_tuning;

const cpu_tuning *cpu_tuning_of(cpu_microarchitecture m);

#endif
