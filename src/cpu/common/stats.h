/* What a row has one number of, in memory: a mean, rstd, m2, c1 or c2, of any dtype. */
#ifndef PLANISH_CPU_STATS_H
#define PLANISH_CPU_STATS_H

#include "cpu/common/element.h"

/* A mean, rstd or m2 for each row; data NULL: absent. Pitches are in bytes throughout. */
typedef struct row_stat {
    char *data;
    int64_t pitch;
    dtype type;
} row_stat;

/* Of any dtype: not in line, for its conversions are long (cpu/common/stats.c). */
void stat_load_any(const row_stat *s, int64_t row, int count, double values[]);
void stat_store_any(const row_stat *s, int64_t row, int count, const double values[]);

static inline double stat_load(const row_stat *s, int64_t row) {
    const char *at = s->data + row * s->pitch;
    double value;
    if (s->type == DTYPE_F32)
        return *(const float *)at;
    if (s->type == DTYPE_F64)
        return *(const double *)at;
    stat_load_any(s, row, 1, &value);
    return value;
}

/* Rounded once; nothing where the statistic is absent. */
static inline void stat_store_rows(const row_stat *s, int64_t row, int count,
                                   const double values[]) {
    if (!s->data)
        return;
    char *at = s->data + row * s->pitch;
    if (s->type == DTYPE_F32 && s->pitch == sizeof(float))
        for (int i = 0; i < count; i++)
            ((float *)at)[i] = (float)values[i];
    else
        stat_store_any(s, row, count, values);
}
static inline void stat_store(const row_stat *s, int64_t row, double value) {
    stat_store_rows(s, row, 1, &value);
}

/* The statistic from one of its rows on. */
static inline row_stat stat_at(const row_stat *s, int64_t row) {
    return (row_stat){s->data ? s->data + row * s->pitch : NULL, s->pitch, s->type};
}

static inline void stat_load_rows(const row_stat *s, int64_t row, int count, double values[]) {
    const char *at = s->data + row * s->pitch;
    if (s->type == DTYPE_F32 && s->pitch == sizeof(float))
        for (int i = 0; i < count; i++)
            values[i] = ((const float *)at)[i];
    else
        stat_load_any(s, row, count, values);
}

#endif
