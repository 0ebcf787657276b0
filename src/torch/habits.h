/*
 * What torch does in one version and not in another, asked of the torch that is there by calling
 * its kernels; not told by its number. docs/guide/pytorch-details.md says which torch does what.
 */
#ifndef PLANISH_TORCH_HABITS_H
#define PLANISH_TORCH_HABITS_H

#include <stdbool.h>

typedef struct torch_habits {
    /* native_group_norm takes x with any strides; else it raises where x is not dense. */
    bool group_norm_takes_strides;
    /* Where x is dense but for the strides of its axes of size 1, y or dx has these, too; else
     * torch gives them those of a new tensor. */
    bool group_norm_keeps_strides, group_norm_backward_keeps_strides;
} torch_habits;

extern torch_habits habits;

/* Fills them, on the CPU; torch's native_group_norm is one function for the CPU and CUDA. Called in
 * a guarded body, once the kernels are known to be reached. */
void ask_habits(void);

#endif
