/*
 * A part of general.cu and of ../stages/stages_general.cu and stages_general_backward.cu: where elements lie, by
 * two lists of axes, outer ones and inner ones. The text that includes it names its arguments axes_args, and counts
 * its tensors up to ROLES; one of them may be the number of an element, whose strides are in elements.
 */

/* Quotient and remainder, in 32 bits where that does. */
__device__ __forceinline__ i64 divide(i64 a, i64 b, i64 &rest) {
    if (((a | b) >> 32) == 0) {
        u32 q = (u32)a / (u32)b;
        rest = (u32)a - q * (u32)b;
        return q;
    }
    i64 q = a / b;
    rest = a - q * b;
    return q;
}

/* Bytes from the start of each tensor. */
struct place {
    i64 at[ROLES];
};

/* Adds the place of `index` in the list of `count` axes from `first` on. */
__device__ __forceinline__ place moved(const axes_args &args, place p, int first, int count, i64 index) {
    for (int k = first + count - 1; k >= first; k--) {
        i64 here = index;
        if (k > first)
            index = divide(index, args.axis[k].size, here);
#pragma unroll
        for (int r = 0; r < ROLES; r++)
            p.at[r] += here * args.axis[k].stride[r];
    }
    return p;
}

__device__ __forceinline__ place outer_place(const axes_args &args, i64 index) {
    place origin;
#pragma unroll
    for (int r = 0; r < ROLES; r++)
        origin.at[r] = 0;
    return moved(args, origin, 0, args.outer, index);
}

__device__ __forceinline__ place inner_place(const axes_args &args, const place &p, i64 index) {
    return moved(args, p, args.outer, args.inner, index);
}

/* An element of a tensor of this dtype; `absent` where that is NONE. Not by the read-only path: an output may be the
 * input itself. */
template <int TYPE>
__device__ __forceinline__ double read(const axes_args &args, const place &p, int role, double absent = 0) {
    if constexpr (TYPE == NONE) {
        return absent;
    } else {
        constexpr int B = bytes_of(TYPE);
        return element<TYPE>(load_chunk<B, B>((const char *)args.data[role] + p.at[role]).word, 0);
    }
}

template <int TYPE> __device__ __forceinline__ void write(const axes_args &args, const place &p, int role, double v) {
    if constexpr (TYPE != NONE)
        store_element<TYPE>((char *)args.data[role] + p.at[role], 0, v);
}
