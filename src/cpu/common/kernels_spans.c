/* Conversions and sums of dense spans: a unit of kernels (cpu/common/unit.h), one for all dtypes.
 */
#include "cpu/common/unit.h"

#include "cpu/common/spans.h"

/* The C library's copy takes the processor's string instruction, which is slow for a row of a few
 * KB; compilers make that call of a plain loop, of vector by vector, too. */
static void copy_f32(void *to, const void *from, int64_t count) {
    float *out = to;
    const float *in = from;
    int64_t i = 0;
#ifndef VEC_SMALL_TEXT
    enum { STEP = 4 * F32V_LANES };
    for (; i + STEP <= count; i += STEP) {
        f32v v[4];
        UNROLL for (int k = 0; k < 4; k++) v[k] = f32v_load_f32(in + i + k * F32V_LANES);
        UNROLL for (int k = 0; k < 4; k++) f32v_store_f32(out + i + k * F32V_LANES, v[k]);
    }
#endif
    memcpy(out + i, in + i, (size_t)(count - i) * sizeof *out);
}
static void widen_f32(float *to, const void *from, int64_t count) {
    copy_f32(to, from, count);
}
static void narrow_f32(void *to, const float *from, int64_t count) {
    copy_f32(to, from, count);
}

/* Elements of this size before the next line of the cache, at most `count`. */
static inline int before_line(const void *to, int size, int64_t count) {
    const int there = (int)(-(uintptr_t)to & 63) / size;
    return there < count ? there : (int)count;
}

/* Whole lines past the cache, what stands before and behind them as it is. */
#define STREAM_SPAN(type, element, source, narrow)                                                 \
    static void stream_##type(void *to, const source *from, int64_t count) {                       \
        enum { LINE = 64 / sizeof(element) };                                                      \
        _Alignas(64) element line[LINE];                                                           \
        element *out = to;                                                                         \
        const int before = before_line(to, sizeof(element), count);                                \
        narrow(out, from, before);                                                                 \
        out += before;                                                                             \
        from += before;                                                                            \
        for (int64_t lines = (count - before) / LINE; lines; lines--) {                            \
            line_##type(line, from);                                                               \
            stream_line(out, line);                                                                \
            out += LINE;                                                                           \
            from += LINE;                                                                          \
        }                                                                                          \
        narrow(out, from, (int)((count - before) % LINE));                                         \
    }
#define STREAM_FLOATS(type, element)                                                               \
    static inline void line_##type(element *line, const float *from) {                             \
        for (int i = 0; i < 64 / (int)sizeof *line; i += F32V_LANES)                               \
            f32v_store_##type(line + i, f32v_load_f32(from + i));                                  \
    }                                                                                              \
    STREAM_SPAN(type, element, float, narrow_span_##type)
STREAM_FLOATS(f16, uint16_t)
STREAM_FLOATS(bf16, uint16_t)
static inline void line_f32(float *line, const float *from) {
    memcpy(line, from, 64);
}
STREAM_SPAN(f32, float, float, narrow_span_f32)
#define COPY_BYTES(to, from, count) memcpy(to, from, (size_t)(count))
static inline void line_u8(char *line, const char *from) {
    memcpy(line, from, 64);
}
STREAM_SPAN(u8, char, char, COPY_BYTES)
static void stream_bytes(void *to, const void *from, int64_t count) {
    stream_u8(to, from, count);
}

DECLARE_REAL(ELEMENT, TIER)
const span_kernels EXPORT(spans) = {
    .widen = {[DTYPE_F32] = widen_f32,
              [DTYPE_F16] = widen_span_f16,
              [DTYPE_BF16] = widen_span_bf16},
    .narrow = {[DTYPE_F32] = narrow_f32,
               [DTYPE_F16] = narrow_span_f16,
               [DTYPE_BF16] = narrow_span_bf16},
    .stream = {[DTYPE_F32] = stream_f32, [DTYPE_F16] = stream_f16, [DTYPE_BF16] = stream_bf16},
    .stream_bytes = stream_bytes,
    .flush = {flush_span_f32, flush_span_f64},
};
