#include "cuda/families.h"

#include "cuda/batch/batch.h"
#include "cuda/channels/channels.h"
#include "cuda/common/finish.h"
#include "cuda/common/merge.h"
#include "cuda/general/general.h"
#include "cuda/groups/groups.h"
#include "cuda/rows/rows.h"
#include "cuda/rows/rows_pair.h"
#include "cuda/stages/modulated.h"
#include "cuda/stages/stages_backward.h"
#include "cuda/stages/stages_forward.h"
#include "cuda/stages/sum_step.h"

/* Made from kernels/ by embed.py. */
extern const char cuda_text_forward[], cuda_text_backward[], cuda_text_backward_long[],
    cuda_text_finish[], cuda_text_channels[], cuda_text_groups[], cuda_text_strips[],
    cuda_text_batch[], cuda_text_general_forward[], cuda_text_general_backward[],
    cuda_text_general_finish[], cuda_text_stages_forward[], cuda_text_stages_backward[],
    cuda_text_stages_samples[], cuda_text_modulated_forward[], cuda_text_modulated_backward[],
    cuda_text_stages_sum[], cuda_text_forward_pair[], cuda_text_backward_pair[],
    cuda_text_finish_pair[], cuda_text_merge[];

const cuda_family *const cuda_fast_families[] = {
    &rows_family, &channels_family, &row_levels_family, &groups_family, &batch_family, NULL};

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
    [CUDA_BATCH] = {&batch_family, "planish_batch", "batch", cuda_text_batch, batch_list},
    [CUDA_GENERAL_FORWARD] = {&general_family, "planish_general_forward", "general_forward",
                              cuda_text_general_forward, general_list},
    [CUDA_GENERAL_CLEAR] = {&general_family, "planish_general_clear", "general_forward",
                            cuda_text_general_forward, general_list},
    [CUDA_GENERAL_ROWS] = {&general_family, "planish_general_rows", "general_backward",
                           cuda_text_general_backward, general_list},
    [CUDA_GENERAL_COLUMNS] = {&general_family, "planish_general_columns", "general_backward",
                              cuda_text_general_backward, general_list},
    [CUDA_GENERAL_FINISH] = {&general_family, "planish_general_finish", "general_finish",
                             cuda_text_general_finish, general_list},
    [CUDA_GENERAL_ELEMENTS] = {&general_family, "planish_general_elements", "general_backward",
                               cuda_text_general_backward, general_list},
    [CUDA_STAGES_FORWARD] = {&stages_forward_family, "planish_stages_forward", "stages_forward",
                             cuda_text_stages_forward, stages_forward_list},
    [CUDA_STAGES_CLEAR] = {&stages_forward_family, "planish_stages_clear", "stages_forward",
                           cuda_text_stages_forward, stages_forward_list},
    [CUDA_STAGES_SUM] = {&stages_sum_family, "planish_stages_sum", "stages_sum",
                         cuda_text_stages_sum, stages_sum_list},
    [CUDA_STAGES_BACKWARD] = {&stages_backward_family, "planish_stages_backward", "stages_backward",
                              cuda_text_stages_backward, stages_backward_rows_list},
    [CUDA_STAGES_SAMPLES] = {&stages_backward_family, "planish_stages_samples", "stages_samples",
                             cuda_text_stages_samples, stages_samples_list},
    [CUDA_MODULATED_FORWARD] = {&modulated_family, "planish_modulated_forward", "modulated_forward",
                                cuda_text_modulated_forward, rows_forward_list},
    [CUDA_MODULATED_BACKWARD] = {&modulated_family, "planish_modulated_backward",
                                 "modulated_backward", cuda_text_modulated_backward,
                                 rows_backward_list},
    [CUDA_MERGE] = {&merge_family, "planish_merge", "merge", cuda_text_merge, merge_list},
};

const cuda_kernel_row *cuda_kernel_of(const cuda_spec *spec) {
    return &kernels[spec->kernel];
}

const cuda_family *cuda_family_of(const cuda_plan *plan) {
    return cuda_kernel_of(&plan->main)->family;
}
