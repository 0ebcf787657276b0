/* Conversions and sums of dense spans: a unit of kernels (cpu/common/unit.h), one for all dtypes.
 */
#include "cpu/common/unit.h"

#include "cpu/common/spans.h"

DECLARE_REAL(ELEMENT, TIER)
const span_kernels EXPORT(spans) = {
    .widen = {[DTYPE_F32] = widen_span_f32,
              [DTYPE_F16] = widen_span_f16,
              [DTYPE_BF16] = widen_span_bf16},
    .narrow = {[DTYPE_F32] = narrow_span_f32,
               [DTYPE_F16] = narrow_span_f16,
               [DTYPE_BF16] = narrow_span_bf16},
    .flush = {flush_span_f32, flush_span_f64},
};
