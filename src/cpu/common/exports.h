/*
 * The kernels that a unit (cpu/common/unit.h) hands to the table of its tier, declared for both
 * sides. The name of each is of the family, the dtypes and the tier:
 * cpu_rows_forward_bf16_f32_avx2.
 */
#ifndef PLANISH_CPU_EXPORTS_H
#define PLANISH_CPU_EXPORTS_H

#include "cpu/common/kernels.h"

#define UNIT_(family, element, weight, tier) cpu_##family##_##element##_##weight##_##tier
#define UNIT(family, element, weight, tier) UNIT_(family, element, weight, tier)

/* By kernel_kind, as in kernels.h. */
#define DECLARE_ROWS(element, weight, tier)                                                        \
    extern forward_kernel *const UNIT(rows_forward, element, weight, tier)[KERNEL_KINDS];          \
    extern backward_kernel *const UNIT(rows_backward, element, weight, tier)[KERNEL_KINDS];        \
    extern backward_kernel *const UNIT(rows_halves, element, weight, tier)[KINDS];
#define DECLARE_GROUPS(element, real, tier)                                                        \
    extern group_forward_kernel *const UNIT(group_forward, element, real, tier)[KERNEL_KINDS];     \
    extern group_backward_kernel *const UNIT(group_backward, element, real, tier)[KERNEL_KINDS];   \
    extern strip_forward_kernel *const UNIT(strip_forward, element, real, tier)[KERNEL_KINDS];     \
    extern strip_backward_kernel *const UNIT(strip_backward, element, real, tier)[KERNEL_KINDS];
/* Rows of few columns, with weights of the compute type: for the other kernels of rows, which take
 * those of a step that leave its range, one by one. */
#define DECLARE_FEW(element, real, tier)                                                           \
    extern few_forward_kernel *const UNIT(few_forward, element, real, tier)[KINDS];                \
    extern few_backward_kernel *const UNIT(few_backward, element, real, tier)[KINDS];              \
    void UNIT(one_row, element, real, tier)(const forward_args *, int64_t row, bool rms);          \
    void UNIT(one_by_one, element, real, tier)(const backward_args *, int64_t row, int count,      \
                                               bool rms);
/* Of a compute type. */
#define DECLARE_REAL(real, tier)                                                                   \
    extern const channel_kernels UNIT(channels, real, real, tier);                                 \
    extern const plane_kernels UNIT(planes, real, real, tier);                                     \
    extern const span_kernels UNIT(spans, real, real, tier);                                       \
    extern const struct stage_kernels UNIT(stages, real, real, tier);                              \
    extern const struct stages_backward_kernels UNIT(stages_backward, real, real, tier);

#endif
