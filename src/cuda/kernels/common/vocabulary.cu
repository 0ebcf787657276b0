/*
 * The words the kernels are written in: types, conversions, memory access, shuffles, barriers,
 * clusters. Everything that is an instruction of a particular architecture is in these parts and nowhere else;
 * the kernels below are plain C++ over these functions. No header is included, so that a
 * specialisation compiles in tens of milliseconds. Holds no arithmetic of normalization.
 *
 * Constants that a specialisation defines for every kernel: REAL_DOUBLE (arithmetic in f64), WARP (the lanes of
 * one), and for each tensor (ROLE_X, ROLE_WEIGHT, ...) its dtype and its alignment in bytes, TYPES[] and ACCESSES[].
 *
 * Each part stands on those before it.
 */
#include "vocabulary_types.cu"
#include "vocabulary_chunks.cu"
#include "vocabulary_elements.cu"
#include "vocabulary_numbers.cu"
#include "vocabulary_lanes.cu"
#include "vocabulary_shared.cu"
#include "vocabulary_blocks.cu"
#include "vocabulary_clusters.cu"
