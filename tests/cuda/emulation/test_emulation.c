/*
 * The GPU kernels without a GPU: their own text, compiled for the host, run over the small GPU of
 * device.h and held against the reference with the bounds of docs/guide/reproducibility.md.
 *
 *     test_emulation --write=FOLDER    writes the specialisations that the cases need, as C++
 *     test_emulation --units=FOLDER    runs the cases with what was compiled of them
 *     ... [--share=K] [--table=NAME] [--parts=N --part=I]
 *
 * Every case runs with its threads and blocks in order and in a random order, which must give the
 * same bits, and so must a slice of its rows (emulate_case.c). run.py does all of it, in N
 * processes that have every Nth case each, and looks that no kind of kernel was launched by none of
 * them. The cases are in table_*.c; here is their order, from which each gets its numbers: a new
 * table is the last.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../c/check.h"
#include "tables.h"

static const struct {
    const char *name;
    void (*make)(void);
} tables[] = {
    {"lengths", table_lengths},
    {"early", table_early},
    {"long", table_long_rows},
    {"rows cooperative", table_rows_cooperative},
    {"rows shared", table_rows_shared},
    {"outliers", table_outliers},
    {"rows", table_row_counts},
    {"levels", table_levels},
    {"centred", table_centred},
    {"tiled", table_tiled},
    {"runs", table_runs},
    {"outputs", table_outputs_and_dtypes},
    {"layouts", table_layouts},
    {"numbers", table_all_numbers},
    {"passes", table_other_passes},
    {"any layout", table_any_layout},
    {"any axes", table_any_axes},
    {"channels", table_channels},
    {"channels in clusters", table_channels_in_clusters},
    {"channels shifted", table_channels_shifted},
    {"channels to last", table_channels_to_last},
    {"channels otherwise", table_channels_otherwise},
    {"groups", table_groups},
    {"groups otherwise", table_groups_otherwise},
    {"group tiles", table_group_tiles},
    {"strips", table_strips},
    {"strips over few", table_strips_over_few},
    {"strips cooperative", table_strips_without_clusters},
    {"strips as planned", table_strips_as_planned},
    {"activations", table_activations},
    {"behind rows", table_behind_rows},
    {"behind channels", table_behind_channels},
    {"behind relu", table_behind_relu},
    {"channels spanning", table_channels_spanning},
    {"strips outliers", table_strips_outliers},
    {"lines and halves", table_lines_and_halves},
    {"given rows", table_given_rows},
    {"given images", table_given_images},
    {"given otherwise", table_given_otherwise},
    {"stages forward", table_stages_forward},
    {"stages quantised", table_stages_quantised},
    {"stages backward", table_stages_backward},
    {"pairs", table_pairs},
    {"batch", table_batch},
    {"batch otherwise", table_batch_otherwise},
    {"batch slabs", table_batch_slabs},
    {"batch parts", table_batch_parts},
    {"parts", table_parts},
    {"parts otherwise", table_parts_otherwise},
    {"strips large", table_strips_large},
    {"strips ahead", table_strips_ahead},
    {"l2 rows", table_l2_rows},
    {"l2 images", table_l2_images},
    {"l2 stages", table_l2_stages},
    {"groups anywhere", table_groups_anywhere},
};

int main(int argc, char **argv) {
    plain_f64_sums = true;
    const char *only = argument(argc, argv, "table", "");
    write_folder = argument(argc, argv, "write", NULL);
    unit_folder = argument(argc, argv, "units", NULL);
    const case_choice choice = {.share = atoll(argument(argc, argv, "share", "1")),
                                .parts = atoll(argument(argc, argv, "parts", "1")),
                                .part = atoll(argument(argc, argv, "part", "0")),
                                .other_numbers = atoll(argument(argc, argv, "numbers", "0"))};
    choose_cases(choice);
    if (!write_folder == !unit_folder) {
        fprintf(stderr, "wanted --write=FOLDER or --units=FOLDER\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!only[0] || !strcmp(only, tables[i].name))
            tables[i].make();
    if (write_folder) {
        printf("%d specialisations written\n", units_written);
        return 0;
    }
    if (!only[0])
        name_missing_variants(choice.share == 1, all_stages_run());
    report_accuracy();
    printf("%d launches\n", launches_run);
    return test_finish("test_emulation");
}
