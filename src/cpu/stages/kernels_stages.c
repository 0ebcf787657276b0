/* The loops of the stages around a norm: a unit of kernels (cpu/common/unit.h), one for each
 * compute type. */
#include "cpu/common/unit.h"

#include "cpu/stages/stage_kernels.h"

#include "cpu/common/epilogue.h"
#include "cpu/common/spans.h"

#include "cpu/stages/stage_loops.h"

#include "cpu/stages/stage_join.h"

#include "cpu/stages/stage_dropout.h"

#include "cpu/stages/stage_quantise.h"

DECLARE_REAL(ELEMENT, TIER)
const stage_kernels EXPORT(stages) = {
    .multiply = NAME(multiply),
    .scale = NAME(multiply_by),
    .add = NAME(add),
    .join = NAME(join),
    .gate = NAME(gate),
    .drop = NAME(drop),
    .weigh = NAME(weigh),
    .modulate = NAME(modulate),
    .activate = NAME(activate),
    .largest = NAME(largest),
    .quantise = NAME(quantise),
};
