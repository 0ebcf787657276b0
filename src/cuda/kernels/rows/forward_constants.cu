/*
 * A part of forward.cu and of stages_forward.cu: what follows from the constants of rows. Their meaning is
 * in forward.cu.
 */
#include "../common/rule.cu"
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int Y_BYTES = WIDTH * bytes_of(Y_TYPE);
constexpr int WEIGHT_BYTES = WIDTH * bytes_of(WEIGHT_TYPE);
constexpr int BIAS_BYTES = WIDTH * bytes_of(BIAS_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SPREAD = THREADS_PER_ROW * CLUSTER * COOPERATING_BLOCKS;
constexpr bool COOPERATIVE = COOPERATING_BLOCKS > 1;
constexpr bool GROUPED = GROUPS > 0;
constexpr bool RAGGED = CHUNKS_PER_THREAD * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = THREADS_PER_ROW <= WARP;
constexpr int WARP_LANES = least(THREADS_PER_ROW, WARP);
constexpr int PER_WARP = WARP / WARP_LANES;
constexpr int THREADS = WARPS * WARP; /* that hold rows */
constexpr int ALL_THREADS = THREADS + (COOPERATIVE ? WARP : 0);
constexpr int STEP = WITHIN_WARP ? PER_WARP * ROWS : ROWS; /* rows a team takes at a time */
constexpr bool HELD_EARLY = EARLY == EARLY_IN_REGISTERS;
constexpr bool COPIES =
    HOLD == HOLD_IN_SHARED || (HOLD == HOLD_IN_REGISTERS && RING_SLOTS > 0);
/* Chunks the pivot is the mean of: a power of two, so that equal values give it exactly. */
constexpr int PIVOT_CHUNKS =
    power_of_two_up_to(least(HOLD == HOLD_IN_REGISTERS ? CHUNKS_PER_THREAD : 4,
                             RAGGED && CHUNKS_PER_THREAD > 1 ? CHUNKS_PER_THREAD - 1 : CHUNKS_PER_THREAD));
constexpr bool WIDE_RANGE = X_TYPE == F32 || X_TYPE == BF16;
constexpr int UNROLL = HOLD == HOLD_IN_REGISTERS || COOPERATIVE ? CHUNKS_PER_THREAD : 4;

template <bool HALF> struct total_of {
    typedef double type;
};
template <> struct total_of<true> {
    typedef float type;
};
/* A pivot of one element may lie far from the mean, and then f32 totals lose digits; so do those of many
 * elements one after the other. */
typedef total_of<sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && CHUNKS_PER_THREAD * WIDTH >= 8 &&
                 !(GROUPED && WIDTH == 1) && VARIANT == ROWS_PLAIN>::type total;

struct __align__(16) entry {
    total value[4]; /* pivot, sum, squares; one unused */
};

/* Statistics alone, or those that are given. */
constexpr bool MOMENTS_ALONE = PASS == 3, MOMENTS_GIVEN = PASS == 4;

constexpr bool CENTRED = PASS == 0 && WITHIN_WARP && HOLD == HOLD_IN_REGISTERS && RING_SLOTS == 0 && !GROUPED &&
                         sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && COLS <= 512;
/* y from (x - pivot) * rstd - delta * rstd: an instruction less for an element, and a rounding of f32
 * that results of 16 bits do not show. */
constexpr bool FOLDED = LAYER && sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && bytes_of(Y_TYPE) == 2;

/* Whether a row is converted again for its output, for it would take too many registers to keep as numbers. A
 * quantised one has y there in its place soon. */
constexpr bool FORGETS_NUMBERS = HOLD == HOLD_IN_REGISTERS && bytes_of(X_TYPE) == 2 && TYPES[ROLE_Q] == NONE;

/* A chunk of a row that is held as words. */
__device__ __forceinline__ real value_of(const chunk<X_BYTES> &c, int i) { return element<X_TYPE>(c.word, i); }
__device__ __forceinline__ void forget_numbers(chunk<X_BYTES> &c, u32 zero) {
#pragma unroll
    for (u32 &w : c.word)
        forget(w, zero);
}

/* On a line of 128 bytes, whatever other shared variables a kernel has: copies of whole sectors to the
 * middle of others are slower. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];
