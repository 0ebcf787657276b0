/* Dropout of elements that follow each other in its order; part of cpu/stages/kernels_stages.c. */

/* Blocks drawn at once. */
enum { QUADS = 64 };

/* The words of some blocks from `quad` on, one block behind the other: of `quads`, and of what
 * fills the last vectors up. A round's words are what is low in a vector's words. */
static void NAME(draw)(const philox *p, uint64_t quad, int quads, uint32_t *restrict words) {
    enum { VECTORS = 2, STEP = VECTORS * U64V_LANES }; /* a multiplication waits for the last one */
    const u64v factor_0 = u64v_set1(PHILOX_FACTOR_0), factor_1 = u64v_set1(PHILOX_FACTOR_1);
    for (int i = 0; i < quads; i += STEP) {
        u64v c0[VECTORS], c1[VECTORS], c2[VECTORS], c3[VECTORS];
        uint32_t k0 = (uint32_t)p->seed, k1 = (uint32_t)(p->seed >> 32);
        for (int v = 0; v < VECTORS; v++) {
            c0[v] = u64v_from(quad + (uint64_t)(i + v * U64V_LANES));
            c1[v] = u64v_high(c0[v]);
            c2[v] = u64v_set1(p->offset);
            c3[v] = u64v_set1(p->offset >> 32);
        }
        _Pragma("GCC unroll 10") for (int round = 0; round < PHILOX_ROUNDS; round++) {
            const u64v key_0 = u64v_set1(k0), key_1 = u64v_set1(k1);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const u64v m0 = u64v_mul_low(c0[v], factor_0), m1 = u64v_mul_low(c2[v], factor_1);
                c0[v] = u64v_xor3(u64v_high(m1), c1[v], key_0);
                c1[v] = m1;
                c2[v] = u64v_xor3(u64v_high(m0), c3[v], key_1);
                c3[v] = m0;
            }
            k0 += PHILOX_STEP_0;
            k1 += PHILOX_STEP_1;
        }
        for (int v = 0; v < VECTORS; v++)
            u64v_store_low4(words + (i + v * U64V_LANES) * PHILOX_WORDS, c0[v], c1[v], c2[v],
                            c3[v]);
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
