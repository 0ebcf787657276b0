/*
 * The rows. Files named are in bench/results; figures without one are in
 * docs/notebook/101 to 110. A CPU
 * that is not here runs as CPU_GENERIC or CPU_GENERIC_AVX512; to tune one, give it an enumerator in
 * cpu/identify.h and a row here, and change one value at a time by turns with the row it had.
 */
#include "cpu/tuning.h"

#define KB(n) ((n) * (size_t)1024)
#define MB(n) ((n) * (size_t)1048576)
#define ANY_LENGTH {0, INT64_MAX}

/*
 * What is the same on every CPU that was timed:
 * - near_bytes: the second-level caches of the EPYCs have 1 MB.
 * - stream_bytes: 6 to 8 MB streamed is faster by itself (Zen 3), but what reads the output next is
 *   slowed more.
 * - stream_rows_*: where it began to pay on a Xeon that shares 480 MB of cache and on an EPYC that
 *   shares 32 (zen4/past.txt).
 * - prefetch_y_bytes: 1.01 to 1.1 with more on a Xeon, slower with less; 16 bits wait for their
 *   conversions, and gain beyond 24 MB (xeon-avx512-2).
 * - far_bytes: 1.32 at 4096 x 512 on Zen 3, even at 1024 x 2048 and slower below (zen3/far).
 * - fork_group_elements: with two threads of a Xeon torch's group norms of 7680 elements are 1.3
 *   times as fast as planish on one (switch-2).
 * - fork_elements, together_bytes: set by hand; no file has the figures.
 */
#define EVERYWHERE                                                                                 \
    .fork_elements = 32768, .fork_group_elements = 4096, .near_bytes = MB(1),                      \
    .stream_bytes = MB(8), .stream_rows_share = 12, .stream_rows_least = MB(12),                   \
    .stream_rows_most = MB(40), .prefetch_y_bytes = MB(2), .prefetch_y_bytes_16 = MB(24),          \
    .far_bytes = MB(10), .together_bytes = {KB(16), KB(4)}

/* In steps. */
#define NONE_SINGLY .single_elements = {0, 0}, .single_short_bytes = 0, .single_bytes = 0

/* Not streamed in lines or runs: neither was timed but on the CPUs that have it. */
#define STREAMED_IN_PIECES                                                                         \
    .stream_lines = false, .stream_run_bytes = {SIZE_MAX, SIZE_MAX}, .prefetch_group_dx = false,   \
    .more_short_rows = false, .large_short_steps = false

/* Nothing is left to the CPU's own prefetcher: as on Zen 3, whose prefetches all gain. */
#define PREFETCHED                                                                                 \
    .fetched_rows = {0}, .fetched_bytes = 0, .fetches_groups = false, .prefetch_sums = true,       \
    .prefetch_steps = {{ANY_LENGTH}, {ANY_LENGTH}}, .prefetch_elements = 0,                        \
    .prefetch_most_rows = 0, .alone_row_bytes = 0, .joined_bytes = KB(1), .by_pixel = false,       \
    NONE_SINGLY

/* Left to it: the Xeon of xeon-avx512-5 (by-turns.txt), rows of 768 to 2048 columns up to 6 MB 1.01
 * to 1.11; groups stored by pixel 1.05 to 1.62, strips of whole pixels up to 8 KB at once
 * (xeon-avx512-3), read pixel by pixel nearly twice as fast from beyond the caches. The backward of
 * f32 rows is not: with prefetches 6 of 103 cells are slower than 1.1 times torch's time, without
 * them 17 (switch-2). */
#define FETCHED_BY_INTEL                                                                           \
    .fetched_rows = {2048, 4095}, .fetched_bytes = MB(6), .fetches_groups = true,                  \
    .prefetch_sums = false, .prefetch_steps = {{ANY_LENGTH}, {ANY_LENGTH}},                        \
    .prefetch_elements = 0, .prefetch_most_rows = 0, .joined_bytes = KB(8), .by_pixel = true,      \
    NONE_SINGLY

/* Timed with AVX-512 on a Xeon and left off elsewhere: groups of rows in turn up to where two
 * groups and a y are in 48 KB of first-level cache, 1.02 to 1.1; y prefetched while squares are
 * summed, 1.01 to 1.1 up to 768 columns of f32; backward in steps of rows that are no whole
 * lines, 1.1 at 24 columns and 1.2 to 1.3 at 200. */
#define WITH_AVX512 .turn_row_bytes = KB(4), .prefetch_y_row_bytes = KB(3), .steps_of_parts = true
/* With AVX2 rows go in turn up to 2 KB; the rest was not timed. */
#define WITHOUT_AVX512 .turn_row_bytes = KB(2), .prefetch_y_row_bytes = 0, .steps_of_parts = false

static const cpu_tuning rows[CPU_COUNT] = {
    /* Not timed: as Zen 3. */
    [CPU_GENERIC] = {.name = "generic", EVERYWHERE, STREAMED_IN_PIECES, PREFETCHED, WITHOUT_AVX512},

    /* Not timed: as Zen 3, but for what AVX-512 gains on each CPU that has it. */
    [CPU_GENERIC_AVX512] =
        {.name = "generic_avx512", EVERYWHERE, STREAMED_IN_PIECES, PREFETCHED, WITH_AVX512},

    /* Not timed: as a Xeon with AVX-512 as to prefetches, as Zen 3 as to the rest. */
    [CPU_INTEL] = {.name = "intel",
                   EVERYWHERE,
                   STREAMED_IN_PIECES,
                   FETCHED_BY_INTEL,
                   WITHOUT_AVX512,
                   .alone_row_bytes = 0},

    /* Xeons with 300 and 480 MB of third-level cache (xeon-avx512-2 to xeon-avx512-6). */
    [CPU_INTEL_AVX512] = {.name = "intel_avx512",
                          EVERYWHERE,
                          STREAMED_IN_PIECES,
                          FETCHED_BY_INTEL,
                          WITH_AVX512,
                          /* By wide vectors: 1.03 to 1.07 at 768 columns (xeon-avx512-5,
                           * by-turns.txt), 0.99 at 512. */
                          .alone_row_bytes = KB(2)},

    /* An EPYC (zen3). */
    [CPU_ZEN3] = {.name = "zen3", EVERYWHERE, STREAMED_IN_PIECES, PREFETCHED, WITHOUT_AVX512},

    /* An EPYC with 32 KB, 1 MB and 32 MB of caches (zen4, zen4-2, zen4-3). */
    [CPU_ZEN4] = {.name = "zen4",
                  EVERYWHERE,
                  WITH_AVX512,
                  /* Short rows 1.03 to 1.30 forward, backward 1.01 to 1.38 (zen4-2/lines.txt); runs
                   * were not timed. */
                  .stream_lines = true,
                  .stream_run_bytes = {SIZE_MAX, SIZE_MAX},
                  /* 12, 24, 40 columns from memory 1.29 to 1.38, 64 columns 1.01 to 1.19
                   * (zen4-3/short-by-turns.txt). */
                  .more_short_rows = true,
                  .large_short_steps = false,
                  .fetched_rows = {0},
                  .fetched_bytes = 0,
                  /* f32 backward of images stored by pixel 1.02 to 1.41, by channel 0.99 to 1.25
                   * (zen4-2/groups-asks.txt); strips as on Intel's. */
                  .fetches_groups = true,
                  .joined_bytes = KB(8),
                  .by_pixel = true,
                  /* dx of short channels: 1.1 to 1.5 (zen4-3/groups-by-turns.txt). */
                  .prefetch_group_dx = true,
                  .prefetch_sums = true,
                  /* Only forward of rows of four lines gains (zen4/asks.txt, zen4-3); one step
                   * ahead, as other distances were not timed. */
                  .prefetch_steps = {{{256, 256}}, {{0}}},
                  .prefetch_elements = 0,
                  .prefetch_most_rows = 0,
                  .alone_row_bytes = 0,
                  /* 1.1 to 1.5 from beyond the near cache, streamed 1.1 to 1.4; below 7 MB rows of
                   * up to 128 columns 0.9 to 1 (docs/notebook/110). */
                  .single_elements = {512, 640},
                  .single_short_bytes = 512,
                  .single_bytes = MB(7)},

    /* An EPYC of family 1Ah with 48 KB, 1 MB and 32 MB of caches (zen5, zen5-2). */
    [CPU_ZEN5] = {.name = "zen5",
                  EVERYWHERE,
                  WITH_AVX512,
                  .stream_lines = true,
                  /* 128 bytes of two rows: 1.2 to 1.35, but slower with less than twice the shared
                   * cache forward (zen5-2/runs.txt). */
                  .stream_run_bytes = {MB(64), MB(32)},
                  .more_short_rows = true,
                  /* 64 columns with rows prefetched so far ahead (zen5-2/asks.txt). */
                  .large_short_steps = true,
                  .fetched_rows = {0},
                  .fetched_bytes = 0,
                  .fetches_groups = false, /* docs/notebook/103 */
                  .joined_bytes = KB(1),
                  .by_pixel = false,
                  .prefetch_group_dx = true,
                  .prefetch_sums = true,
                  /* Forward up to 2.5 times as fast, every length; backward but where rows are
                   * fewer lines (zen5/asks.txt). */
                  .prefetch_steps = {{ANY_LENGTH}, {{256, 256}, {384, INT64_MAX}}},
                  /* 256 columns backward 1.24 (zen5-2/asks.txt). */
                  .prefetch_elements = 2048,
                  .prefetch_most_rows = 32,
                  .alone_row_bytes = 0,
                  NONE_SINGLY},

    /* Not timed: as Zen 3. */
    [CPU_NEOVERSE] =
        {.name = "neoverse", EVERYWHERE, STREAMED_IN_PIECES, PREFETCHED, WITHOUT_AVX512},
};

const cpu_tuning *cpu_tuning_of(cpu_microarchitecture m) {
    return &rows[m];
}
