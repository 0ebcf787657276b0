/*
 * Puts together what parts of rows sent, a thread for each row, parts in their order: the same bits for
 * whoever merges the same. With n, mean and m2 of each part,
 *
 *     share = n / sum of n       mean = sum of share * mean       m2 = sum of m2 + n (mean - mean of all)^2
 *     rstd = 1 / sqrt(m2 / sum of n + eps)
 *
 * (Chan, Golub, LeVeque 1983); of an RMS norm without means. Of an L2 norm shares are 1, and rstd is 1 / sqrt(m2), or
 * 1 / eps where that is less. Or c1 and c2, by shares that are given. Or, of no
 * part, eps for each row. It is launched behind whatever ran before, and waits for nothing itself.
 * src/cpu/cpu_merge.c says the same in C.
 */
#include "../arguments/merge_args.h"

/* Of each part what lies `at` numbers behind its message, by shares. */
__device__ __forceinline__ double by_shares(const merge_args &args, const double *shares, double count, i64 at) {
    double sum = 0;
    for (i64 p = 0; p < args.parts; p++) {
        const double *sent = args.sent + p * args.stride;
        const double share = shares ? shares[p] : sent[0] / count;
        sum += share * sent[at];
    }
    return sum;
}

__device__ __forceinline__ double count_of_all(const merge_args &args) {
    double count = 0;
    for (i64 p = 0; p < args.parts; p++)
        count += args.sent[p * args.stride];
    return count;
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS) planish_merge(const merge_args args) {
    const i64 row = (i64)blockIdx.x * MERGE_THREADS + threadIdx.x, second = args.first ? args.rows : 0;
    if (!args.parts) {
        if (row < args.rows)
            args.second[row] = args.eps;
        return;
    }
    if (args.shares) {
        if (row < args.rows) {
            if (args.first)
                args.first[row] = by_shares(args, args.shares, 0, row);
            args.second[row] = by_shares(args, args.shares, 0, second + row);
        }
        return;
    }
    const double count = count_of_all(args);
    for (i64 p = threadIdx.x; blockIdx.x == 0 && p < args.parts; p += MERGE_THREADS)
        args.made_shares[p] = args.l2 ? 1 : args.sent[p * args.stride] / count;
    if (row >= args.rows)
        return;
    const double mean = args.first ? by_shares(args, args.shares, count, 1 + row) : 0;
    double m2 = 0;
    for (i64 p = 0; p < args.parts; p++) {
        const double *sent = args.sent + p * args.stride;
        const double apart = args.first ? sent[1 + row] - mean : 0;
        m2 += sent[1 + second + row] + sent[0] * (apart * apart);
    }
    if (args.first)
        args.first[row] = mean;
    if (args.l2) {
        const double length = sqrt(m2);
        args.second[row] = 1 / (length < args.eps ? args.eps : length);
    } else {
        args.second[row] = 1 / sqrt(m2 / count + args.eps);
    }
}
