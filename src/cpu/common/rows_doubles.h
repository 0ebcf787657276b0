/*
 * Doubles of TOGETHER rows as one vector, in the compilers' own notation: what a row has once, its
 * mean and its root, costs a short row as much as its elements do. The same bits as by scalars.
 */
#ifndef PLANISH_CPU_ROWS_DOUBLES_H
#define PLANISH_CPU_ROWS_DOUBLES_H

#include "cpu/common/kernels.h"

#include <math.h>
#include <string.h>

typedef double rows_f64 __attribute__((vector_size(TOGETHER * sizeof(double))));
typedef int64_t rows_mask __attribute__((vector_size(TOGETHER * sizeof(int64_t))));

/* By address: vectors by value are another thing in each ABI. */
static inline void group_sqrt(rows_f64 *v) {
    for (int r = 0; r < TOGETHER; r++)
        (*v)[r] = sqrt((*v)[r]);
}

static inline bool group_all(const rows_mask *m) {
    int64_t all = -1;
    for (int r = 0; r < TOGETHER; r++)
        all &= (*m)[r];
    return all != 0;
}

/* A bit for each row. */
static inline unsigned group_bits(const rows_mask *m) {
    unsigned bits = 0;
    for (int r = 0; r < TOGETHER; r++)
        bits |= (unsigned)((*m)[r] & 1) << r;
    return bits;
}

#endif
