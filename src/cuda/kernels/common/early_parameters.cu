/*
 * Weight and bias brought to the L1 at a block's start, while its rows are under way: a row that loads them chunk by
 * chunk behind its statistics would wait for the L2 at every chunk. It takes no registers of the rows. Included by
 * what uses it.
 */

/* Copies a word of each sector of BYTES to where nobody reads it. */
template <int BYTES, int THREADS> __device__ __forceinline__ void bring_to_l1(u32 to, const void *first) {
    constexpr int SECTOR = 32, WORD = 4; /* bytes */
#pragma unroll
    for (int i = 0; i * THREADS * SECTOR < BYTES; i++) {
        const int at = (threadIdx.x + i * THREADS) * SECTOR;
        if (at + WORD <= BYTES)
            copy_async<WORD, WORD>(to, (const char *)first + at, true);
    }
}

/* Both, of so many bytes, by a block of so many threads; no block may end before copy_async_wait<0>(). */
template <int WEIGHTS, int BIASES, int THREADS>
__device__ __forceinline__ void bring_parameters(const void *weight, const void *bias) {
    __shared__ u32 unread[THREADS];
    const u32 to = shared_address(unread + threadIdx.x);
    bring_to_l1<WEIGHTS, THREADS>(to, weight);
    bring_to_l1<BIASES, THREADS>(to, bias);
    copy_async_commit();
}
