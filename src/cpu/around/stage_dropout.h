/* Dropout of elements that follow each other in its order; part of cpu/around/kernels_stages.c. */

/* Blocks drawn at once. */
enum { QUADS = 64 };

/* The words of the `quads` blocks from `quad` on, one block behind the other. */
static void NAME(draw)(const philox *p, uint64_t quad, int quads, uint32_t *restrict words) {
    const uint32_t low = (uint32_t)quad, high = (uint32_t)(quad >> 32);
    const uint32_t offset_low = (uint32_t)p->offset, offset_high = (uint32_t)(p->offset >> 32);
    const uint32_t seed_low = (uint32_t)p->seed, seed_high = (uint32_t)(p->seed >> 32);
    for (int i = 0; i < quads; i++) {
        uint32_t c0 = low + (uint32_t)i, c1 = high + (c0 < low), c2 = offset_low, c3 = offset_high;
        uint32_t k0 = seed_low, k1 = seed_high;
        _Pragma("GCC unroll 10") for (int round = 0; round < PHILOX_ROUNDS; round++) {
            const uint64_t m0 = (uint64_t)PHILOX_FACTOR_0 * c0, m1 = (uint64_t)PHILOX_FACTOR_1 * c2;
            c0 = (uint32_t)(m1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)m1;
            c2 = (uint32_t)(m0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)m0;
            k0 += PHILOX_STEP_0;
            k1 += PHILOX_STEP_1;
        }
        words[4 * i] = c0;
        words[4 * i + 1] = c1;
        words[4 * i + 2] = c2;
        words[4 * i + 3] = c3;
    }
}

/* What is dropped is 0, whatever it was. */
static void NAME(keep_words)(REAL *restrict u, const uint32_t *restrict words, uint32_t least,
                             REAL factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const REAL kept = u[i] * factor;
        u[i] = words[i] >= least ? kept : 0;
    }
}

static void NAME(drop)(void *elements, uint8_t *mask, const philox *p, int64_t index, double factor,
                       int64_t n) {
    REAL *const u = elements;
    uint32_t words[PHILOX_WORDS * QUADS];
    /* Of a probability that is as good as 1 no word is enough. */
    const uint32_t least = p->least > UINT32_MAX ? UINT32_MAX : (uint32_t)p->least;
    const bool none = p->least > UINT32_MAX;
    for (int64_t at = 0; at < n;) {
        const int64_t quad = (index + at) / PHILOX_WORDS, skip = (index + at) % PHILOX_WORDS;
        const int64_t room = (int64_t)PHILOX_WORDS * QUADS - skip;
        const int64_t count = n - at < room ? n - at : room;
        NAME(draw)(p, (uint64_t)quad, (int)((skip + count + PHILOX_WORDS - 1) / PHILOX_WORDS),
                   words);
        for (int i = 0; none && i < PHILOX_WORDS * QUADS; i++)
            words[i] = 0;
        NAME(keep_words)(u + at, words + skip, least, (REAL)factor, count);
        for (int64_t i = 0; mask && i < count; i++)
            mask[at + i] = words[skip + i] >= least;
        at += count;
    }
}
