/*
 * The key of a compiled kernel: text from which everything follows that it was compiled from and
 * with, but for the compiler. One line has the kernel's name, hashes of the texts and the options;
 * the prelude with the constants follows. Pure.
 */
#ifndef PLANISH_CUDA_KEY_H
#define PLANISH_CUDA_KEY_H

#include <stdbool.h>

#include "cuda/spec.h"

enum { CUDA_PRELUDE_BYTES = 4096, CUDA_KEY_BYTES = CUDA_PRELUDE_BYTES + 512, CUDA_OPTIONS = 2 };

/* What the compiler is told beside the architecture. */
extern const char *const cuda_options[CUDA_OPTIONS];

/* Writes the key; `target` is "sm_90" for machine code, "compute_90" for PTX. False: no room. */
bool cuda_key(const cuda_spec *spec, const char *target, char *key, size_t bytes);

/* Whether a key is one of machine code from this library's own texts, with the constants they take
 * now. */
bool cuda_key_is_ours(const char *key, size_t bytes);

#endif
