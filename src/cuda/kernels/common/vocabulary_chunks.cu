/* A part of vocabulary.cu: chunks, the few neighbouring elements that one thread moves at a time, from
 * memory and to it. */

template <int BYTES> struct chunk {
    u32 word[BYTES < 4 ? 1 : BYTES / 4];
};

template <int BYTES> __device__ __forceinline__ chunk<BYTES> zero_chunk() {
    chunk<BYTES> c;
#pragma unroll
    for (u32 &w : c.word)
        w = 0;
    return c;
}

/* Reads a chunk. ACCESS is the alignment of the address, at most 16. Not by the read-only path (ld.global.nc):
 * a kernel starts while the one before it still writes, and the assembler moves such loads ahead of
 * wait_for_stream(). Nor with L1::no_allocate: the L2 gives such lines up first, as it does those of streaming
 * stores, and what others left there stays. The whole was 2 to 6% slower (docs/notebook/024). */
template <int BYTES, int ACCESS>
__device__ __forceinline__ chunk<BYTES> load_chunk(const void *address) {
    constexpr int A = least(BYTES, ACCESS);
    chunk<BYTES> c;
    const char *p = (const char *)address;
    if constexpr (A == 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(c.word[4 * i]), "=r"(c.word[4 * i + 1]), "=r"(c.word[4 * i + 2]),
                  "=r"(c.word[4 * i + 3])
                : "l"(p + 16 * i));
    } else if constexpr (A == 8) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++)
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                : "=r"(c.word[2 * i]), "=r"(c.word[2 * i + 1])
                : "l"(p + 8 * i));
    } else if constexpr (A == 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(c.word[i]) : "l"(p + 4 * i));
    } else {
        u16 low, high;
#pragma unroll
        for (int i = 0; i < BYTES / 2; i += 2) {
            asm volatile("ld.global.u16 %0, [%1];" : "=h"(low) : "l"(p + 2 * i));
            high = 0;
            if (i + 1 < BYTES / 2)
                asm volatile("ld.global.u16 %0, [%1];" : "=h"(high) : "l"(p + 2 * i + 2));
            c.word[i / 2] = low | (u32)high << 16;
        }
    }
    return c;
}

/* A number of f64 that is `there`, else 0, which the load leaves as it is: a choice between the two would wait for
 * what was loaded. */
__device__ __forceinline__ double load_f64_if(bool there, const void *address) {
    double value = 0;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.f64 %0, [%2]; }"
                 : "+d"(value)
                 : "r"((u32)there), "l"(address));
    return value;
}

/* Writes a chunk, which stays in the L2 for what comes next: with streaming stores the two together take up to
 * 7% longer. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void store_chunk(void *address, const chunk<BYTES> &c) {
    constexpr int A = least(BYTES, ACCESS);
    char *p = (char *)address;
    if constexpr (A == 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + 16 * i),
                         "r"(c.word[4 * i]), "r"(c.word[4 * i + 1]), "r"(c.word[4 * i + 2]),
                         "r"(c.word[4 * i + 3])
                         : "memory");
    } else if constexpr (A == 8) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++)
            asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p + 8 * i),
                         "r"(c.word[2 * i]), "r"(c.word[2 * i + 1])
                         : "memory");
    } else if constexpr (A == 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("st.global.u32 [%0], %1;" ::"l"(p + 4 * i), "r"(c.word[i]) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++)
            asm volatile("st.global.u16 [%0], %1;" ::"l"(p + 2 * i),
                         "h"((u16)(c.word[i / 2] >> 16 * (i & 1)))
                         : "memory");
    }
}
