/* Dtypes of DLPack, and what they are called. */
#include "dtypes.h"

#include <stddef.h>

#include "roles.h"

/* A dtype of DLPack with what it is here, as one of some roles' types. */
typedef struct known_dtype {
    role_types types;
    uint8_t code, bits;
    dtype is;
} known_dtype;

static const known_dtype known_dtypes[] = {
    {TYPES_REAL, kDLFloat, 32, DTYPE_F32},
    {TYPES_REAL, kDLFloat, 16, DTYPE_F16},
    {TYPES_REAL, kDLBfloat, 16, DTYPE_BF16},
    {TYPES_REAL, kDLFloat, 64, DTYPE_F64},
    {TYPES_FLOAT, kDLFloat, 32, DTYPE_F32},
    {TYPES_BYTE, kDLUInt, 8, DTYPE_U8},
    {TYPES_BYTE, kDLBool, 8, DTYPE_U8},
    {TYPES_SEED, kDLUInt, 64, DTYPE_U64},
    {TYPES_SEED, kDLInt, 64, DTYPE_U64},
    {TYPES_QUANTISED, kDLFloat8_e4m3fn, 8, DTYPE_E4M3},
    {TYPES_QUANTISED, kDLFloat8_e5m2, 8, DTYPE_E5M2},
    {TYPES_QUANTISED, kDLInt, 8, DTYPE_I8},
    {TYPES_BLOCK_SCALE, kDLFloat, 32, DTYPE_F32},
    {TYPES_BLOCK_SCALE, kDLFloat8_e8m0fnu, 8, DTYPE_E8M0},
};
static const char *const types_names[] = {
    [TYPES_REAL] = "f16, bf16, f32 or f64",
    [TYPES_FLOAT] = "f32",
    [TYPES_BYTE] = "u8 or bool",
    [TYPES_SEED] = "u64 or i64",
    [TYPES_QUANTISED] = "f8_e4m3fn, f8_e5m2 or i8",
    [TYPES_BLOCK_SCALE] = "f32 or f8_e8m0",
};

dtype dtype_of(DLDataType d, role_types types) {
    for (size_t i = 0; d.lanes == 1 && i < sizeof known_dtypes / sizeof *known_dtypes; i++) {
        const known_dtype *k = &known_dtypes[i];
        if (k->types == types && k->code == d.code && k->bits == d.bits)
            return k->is;
    }
    return DTYPE_NONE;
}

const char *types_name(role_types types) {
    return types_names[types];
}

const char *dtype_name(dtype d) {
    static const char *const all[] = {"f32",     "f16",     "bf16", "f64", "none", "f8_e4m3fn",
                                      "f8_e5m2", "f8_e8m0", "i8",   "u8",  "u64"};
    return all[d];
}
