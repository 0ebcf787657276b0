/*
 * Two vectors at once, in whatever order of their elements is quick for the type in memory:
 *
 *     pairs_T            1 where that is another order than one vector behind the other
 *     load_pair_T(p, v)  2 * L elements of type T
 *     store_pair_T(p, v)
 *
 * f32v's pairs are all in one order, so that weights of f32 meet rows of bf16; in_order(v) leads
 * from it to that of memory. A vec_*.h that has such an order defines F32V_PAIRS and provides it
 * with load_pair of f32 and bf16 and store_pair of bf16; this is what the others have.
 */
#ifndef PLANISH_CPU_VEC_PAIRS_H
#define PLANISH_CPU_VEC_PAIRS_H

#define PLAIN_LOAD(vec, lanes, type, ctype)                                                        \
    static inline void vec##_load_pair_##type(const ctype *p, vec v[2]) {                          \
        v[0] = vec##_load_##type(p);                                                               \
        v[1] = vec##_load_##type(p + (lanes));                                                     \
    }
#define PLAIN_STORE(vec, lanes, type, ctype)                                                       \
    static inline void vec##_store_pair_##type(ctype *p, const vec v[2]) {                         \
        vec##_store_##type(p, v[0]);                                                               \
        vec##_store_##type(p + (lanes), v[1]);                                                     \
    }

enum { f32v_pairs_f32 = 0, f32v_pairs_f16 = 0, f64v_pairs_f64 = 0 };
#if defined(F32V_PAIRS)
enum { f32v_pairs_bf16 = 1 };
#else
enum { f32v_pairs_bf16 = 0 };
static inline void f32v_in_order(f32v v[2]) {
    (void)v;
}
PLAIN_LOAD(f32v, F32V_LANES, f32, float)
PLAIN_LOAD(f32v, F32V_LANES, bf16, uint16_t)
PLAIN_STORE(f32v, F32V_LANES, bf16, uint16_t)
#endif
static inline void f64v_in_order(f64v v[2]) {
    (void)v;
}
/* Rows of these are not taken in pairs: their texts name a store all the same. */
PLAIN_STORE(f32v, F32V_LANES, f32, float)
PLAIN_LOAD(f32v, F32V_LANES, f16, uint16_t)
PLAIN_STORE(f32v, F32V_LANES, f16, uint16_t)
PLAIN_LOAD(f64v, F64V_LANES, f64, double)
PLAIN_STORE(f64v, F64V_LANES, f64, double)

#endif
