/*
 * Philox4x32-10, which dropout draws from: Salmon, Moraes, Dror, Shaw 2011. The four words of a block depend
 * on seed, offset and the block's number alone. Knows nothing of how they are used.
 */
struct philox_key {
    u32 seed_low, seed_high, offset_low, offset_high;
};

/* Seed and offset, from the device's memory: each replay of a graph reads them anew. */
__device__ __forceinline__ philox_key load_philox_key(const void *rng) {
    const chunk<16> c = load_chunk<16, 8>(rng);
    return {c.word[0], c.word[1], c.word[2], c.word[3]};
}

struct philox_words {
    u32 word[4];
};

__device__ __forceinline__ philox_words philox(const philox_key &key, u64 block) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = key.offset_low, d = key.offset_high;
    u32 k = key.seed_low, l = key.seed_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p = (u64)0xD2511F53u * a, q = (u64)0xCD9E8D57u * c;
        a = (u32)(q >> 32) ^ b ^ k;
        c = (u32)(p >> 32) ^ d ^ l;
        b = (u32)q;
        d = (u32)p;
        k += 0x9E3779B9u;
        l += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

/* Which of COUNT neighbouring elements, the first being number `index`, are kept: bit i for element i. `dropped`
 * is p * 2^32, rounded up. ALIGNED says that the number is a multiple of so many, 1, 2 or 4. */
template <int COUNT, int ALIGNED>
__device__ __forceinline__ u32 kept_elements(const philox_key &key, u64 index, u64 dropped) {
    constexpr int GROUP = least(COUNT, ALIGNED);
    u32 kept = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i += GROUP) {
        const philox_words w = philox(key, (index + i) / 4);
        const u32 place = (u32)(index + i) & 3;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            u32 word = w.word[j];
            if (GROUP == 2)
                word = place ? w.word[2 + j] : w.word[j];
            if (GROUP == 1)
                word = place & 2 ? place & 1 ? w.word[3] : w.word[2] : place & 1 ? w.word[1] : w.word[0];
            kept |= (u32)((u64)word >= dropped) << (i + j);
        }
    }
    return kept;
}
