/*
 * Words that the texts of all kernels are written in. They are macros: what they stand for follows
 * the parameters set where a text is included (VEC, REAL_TOKEN; cpu/rows/rows.h,
 * cpu/channels/channels.h).
 */
#ifndef PLANISH_CPU_WORDS_H
#define PLANISH_CPU_WORDS_H

/* V(add) is f32v_add or f64v_add; V_TYPED(VEC, load, f16) is f32v_load_f16. */
#define V_(vec, f) vec##_##f
#define V__(vec, f) V_(vec, f)
#define V(f) V__(VEC, f)
#define V_TYPED_(vec, f, type) vec##_##f##_##type
#define V_TYPED(vec, f, type) V_TYPED_(vec, f, type)

/* Vectors of the compute type. */
#define LOAD_REAL(p) V_TYPED(VEC, load, REAL_TOKEN)(p)
#define LOAD_REAL_PART(p, n) V_TYPED(VEC, load_part, REAL_TOKEN)(p, n)
#define LOAD_REAL_PAIR(p, v) V_TYPED(VEC, load_pair, REAL_TOKEN)(p, v)
#define STORE_REAL(p, v) V_TYPED(VEC, store, REAL_TOKEN)(p, v)
#define STORE_REAL_PART(p, v, n) V_TYPED(VEC, store_part, REAL_TOKEN)(p, v, n)

/* Vectors held in an array stay in registers only where the loop over it is gone; and what is a
 * constant where a text is called (rms, a number of rows) is one in the machine code only where the
 * text is in line. */
#if defined(VEC_SMALL_TEXT)
#define UNROLL
#define INLINE static inline
#else
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))
#endif
#define OUTLINE static __attribute__((noinline, unused))
/* Nor copied for arguments that are constants: what is called once for some rows. */
#if defined(__clang__)
#define ONE_COPY OUTLINE
#else
#define ONE_COPY static __attribute__((noinline, noclone, unused))
#endif

#endif
