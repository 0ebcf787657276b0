#include "cuda/families.h"

#include "cuda/around/around.h"
#include "cuda/around/around_backward.h"
#include "cuda/around/around_sum.h"
#include "cuda/around/general_backward.h"
#include "cuda/around/modulated.h"
#include "cuda/channels/channels.h"
#include "cuda/common/finish.h"
#include "cuda/general/general.h"
#include "cuda/groups/groups.h"
#include "cuda/rows/rows.h"
#include "cuda/rows/rows_pair.h"

/* Made from kernels/ by embed.py. */
extern const char cuda_text_forward[], cuda_text_backward[], cuda_text_backward_long[],
    cuda_text_finish[], cuda_text_channels[], cuda_text_groups[], cuda_text_strips[],
    cuda_text_general[], cuda_text_around_forward[], cuda_text_around_general[],
    cuda_text_around_general_backward[], cuda_text_around_backward[], cuda_text_around_samples[],
    cuda_text_modulated_forward[], cuda_text_modulated_backward[], cuda_text_around_sum[],
    cuda_text_forward_pair[], cuda_text_backward_pair[], cuda_text_finish_pair[];

const cuda_family *const cuda_fast_families[] = {&rows_family, &channels_family, &row_levels_family,
                                                 &groups_family, NULL};

static const cuda_kernel_row kernels[CUDA_KERNEL_COUNT] = {
    [CUDA_FORWARD] = {&rows_family, "planish_forward", "forward", cuda_text_forward,
                      rows_forward_list},
    [CUDA_BACKWARD] = {&rows_family, "planish_backward", "backward", cuda_text_backward,
                       rows_backward_list},
    [CUDA_SUMS] = {&rows_family, "planish_sums", "backward_long", cuda_text_backward_long,
                   rows_long_list},
    [CUDA_APPLY] = {&rows_family, "planish_apply", "backward_long", cuda_text_backward_long,
                    rows_long_list},
    [CUDA_FINISH] = {&finish_family, "planish_finish", "finish", cuda_text_finish, finish_list},
    [CUDA_FORWARD_PAIR] = {&rows_pair_family, "planish_forward_pair", "forward_pair",
                           cuda_text_forward_pair, rows_forward_list},
    [CUDA_BACKWARD_PAIR] = {&rows_pair_family, "planish_backward_pair", "backward_pair",
                            cuda_text_backward_pair, rows_backward_list},
    [CUDA_FINISH_PAIR] = {&finish_family, "planish_finish_pair", "finish_pair",
                          cuda_text_finish_pair, finish_list},
    [CUDA_CHANNELS] = {&channels_family, "planish_channels", "channels", cuda_text_channels,
                       channels_list},
    [CUDA_GROUPS] = {&groups_family, "planish_groups", "groups", cuda_text_groups, groups_list},
    [CUDA_STRIPS] = {&groups_family, "planish_strips", "strips", cuda_text_strips, strips_list},
    [CUDA_GENERAL_ROWS] = {&general_family, "planish_general_rows", "general", cuda_text_general,
                           general_list},
    [CUDA_GENERAL_COLUMNS] = {&general_family, "planish_general_columns", "general",
                              cuda_text_general, general_list},
    [CUDA_GENERAL_FINISH] = {&general_family, "planish_general_finish", "general",
                             cuda_text_general, general_list},
    [CUDA_AROUND_FORWARD] = {&around_family, "planish_around_forward", "around_forward",
                             cuda_text_around_forward, around_forward_list},
    [CUDA_AROUND_CLEAR] = {&around_family, "planish_around_clear", "around_forward",
                           cuda_text_around_forward, around_forward_list},
    [CUDA_AROUND_GENERAL] = {&around_general_family, "planish_around_general", "around_general",
                             cuda_text_around_general, around_general_list},
    [CUDA_AROUND_GENERAL_CLEAR] = {&around_general_family, "planish_around_general_clear",
                                   "around_general", cuda_text_around_general, around_general_list},
    [CUDA_AROUND_SUM] = {&around_sum_family, "planish_around_sum", "around_sum",
                         cuda_text_around_sum, around_sum_list},
    [CUDA_AROUND_BACKWARD] = {&around_backward_family, "planish_around_backward", "around_backward",
                              cuda_text_around_backward, around_backward_rows_list},
    [CUDA_AROUND_SAMPLES] = {&around_backward_family, "planish_around_samples", "around_samples",
                             cuda_text_around_samples, around_samples_list},
    [CUDA_MODULATED_FORWARD] = {&modulated_family, "planish_modulated_forward", "modulated_forward",
                                cuda_text_modulated_forward, rows_forward_list},
    [CUDA_MODULATED_BACKWARD] = {&modulated_family, "planish_modulated_backward",
                                 "modulated_backward", cuda_text_modulated_backward,
                                 rows_backward_list},
    [CUDA_AROUND_BACK_ROWS] = {&around_general_backward_family, "planish_around_back_rows",
                               "around_general_backward", cuda_text_around_general_backward,
                               around_backward_list},
    [CUDA_AROUND_BACK_COLUMNS] = {&around_general_backward_family, "planish_around_back_columns",
                                  "around_general_backward", cuda_text_around_general_backward,
                                  around_backward_list},
    [CUDA_AROUND_BACK_ELEMENTS] = {&around_general_backward_family, "planish_around_back_elements",
                                   "around_general_backward", cuda_text_around_general_backward,
                                   around_backward_list},
};

const cuda_kernel_row *cuda_kernel_of(const cuda_spec *spec) {
    return &kernels[spec->kernel];
}

const cuda_family *cuda_family_of(const cuda_plan *plan) {
    return cuda_kernel_of(&plan->main)->family;
}
