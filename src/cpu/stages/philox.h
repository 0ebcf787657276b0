/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), counted as planish.h has it: which elements
 * dropout keeps. The scalar form, for single elements; runs of them are drawn by the kernels of
 * stages.
 */
#ifndef PLANISH_CPU_PHILOX_H
#define PLANISH_CPU_PHILOX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { PHILOX_ROUNDS = 10, PHILOX_WORDS = 4 };
#define PHILOX_FACTOR_0 0xd2511f53u
#define PHILOX_FACTOR_1 0xcd9e8d57u
#define PHILOX_STEP_0 0x9e3779b9u
#define PHILOX_STEP_1 0xbb67ae85u

/* What a mask is drawn from. */
typedef struct philox {
    uint64_t seed, offset;
    uint64_t least; /* a word from here on is kept: p * 2^32, rounded up; at most 2^32 */
} philox;

static inline philox philox_of(const uint64_t rng[2], double dropout_p) {
    return (philox){rng[0], rng[1], (uint64_t)ceil(dropout_p * 0x1p32)};
}

/* The four words of elements 4 * quad to 4 * quad + 3. */
static inline void philox_block(const philox *p, uint64_t quad, uint32_t words[PHILOX_WORDS]) {
    uint32_t c0 = (uint32_t)quad, c1 = (uint32_t)(quad >> 32);
    uint32_t c2 = (uint32_t)p->offset, c3 = (uint32_t)(p->offset >> 32);
    uint32_t k0 = (uint32_t)p->seed, k1 = (uint32_t)(p->seed >> 32);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        const uint64_t m0 = (uint64_t)PHILOX_FACTOR_0 * c0, m1 = (uint64_t)PHILOX_FACTOR_1 * c2;
        c0 = (uint32_t)(m1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)m1;
        c2 = (uint32_t)(m0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)m0;
        k0 += PHILOX_STEP_0;
        k1 += PHILOX_STEP_1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Whether element `index` stays. */
static inline bool philox_keeps(const philox *p, int64_t index) {
    uint32_t words[PHILOX_WORDS];
    philox_block(p, (uint64_t)index / PHILOX_WORDS, words);
    return words[index % PHILOX_WORDS] >= p->least;
}

/* What is kept is multiplied by this, in the compute type. */
static inline double philox_factor(double dropout_p) {
    return 1 / (1 - dropout_p);
}

#endif
