/* A part of vocabulary.cu: the elements of a chunk as numbers to compute with, and back. */

template <int TYPE> __device__ __forceinline__ real element(const u32 *word, int i) {
    if constexpr (TYPE == F32) {
        return __uint_as_float(word[i]);
    } else if constexpr (TYPE == F16) {
        float f;
        if (i & 1)
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}"
                : "=f"(f)
                : "r"(word[i / 2]));
        else
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}"
                : "=f"(f)
                : "r"(word[i / 2]));
        return f;
    } else if constexpr (TYPE == BF16) {
        return __uint_as_float(i & 1 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
    } else {
        return (real)__hiloint2double(word[2 * i + 1], word[2 * i]);
    }
}

/* f64 to the float from which rounding to 16 bits rounds once: toward zero, the last bit sticky. */
__device__ __forceinline__ float round_to_odd(double v) {
    float f = __double2float_rz(v);
    return (double)f != v && f == f ? __uint_as_float(__float_as_uint(f) | 1) : f;
}

__device__ __forceinline__ float before_halving(float v) { return v; }
__device__ __forceinline__ float before_halving(double v) { return round_to_odd(v); }

template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT * bytes_of(TYPE)> pack(const real *v) {
    chunk<COUNT * bytes_of(TYPE)> c;
    if constexpr (TYPE == F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            c.word[i] = __float_as_uint((float)v[i]);
    } else if constexpr (TYPE == F64) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 bits = __double_as_longlong((double)v[i]);
            c.word[2 * i] = (u32)bits;
            c.word[2 * i + 1] = (u32)(bits >> 32);
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            float low = before_halving(v[i]), high = i + 1 < COUNT ? before_halving(v[i + 1]) : 0.f;
            if constexpr (TYPE == F16)
                asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.word[i / 2]) : "f"(high), "f"(low));
            else
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(c.word[i / 2]) : "f"(high), "f"(low));
        }
    }
    return c;
}

/* The larger magnitudes of two pairs of f16, each half for itself; of NaN and a number this. */
__device__ __forceinline__ u32 larger_halves(u32 a, u32 b) {
    u32 larger;
    asm("{.reg .b32 x, y; abs.f16x2 x, %1; abs.f16x2 y, %2; max.f16x2 %0, x, y;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
    return larger;
}

template <int TYPE> __device__ __forceinline__ void store_element(void *base, i64 index, real v) {
    if constexpr (TYPE != NONE)
        store_chunk<bytes_of(TYPE), bytes_of(TYPE)>((char *)base + index * bytes_of(TYPE),
                                                    pack<TYPE, 1>(&v));
}

template <int TYPE> __device__ __forceinline__ real load_element(const void *base, i64 index) {
    constexpr int B = bytes_of(TYPE);
    return element<TYPE>(load_chunk<B, B>((const char *)base + index * B).word, 0);
}

/* A number of f64, which only that keeps whole. */
template <int TYPE> __device__ __forceinline__ void store_f64(void *address, double v) {
    if constexpr (TYPE == F64) {
        const u64 bits = (u64)__double_as_longlong(v);
        store_chunk<8, 8>(address, chunk<8>{{(u32)bits, (u32)(bits >> 32)}});
    } else {
        store_element<TYPE>(address, 0, (real)v);
    }
}

/* high + low, of which f64 keeps both. */
template <int TYPE>
__device__ __forceinline__ void store_pair(void *address, real high, real low) {
    if constexpr (TYPE == F64) {
        const u64 bits = (u64)__double_as_longlong((double)high + (double)low);
        store_chunk<8, 8>(address, chunk<8>{{(u32)bits, (u32)(bits >> 32)}});
    } else {
        store_element<TYPE>(address, 0, high + low);
    }
}
/* What a float leaves of an f64 number; nothing of others. */
template <int BYTES> __device__ __forceinline__ float rest_of(const chunk<BYTES> &c) {
    if constexpr (BYTES != 8) {
        return 0;
    } else {
        const double v = __hiloint2double((int)c.word[1], (int)c.word[0]);
        return (float)(v - (double)(float)v);
    }
}

/* Makes the compiler forget what it derived from a word (such as converted floats), so that it does
 * not keep that in registers and spill. `zero` must be 0 in a way it cannot know; the assembler sees
 * through an empty asm statement. */
__device__ __forceinline__ void forget(u32 &word, u32 zero) { word ^= zero; }

/* Whether one of four numbers is NaN, or one before them was (not 0). */
__device__ __forceinline__ u32 meets_nan(u32 before, float a, float b, float c, float d) {
    u32 met;
    asm("{.reg .pred p; setp.ne.u32 p, %1, 0; setp.nan.or.f32 p, %2, %3, p; setp.nan.or.f32 p, %4, %5, p; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(met)
        : "r"(before), "f"(a), "f"(b), "f"(c), "f"(d));
    return met;
}

/* Makes the compiler keep a number, not find it again from what it was derived from. */
__device__ __forceinline__ void keep(float &v) { asm volatile("" : "+f"(v)); }
__device__ __forceinline__ void keep(double &) {}
