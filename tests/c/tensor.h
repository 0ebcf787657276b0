/*
 * Tensors for tests: any dtype, shape and memory layout, each in a buffer of its own that touches
 * an unmapped page, so that one byte read or written past it ends the program. The bytes of a
 * buffer that belong to no element hold a pattern, which tensor_intact() looks for.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "element.h"

/* ---- Memory next to an unmapped page ------------------------------------------------------ */

/* Whether buffers end (the default) or begin where the mapped memory does. */
typedef enum guard { GUARD_END, GUARD_START } guard;
extern guard guard_side;

typedef struct guarded {
    unsigned char *data;
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
} guarded;

/* Memory of this size and alignment (a power of two), filled with the pattern. */
guarded guarded_make(size_t bytes, size_t alignment);
void guarded_free(guarded *g);

/* ---- Layouts ------------------------------------------------------------------------------ */

typedef enum layout {
    DENSE,           /* strides NULL */
    EXPLICIT,        /* the same with strides */
    PADDED,          /* a gap of 3 elements after each run of the last axis */
    INNER_STRIDE_2,  /* every second element */
    REVERSED,        /* all strides negative */
    REVERSED_FIRST,  /* the first axis backwards */
    PERMUTED,        /* the first axis innermost */
    CHANNELS_LAST,   /* the second axis innermost; of five axes, the second and third */
    MISALIGNED,      /* begins one element past the alignment */
    PACKED,          /* one of three parts: all axes but the last two thrice as far apart */
    PACKED_HEADS,    /* the same with the third last axis between the last two */
    BROADCAST_FIRST, /* stride 0 along the first axis; inputs only */
    BROADCAST_LAST,  /* stride 0 along the last axis; inputs only */
    BROADCAST_ALL,   /* one element for all: an expanded gradient; inputs only */
    LAYOUT_COUNT
} layout;

const char *layout_name(layout l);
bool layout_is_broadcast(layout l);

/* ---- Tensors ------------------------------------------------------------------------------ */

typedef struct tensor {
    DLTensor dl; /* points into this struct: do not copy a tensor */
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
    element type;
    int64_t count;
    guarded memory;
} tensor;

void tensor_make(tensor *t, element type, int ndim, const int64_t *shape, layout l);
void tensor_free(tensor *t);

/* Puts the pattern back everywhere. */
void tensor_clear(tensor *t);

/* Whether every byte that belongs to no element still holds the pattern. */
bool tensor_intact(const tensor *t);

/* Whether every byte, those of the elements too, holds the pattern. */
bool tensor_untouched(const tensor *t);

/* ---- Elements in row-major order of the indices ------------------------------------------- */

/* Walks over the elements; `at` is the address of the current one. */
typedef struct cursor {
    const DLTensor *tensor;
    int64_t index[PLANISH_MAX_NDIM];
    unsigned char *at;
} cursor;

cursor cursor_begin(const DLTensor *t);
void cursor_next(cursor *c);

int64_t element_count(const DLTensor *t);

/* Every element, `count` values, to or from reals. */
void tensor_read(const DLTensor *t, real *values);
void tensor_write(const DLTensor *t, const real *values);

/* Whether two tensors of one dtype and count hold the same bits, element by element. */
bool tensor_same_bits(const DLTensor *a, const DLTensor *b);

/* ---- Random numbers ----------------------------------------------------------------------- */

typedef struct random_state {
    uint64_t state;
} random_state;

uint64_t random_bits(random_state *r);

/* In [0, count). */
int64_t random_below(random_state *r, int64_t count);

/* Mean 0, standard deviation 1, close to normal. */
double random_normal(random_state *r);

#endif
