/*
 * The tensors of a pass: which axes each has, which a pass must or may have, which it writes. But
 * for their names nothing is asked of the library.
 */
#ifndef PARTS_H
#define PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "planish.h"

/* In planish_tensors' order. */
typedef enum part {
    X,
    WEIGHT,
    BIAS,
    Y,
    MEAN,
    RSTD,
    M2,
    DY,
    DX,
    DWEIGHT,
    DBIAS,
    RESIDUAL,
    SUM,
    ROW_SCALE,
    COLUMN_SCALE,
    SCALE,
    SHIFT,
    GATE,
    RNG,
    MASK,
    Q,
    Y_SCALE,
    Y_SCALES,
    AMAX,
    BRANCH,
    DSUM,
    DRESIDUAL,
    DSCALE,
    DSHIFT,
    DGATE,
    DCOLUMN_SCALE,
    ADDEND,
    DADDEND,
    C1,
    C2,
    PARTS
} part;

/* Sets of parts are sums of these. */
#define HAS(p) ((uint64_t)1 << (p))

const char *part_name(part p);

/* The fields for a part. */
const DLTensor **tensors_field(planish_tensors *t, part p);
void **buffers_field(planish_buffers *b, part p);

/* ---- Shapes --------------------------------------------------------------------------------- */

/* The axes that a part has, and the elements along them; whether it has all. */
uint64_t part_axes(const planish_norm *op, int ndim, part p);
int64_t part_count(const planish_norm *op, int ndim, const int64_t shape[], part p);
bool part_is_full(part p);

/* Whether it stands around the norm. */
static inline bool part_is_stage(part p) {
    return p >= RESIDUAL && p <= DCOLUMN_SCALE;
}

/* ---- Passes --------------------------------------------------------------------------------- */

/* The parts that a pass has of those that are asked for, with those that it must have. Who asks for
 * stages says itself whether there is a bias; else a pass has none that it does not need. */
uint64_t parts_of(const planish_norm *op, planish_pass pass, uint64_t asked);

/* Those that it writes, whichever it has. */
uint64_t parts_written(planish_pass pass);

static inline bool part_is_output(planish_pass pass, part p) {
    return parts_written(pass) >> p & 1;
}

#endif
