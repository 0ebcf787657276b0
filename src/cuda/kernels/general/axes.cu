/*
 * A part of general_forward.cu, general_backward.cu and general_finish.cu: where elements lie, by two lists of axes,
 * and sums over the threads that share an outer index.
 *
 * Outer axes, an index of which names what a kernel's head says, and inner ones, which are summed over. LANES
 * neighbouring threads take neighbouring outer indices, 1 or WARP of them, and the SLICES slices of a block take
 * every SLICES-th inner index; so whichever list has the stride of 1 can be read in one piece.
 *
 * Constants: LANES SLICES WARPS WEIGHT_OFFSET, and TYPES of every tensor.
 */
#include "../arguments/general_args.h"

typedef general_args axes_args;
constexpr int THREADS = WARPS * WARP;

/* ---- Tensors ---------------------------------------------------------------------------------- */

/* Which of the arguments' tensors a role's is: those that are there are counted. */
template <int ROLE> struct slot {
    static constexpr int AT = slot<ROLE - 1>::AT + (TYPES[ROLE - 1] != NONE);
};
template <> struct slot<0> {
    static constexpr int AT = 0;
};
enum { ROW = slot<ROLE_COUNT>::AT, INDEX, TENSORS };

/* Bytes from the start of each tensor. */
struct place {
    i64 at[TENSORS];
};

/* A tensor that is there, and its element at a place. */
template <int ROLE> __device__ __forceinline__ char *tensor(const axes_args &args) {
    return (char *)args.data[slot<ROLE>::AT];
}
template <int ROLE> __device__ __forceinline__ char *address(const axes_args &args, const place &p) {
    return tensor<ROLE>(args) + p.at[slot<ROLE>::AT];
}

/* An element; `absent` where the tensor is not there. Not by the read-only path: an output may be the input itself. */
template <int ROLE> __device__ __forceinline__ double read(const axes_args &args, const place &p, double absent = 0) {
    constexpr int TYPE = TYPES[ROLE];
    if constexpr (TYPE == NONE) {
        return absent;
    } else {
        constexpr int B = bytes_of(TYPE);
        return element<TYPE>(load_chunk<B, B>(address<ROLE>(args, p)).word, 0);
    }
}

template <int ROLE> __device__ __forceinline__ void write(const axes_args &args, const place &p, double v) {
    if constexpr (TYPES[ROLE] != NONE)
        store_element<TYPES[ROLE]>(address<ROLE>(args, p), 0, v);
}

__device__ __forceinline__ double weight_at(const axes_args &args, const place &p) {
    const double w = read<ROLE_WEIGHT>(args, p, 1);
    return WEIGHT_TYPE != NONE && WEIGHT_OFFSET ? w + WEIGHT_OFFSET : w; /* adding 0 would change -0 */
}

/* ---- Places ----------------------------------------------------------------------------------- */

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

/* Adds the place of `index` in the list of `count` axes from `first` on. */
__device__ __forceinline__ place moved(const axes_args &args, place p, int first, int count, i64 index) {
    for (int k = first + count - 1; k >= first; k--) {
        i64 here = index;
        if (k > first)
            index = divide(index, args.axis[k].size, here);
#pragma unroll
        for (int r = 0; r < TENSORS; r++)
            p.at[r] += here * args.axis[k].stride[r];
    }
    return p;
}

__device__ __forceinline__ place outer_place(const axes_args &args, i64 index) {
    place origin;
#pragma unroll
    for (int r = 0; r < TENSORS; r++)
        origin.at[r] = 0;
    return moved(args, origin, 0, args.outer, index);
}

__device__ __forceinline__ place inner_place(const axes_args &args, const place &p, i64 index) {
    return moved(args, p, args.outer, args.inner, index);
}

/* ---- Sums ------------------------------------------------------------------------------------- */

/* A thread and the outer index that it works at. */
struct thread_of_axes {
    bool there;
    int slice;
    place at;
};

/* That of index first + the thread's lane. */
__device__ __forceinline__ thread_of_axes thread_at(const axes_args &args, i64 first) {
    const i64 index = first + threadIdx.x % LANES;
    thread_of_axes t;
    t.there = index < args.outer_size;
    t.slice = threadIdx.x / LANES;
    t.at = outer_place(args, t.there ? index : 0);
    return t;
}

/* Sums over the slices of a block, or with MOST the largest; all threads of a lane get them. A tree in shared
 * memory: the order is fixed. */
template <int COUNT, bool MOST = false>
__device__ __forceinline__ void over_slices(double (*room)[THREADS], double *v) {
    const int slice = threadIdx.x / LANES;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        room[j][threadIdx.x] = v[j];
    __syncthreads();
    for (int half = SLICES / 2; half > 0; half /= 2) {
        if (slice < half)
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                const double a = room[j][threadIdx.x], b = room[j][threadIdx.x + half * LANES];
                room[j][threadIdx.x] = MOST ? fmax(a, b) : a + b;
            }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = room[j][threadIdx.x % LANES];
    __syncthreads();
}
