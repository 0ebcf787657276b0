/* A part of vocabulary.cu: barriers of a block, its shared memory and copies to it. */

/* Waits for the `threads` threads of barrier `id` (1 to 15). */
__device__ __forceinline__ void barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

/* Copies BYTES to shared memory without waiting, or zeros where `there` is false. ACCESS, the
 * alignment of both addresses, is at least 4. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void copy_async(u32 to, const void *from, bool there) {
    constexpr int A = least(BYTES, ACCESS);
    static_assert(A >= 4, "asynchronous copies move at least 4 bytes");
    int size = there ? A : 0;
#pragma unroll
    for (int i = 0; i < BYTES; i += A) {
        if constexpr (A == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i),
                         "l"((const char *)from + i), "r"(size)
                         : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to + i),
                         "l"((const char *)from + i), "n"(A), "r"(size)
                         : "memory");
    }
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of this thread's newest groups of copies are under way. */
template <int PENDING> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

template <int BYTES> __device__ __forceinline__ chunk<BYTES> load_from_shared(u32 address) {
    chunk<BYTES> c;
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(c.word[4 * i]), "=r"(c.word[4 * i + 1]), "=r"(c.word[4 * i + 2]),
                           "=r"(c.word[4 * i + 3])
                         : "r"(address + 16 * i)
                         : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(c.word[0]), "=r"(c.word[1])
                     : "r"(address)
                     : "memory");
    } else if constexpr (BYTES == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(c.word[0]) : "r"(address) : "memory");
    } else {
        u16 h;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(address) : "memory");
        c.word[0] = h;
    }
    return c;
}

template <int BYTES> __device__ __forceinline__ void store_to_shared(u32 address, const chunk<BYTES> &c) {
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address + 16 * i),
                         "r"(c.word[4 * i]), "r"(c.word[4 * i + 1]), "r"(c.word[4 * i + 2]),
                         "r"(c.word[4 * i + 3])
                         : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(c.word[0]),
                     "r"(c.word[1])
                     : "memory");
    } else if constexpr (BYTES >= 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(address + 4 * i), "r"(c.word[i])
                         : "memory");
    } else {
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((u16)c.word[0]) : "memory");
    }
}

/* The same of any alignment; through registers where asynchronous copies cannot. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void copy_in(u32 to, const char *from, bool there) {
    if constexpr (ACCESS >= 4 && BYTES >= 4)
        copy_async<BYTES, ACCESS>(to, from, there);
    else
        store_to_shared<BYTES>(to, there ? load_chunk<BYTES, ACCESS>(from) : zero_chunk<BYTES>());
}
