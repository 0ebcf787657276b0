/* A part of vocabulary.cu: types, the dtypes of tensors, constants, and small functions of numbers that
 * are known when a kernel is compiled. */

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

/* The library's dtype order. */
enum { F32 = 0, F16 = 1, BF16 = 2, F64 = 3, NONE = 4 };

/* What constants of a family may be, as spec.h has them. VARIANT of dense rows, of groups and of batches: */
enum { ROWS_PLAIN, ROWS_TILED, ROWS_IN_RUNS };
enum { GROUPS_BY_ROW, GROUPS_SUMS, GROUPS_MOMENTS, GROUPS_APPLY, GROUPS_IN_TILES };
enum { BATCH_SUMS, BATCH_MOMENTS, BATCH_APPLY, BATCH_WHOLE, BATCH_HELD };
/* HOLD of the forward and of the backward of dense rows: */
enum { HOLD_IN_REGISTERS, HOLD_IN_SHARED, READ_AGAIN };
enum { EARLY_IN_REGISTERS = 1, EARLY_IN_SHARED, EARLY_TO_L1 };
enum { HOLD_IN_THREAD, HOLD_IN_RING, HOLD_THE_NEXT };

constexpr int X_TYPE = TYPES[ROLE_X], X_ACCESS = ACCESSES[ROLE_X];
constexpr int Y_TYPE = TYPES[ROLE_Y], Y_ACCESS = ACCESSES[ROLE_Y];
constexpr int WEIGHT_TYPE = TYPES[ROLE_WEIGHT], WEIGHT_ACCESS = ACCESSES[ROLE_WEIGHT];
constexpr int BIAS_TYPE = TYPES[ROLE_BIAS], BIAS_ACCESS = ACCESSES[ROLE_BIAS];
constexpr int DY_TYPE = TYPES[ROLE_DY], DY_ACCESS = ACCESSES[ROLE_DY];
constexpr int DX_TYPE = TYPES[ROLE_DX], DX_ACCESS = ACCESSES[ROLE_DX];
constexpr int DSUM_TYPE = TYPES[ROLE_DSUM], DSUM_ACCESS = ACCESSES[ROLE_DSUM];
constexpr int MEAN_TYPE = TYPES[ROLE_MEAN], RSTD_TYPE = TYPES[ROLE_RSTD], M2_TYPE = TYPES[ROLE_M2];
constexpr int DWEIGHT_TYPE = TYPES[ROLE_DWEIGHT], DBIAS_TYPE = TYPES[ROLE_DBIAS];

#if REAL_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* In arguments/, which are one text for C and for the kernels (words.h). */
typedef real partial_sum;

constexpr u32 EVERY_LANE = 0xffffffffu;
/* From here on the assembler takes a few registers more for the same text. */
constexpr bool TIGHT = __CUDA_ARCH__ >= 1000;

__device__ constexpr int bytes_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }
__device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__device__ constexpr int most(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ float middle_of(float a, float b, float c) {
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}
__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ constexpr int power_of_two_up_to(int n) { return n < 2 ? 1 : 2 * power_of_two_up_to(n / 2); }
