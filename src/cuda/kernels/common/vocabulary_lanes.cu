/* A part of vocabulary.cu: what the lanes of a warp tell each other, and their sums. */

__device__ __forceinline__ float from_lane(float v, int lane) {
    return __shfl_sync(EVERY_LANE, v, lane);
}
__device__ __forceinline__ double from_lane(double v, int lane) {
    return __shfl_sync(EVERY_LANE, v, lane);
}

/*
 * The sum over a group of LANES neighbouring lanes, the same bits in all of them. A group starts at
 * a multiple of LANES; all lanes of the warp must call, those left over at its end included.
 */
template <int LANES, typename T> __device__ __forceinline__ T sum_over_lanes(T v, int lane) {
    if constexpr ((LANES & (LANES - 1)) == 0) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            v += __shfl_xor_sync(EVERY_LANE, v, step);
        return v;
    } else {
        int rank = lane % LANES, base = lane - rank;
#pragma unroll
        for (int step = power_of_two_up_to(LANES); step > 0; step /= 2) {
            T other = __shfl_down_sync(EVERY_LANE, v, step);
            if (rank + step < least(LANES, 2 * step))
                v += other;
        }
        return from_lane(v, base);
    }
}

/*
 * The sum over the PLANES lanes that are LANES apart, of lanes 0 to PLANES * LANES; the same bits in all of
 * them. All lanes of the warp must call.
 */
template <int LANES, int PLANES, typename T>
__device__ __forceinline__ T sum_over_planes(T v, int lane) {
    if constexpr (LANES * PLANES == WARP) {
#pragma unroll
        for (int step = WARP / 2; step >= LANES; step /= 2)
            v += __shfl_xor_sync(EVERY_LANE, v, step);
        return v;
    } else {
        const int plane = lane / LANES;
#pragma unroll
        for (int step = power_of_two_up_to(PLANES); step > 0; step /= 2) {
            const T other = __shfl_down_sync(EVERY_LANE, v, step * LANES);
            if (plane + step < least(PLANES, 2 * step))
                v += other;
        }
        return from_lane(v, lane % LANES);
    }
}
