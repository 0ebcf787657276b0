/*
 * Which elements dropout keeps: Philox4x32-10 of the seed, the offset and the element's place in x's own
 * row-major order (planish.h). Included by what uses it.
 */

/* The four words of a block. */
__device__ __forceinline__ void philox(u64 seed, u64 offset, u64 block, u32 *word) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)offset, c3 = (u32)(offset >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
        const u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Whether the element at place `index` is kept; `rng` holds the seed and the offset. */
__device__ __forceinline__ bool is_kept(const u64 *rng, i64 index, u64 drop_below) {
    const auto c = load_chunk<16, 8>(rng);
    u32 word[4];
    philox(c.word[0] | (u64)c.word[1] << 32, c.word[2] | (u64)c.word[3] << 32, (u64)index >> 2, word);
    const u32 low = index & 1 ? word[1] : word[0], high = index & 1 ? word[3] : word[2];
    return (index & 2 ? high : low) >= drop_below;
}
