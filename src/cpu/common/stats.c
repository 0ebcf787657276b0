/* The statistics of rows in memory, of any dtype. */
#include "cpu/common/kernels.h"

void stat_load_any(const row_stat *s, int64_t row, int count, double values[]) {
    const char *at = s->data + row * s->pitch;
    for (int i = 0; i < count; i++, at += s->pitch)
        values[i] = element_load(at, s->type);
}

void stat_store_any(const row_stat *s, int64_t row, int count, const double values[]) {
    char *at = s->data + row * s->pitch;
    for (int i = 0; i < count; i++, at += s->pitch)
        element_store(at, s->type, values[i]);
}
