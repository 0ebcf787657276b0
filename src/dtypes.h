/* What an element of a tensor is. */
#ifndef PLANISH_DTYPES_H
#define PLANISH_DTYPES_H

#include "planish.h"

/* Those behind NONE are of some stages' tensors alone. */
typedef enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F64,
    DTYPE_NONE,
    DTYPE_E4M3,
    DTYPE_E5M2,
    DTYPE_E8M0,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_U64
} dtype;

/* Bytes of one element; 0 for DTYPE_NONE. */
static inline int dtype_bytes(dtype d) {
    static const unsigned char bytes[] = {4, 2, 2, 8, 0, 1, 1, 1, 1, 1, 8};
    return bytes[d];
}

const char *dtype_name(dtype d);

#endif
