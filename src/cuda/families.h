/*
 * The families of kernels and the kernels of each, as tables. Planning, launching, compiling, the
 * emulation and the tests ask here what is to be known of a kernel; a new one is a row of each
 * table. How a family plans and launches is in its own files.
 */
#ifndef PLANISH_CUDA_FAMILIES_H
#define PLANISH_CUDA_FAMILIES_H

#include "cuda/launches.h"

/* Kernels that are planned and launched by the same functions. Those of a plan are NULL for the
 * family that is only launched behind others' kernels (finish.h). All pure. */
typedef struct cuda_family {
    const char *name; /* of those that are asked whether they take a problem */
    /* Completes a plan whose limits, rows, cols and eps are set, all else being 0. Not a problem
     * for these kernels: what in it they do not take; else NULL. */
    const char *(*plan_make)(cuda_plan *plan, const problem *p);
    /* Has the kernels of such a plan, of a backward to an f32 dx of its own
     * (stages_norm_before_dsum), add dsum to that and write p's dx; false, and nothing changed,
     * where they cannot. NULL: none can. */
    bool (*plan_dsum)(cuda_plan *plan, const problem *p);
    /* Sets again what follows from constants of such a plan that were changed: rows of partial sums
     * and workspace. */
    void (*plan_size)(cuda_plan *plan);
    int (*plan_describe)(const cuda_plan *plan, char *text, size_t bytes);
    int (*launch_specs)(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]);
    void (*launch_arguments)(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]);
    unsigned (*threads)(const cuda_spec *spec);    /* of a block */
    size_t (*shared_bytes)(const cuda_spec *spec); /* of a block, beside its variables; NULL: 0 */
} cuda_family;

typedef struct cuda_kernel_row {
    const cuda_family *family;
    const char *entry;              /* its function in the text, such as "planish_forward" */
    const char *file;               /* the text's root in kernels/, without .cu */
    const char *text;               /* vocabulary not included */
    const cuda_constant *constants; /* its own */
} cuda_kernel_row;

const cuda_kernel_row *cuda_kernel_of(const cuda_spec *spec);

/* The family of the kernels that a plan runs. */
const cuda_family *cuda_family_of(const cuda_plan *plan);

/* The families in the order in which they are offered a problem (plan.c says which), closed by
 * NULL. What none takes is the general kernels'. */
extern const cuda_family *const cuda_fast_families[];

/* Text that goes in front of every kernel. */
extern const char cuda_text_vocabulary[];

#endif
