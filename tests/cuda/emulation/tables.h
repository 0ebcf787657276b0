/*
 * What tables of emulated cases are made of, and the tables: each function makes the cases of one,
 * in the same order every time, for a case's numbers follow from its place.
 */
#ifndef EMULATION_TABLES_H
#define EMULATION_TABLES_H

#include "emulate_case.h"
#include "emulated.h"

static const planish_pass both[] = {PLANISH_FORWARD, PLANISH_BACKWARD};
static const element types[] = {F16, BF16, F32, F64};

/* Of one dtype; the statistics of f32, or of f64 if that is f64. */
norm_case rows_of(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols, element type);

/* Over the channels of (images, channels, pixels). */
norm_case channels_of(planish_pass pass, planish_kind kind, int64_t images, int64_t channels,
                      int64_t pixels, element type);

/* (images, groups, channels, pixels), or with the channels last (images, pixels, groups, channels).
 */
norm_case groups_of(planish_pass pass, planish_kind kind, const int64_t *n, bool last,
                    element type);

/* Groups of this shape on a device that has room for strips or rows over blocks anywhere on it
 * alone: of so many multiprocessors and bytes of shared memory, without clusters. */
typedef struct large_groups {
    int64_t shape[4];
    int multiprocessors, shared;
} large_groups;
void set_device_of(const large_groups *work);

/* Each activation in its turn. */
planish_activation activation_in_turn(int i);

/* By i in turns: a weight offset, parameters of f32, an activation behind the groups. */
void vary_groups(norm_case *c, int i);

/* Rows beyond float's range beside others, so that a strip is summed again: of four kinds, by i. */
norm_case beyond_range_of(const int64_t *shape, int i);

/* table_rows.c */
void table_lengths(void);
void table_early(void);
void table_long_rows(void);
void table_rows_cooperative(void);
void table_rows_shared(void);
void table_outliers(void);
void table_row_counts(void);
void table_centred(void);
void table_tiled(void);
void table_runs(void);
void table_outputs_and_dtypes(void);
void table_layouts(void);
void table_all_numbers(void);

/* table_levels.c */
void table_levels(void);

/* table_general.c */
void table_other_passes(void);
void table_any_layout(void);
void table_any_axes(void);

/* table_channels.c */
void table_channels(void);
void table_channels_in_clusters(void);
void table_channels_shifted(void);
void table_channels_to_last(void);
void table_channels_otherwise(void);
void table_channels_spanning(void);
void table_lines_and_halves(void);

/* table_groups.c */
void table_groups(void);
void table_groups_otherwise(void);
void table_group_tiles(void);
void table_groups_anywhere(void);

/* table_batch.c */
void table_batch(void);
void table_batch_otherwise(void);
void table_batch_slabs(void);
void table_batch_parts(void);

/* table_strips.c */
void table_strips(void);
void table_strips_over_few(void);
void table_strips_without_clusters(void);
void table_strips_as_planned(void);
void table_strips_outliers(void);
void table_strips_large(void);
void table_strips_ahead(void);

/* table_behind.c */
void table_activations(void);
void table_behind_rows(void);
void table_behind_channels(void);
void table_behind_relu(void);

/* table_given.c */
void table_given_rows(void);
void table_given_images(void);
void table_given_otherwise(void);

/* table_parts.c */
void table_parts(void);
void table_parts_otherwise(void);

/* table_stages.c */
void table_stages_forward(void);
void table_stages_quantised(void);

/* table_stages_backward.c */
void table_stages_backward(void);
void table_pairs(void);

/* table_l2.c */
void table_l2_rows(void);
void table_l2_images(void);
void table_l2_stages(void);

#endif
