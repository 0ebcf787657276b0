// clang-format off
/*
 * What every unit of kernels begins with. A unit is one family of kernels (rows forward, rows
 * backward, groups, pixels, channels, stages) for one instruction set and one dtype or pair of them:
 * one of the files kernels_... in the folders of src/cpu, compiled once for each by meson.build,
 * which says on the command line
 *
 *     TIER      the tier's name
 *     VEC_FILE  its vec_*.h
 *     ELEMENT   dtype token (f32, f16, bf16, f64) of x, y, dy and dx in memory
 *     WEIGHT    the same of weight and bias
 *
 * ELEMENT and WEIGHT that meson.build makes units of, family by family (`families`); other
 * combinations are neither compiled nor tested:
 *
 *     rows                               f32 f32, f64 f64, f16 f32, bf16 f32, f16 f16, bf16 bf16
 *     few, groups, pixels, batch         f32 f32, f64 f64, f16 f32, bf16 f32
 *     channels, stages, stages_backward  f32 f32, f64 f64
 *     spans                              f32 f32
 *
 * From these follow the parameters that the texts of the kernels are written in:
 *
 *     ELEMENT_T   C type of an element in memory
 *     WEIGHT_T    C type of a weight or bias in memory
 *     REAL        the compute type: double where ELEMENT is f64, else float
 *     REAL_TOKEN  its dtype token
 *     VEC         its vector, f64v or f32v
 *     VEC_LANES   the vector's lanes
 *     LANES       the canonical lanes: 32 for float, 16 for double
 *     BIG         a variance or a constant from here on is out of range
 *     TINY_VAR    below this and TINY_EPS, squares have lost digits: overflow.c does the row instead
 *     TINY_EPS    the same of eps
 *     BLOCK       a transpose is BLOCK x BLOCK
 *     NAME(f)     f with a suffix of the unit's own, which a profile shows
 *     EXPORT(f)   the name by which the tier's table (kernels_table.c) knows f
 */
// clang-format on
#ifndef PLANISH_CPU_UNIT_H
#define PLANISH_CPU_UNIT_H

#include VEC_FILE

#include "cpu/common/exact.h"
#include "cpu/common/exports.h"
#include "cpu/common/rows_doubles.h"
#include "cpu/common/words.h"
#include "cpu/vectors/vec_pairs.h"

#include <math.h>
#include <stddef.h>

/* One of these for each token, so that #if can tell them apart. */
#define TOKEN_f32 1
#define TOKEN_f16 2
#define TOKEN_bf16 3
#define TOKEN_f64 4
#define TOKEN_(type) TOKEN_##type
#define TOKEN(type) TOKEN_(type)

#define DTYPE_OF_f32 DTYPE_F32
#define DTYPE_OF_f16 DTYPE_F16
#define DTYPE_OF_bf16 DTYPE_BF16
#define DTYPE_OF_f64 DTYPE_F64
#define DTYPE_OF_(type) DTYPE_OF_##type
#define DTYPE_OF(type) DTYPE_OF_(type)

#define C_TYPE_f32 float
#define C_TYPE_f16 uint16_t
#define C_TYPE_bf16 uint16_t
#define C_TYPE_f64 double
#define C_TYPE_(type) C_TYPE_##type
#define C_TYPE(type) C_TYPE_(type)
#define ELEMENT_T C_TYPE(ELEMENT)
#define WEIGHT_T C_TYPE(WEIGHT)

#if TOKEN(ELEMENT) == TOKEN_f64
#define REAL double
#define REAL_TOKEN f64
#define VEC f64v
#define VEC_LANES F64V_LANES
#define LANES 16
#define BIG 1e300
#define TINY_VAR 1e-280
#define TINY_EPS 1e-260
#define BLOCK F64V_BLOCK
#else
#define REAL float
#define REAL_TOKEN f32
#define VEC f32v
#define VEC_LANES F32V_LANES
#define LANES 32
#define BIG 3e38
#define TINY_VAR 1e-30
#define TINY_EPS 1e-22
#define BLOCK F32V_BLOCK
#endif

#define NAME__(f, element, weight) f##element##_##weight
#define NAME_(f, element, weight) NAME__(f, element, weight)
#define NAME(f) NAME_(f##_, ELEMENT, WEIGHT)
#define EXPORT(f) UNIT(f, ELEMENT, WEIGHT, TIER)

/*
 * A vector is a line of the cache, so that a non-temporal store of a line is one of a vector, and a
 * row's part costs a masked store. Such units alone have the text of what pays only so, or was
 * timed only so: lines and runs as they are made, y prefetched in turn, more short gradients, parts
 * of lines stored in place. Whether it is used is the hints' affair (cpu/common/kernels.h).
 */
enum { LINE_VECTORS = sizeof(f32v) == 64 };

/*
 * Writes whole lines by non-temporal stores. Results are made in a piece of the stack and then
 * written at once, but for TRAFFIC_LINES: on AMD's Zen 3 a load waits for a non-temporal store that
 * is on its way to the same place of another page, so that with loads between the stores a norm
 * took six times longer wherever y lay a little behind x or weight, modulo 4096 bytes.
 */
static inline void stream_lines(void *to, const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
        stream_line((char *)to + i, (const char *)from + i);
}

/* rstd from a sum of squares. f32 does not show the roundings of f64 on the way; f64 itself would.
 */
INLINE double NAME(rstd_of)(double m2, const norm_rule *rule) {
    if (sizeof(REAL) == 4)
        return rule_rstd(rule, sqrt(m2 * rule->inverse + rule->eps));
    const double shifted = m2 / rule->count + rule->eps, root = sqrt(shifted);
    return root < rule->least ? rule_rstd(rule, root) : mended_rstd(shifted, rule_rstd(rule, root));
}

/*
 * The least that m2 / rule->count may be of a row of n elements, for squares below TINY_VAR have
 * lost digits. -1: anything, for eps hides what was lost, or such a row is divided by the least
 * length whatever its own is.
 */
INLINE double NAME(least_moment)(const norm_rule *rule, double n) {
    const double tiny = TINY_VAR * (n / rule->count);
    const bool hidden =
        rule->least > 0 ? rule->least * rule->least >= 2 * tiny : rule->eps >= TINY_EPS;
    return hidden ? -1 : tiny;
}

#endif
