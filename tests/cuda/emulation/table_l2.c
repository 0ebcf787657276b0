/* Tables of the emulated cases: L2 norms, of every family of kernels. They are the RMS norms of
 * other tables; what is theirs alone is kernels/common/rule.cu. */
#include "tables.h"

static void as_l2(void (*const tables[])(void), int count) {
    cases_are_l2 = true;
    for (int i = 0; i < count; i++)
        tables[i]();
    cases_are_l2 = false;
}

void table_l2_rows(void) {
    static void (*const tables[])(void) = {
        table_lengths,     table_early,           table_long_rows,    table_levels,
        table_centred,     table_tiled,           table_runs,         table_all_numbers,
        table_parts,       table_row_counts,      table_other_passes, table_any_axes,
        table_behind_rows, table_rows_cooperative};
    as_l2(tables, sizeof tables / sizeof *tables);
}

void table_l2_images(void) {
    static void (*const tables[])(void) = {table_channels,
                                           table_channels_in_clusters,
                                           table_channels_otherwise,
                                           table_behind_channels,
                                           table_groups,
                                           table_groups_otherwise,
                                           table_group_tiles,
                                           table_strips,
                                           table_strips_over_few,
                                           table_strips_as_planned,
                                           table_batch,
                                           table_batch_otherwise,
                                           table_batch_parts};
    as_l2(tables, sizeof tables / sizeof *tables);
}

void table_l2_stages(void) {
    static void (*const tables[])(void) = {table_stages_forward, table_stages_quantised,
                                           table_stages_backward, table_pairs};
    as_l2(tables, sizeof tables / sizeof *tables);
}
