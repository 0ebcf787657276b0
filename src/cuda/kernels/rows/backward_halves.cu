/*
 * A part of backward.cu: c1 and c2, the means of g and of g * xhat over whole rows of which each device has a part.
 * The first half of such a backward writes those of its part (MAKES_C), the second one is given those of the rows
 * (TAKES_C). mean and rstd are the whole rows', and used as they are: of a mean of f64 CORRECT takes what a float
 * leaves of it, any other is CORRECT 0. In team_rows() alone, with neither dsum nor an activation.
 */
typedef stored_in<TYPES[ROLE_C1]>::type stored_c1;
typedef stored_in<TYPES[ROLE_C2]>::type stored_c2;
static_assert(!IN_HALVES || (VARIANT == ROWS_PLAIN && !COOPERATIVE && !LEVELLED && !SLICED && !HAS_DSUM && !ACTIVE),
              "plain rows alone are done by halves");
static_assert(!IN_HALVES || !CORRECT || MEAN_IS_EXACT, "nothing of a mean of parts is mended");

struct row_halves {
    i64 at; /* bytes from c1 and c2 of the first row to those of the turn's first */
    stored_c1 c1[TAKES_C ? ROWS : 1], next_c1[TAKES_C ? ROWS : 1];
    stored_c2 c2[TAKES_C ? ROWS : 1], next_c2[TAKES_C ? ROWS : 1];

    __device__ __forceinline__ void begin(const row_args &args, i64 row) {
        if constexpr (IN_HALVES)
            at = row * args.c_stride;
    }
    /* Asks for those of the turn to come, as statistics_of() does. */
    __device__ __forceinline__ void ask(const row_args &args, const team_state &t, int turn) {
        if constexpr (TAKES_C) {
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                const bool there = turn < t.turns[u];
                const i64 row = at + u * PER_WARP * args.c_stride;
                next_c1[u] = LAYER ? load_stored<TYPES[ROLE_C1]>((const char *)args.c1 + row, there) : 0;
                next_c2[u] = load_stored<TYPES[ROLE_C2]>((const char *)args.c2 + row, there);
            }
            at += args.c_turn;
        }
    }
    __device__ __forceinline__ void take() {
        if constexpr (TAKES_C)
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                c1[u] = next_c1[u];
                c2[u] = next_c2[u];
            }
    }
    /* What row u's sums come to, or what it is given. */
    __device__ __forceinline__ row_factors factors(const row_args &args, int u, const real *sum, stored_mean mean, real rstd) const {
        if constexpr (TAKES_C)
            return factors_from((real)c1[u], (real)c2[u], LAYER && CORRECT ? rest_of_mean(mean, 0) : 0, mean, rstd);
        else
            return factors_of(args, sum, mean, rstd);
    }
    /* Writes row u's, by one thread of it. */
    __device__ __forceinline__ void put(const row_args &args, const team_state &t, int turn, int u, const real *sum,
                                        stored_mean mean, real rstd) const {
        if constexpr (MAKES_C)
            if (turn < t.turns[u] && t.rank == 0) {
                const i64 row = at + u * PER_WARP * args.c_stride;
                const row_means m = means_of(args, sum, mean, rstd);
                store_element<TYPES[ROLE_C1]>((char *)args.c1 + row, 0, m.c1);
                store_element<TYPES[ROLE_C2]>((char *)args.c2 + row, 0, m.c2);
            }
    }
    __device__ __forceinline__ void go_on(const row_args &args) {
        if constexpr (MAKES_C)
            at += args.c_turn;
    }
};
