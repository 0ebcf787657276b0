/*
 * The words of CUDA C that the kernels use, for the host. Comes before the vocabulary; what the
 * vocabulary says in PTX is in instructions.hpp, which comes after it.
 */
#include <math.h>
#include <string.h>

#include "device.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

#define threadIdx (emulation_now->thread)
#define blockIdx (emulation_now->block)
#define blockDim (emulation_now->block_size)
#define gridDim (emulation_now->grid)

static inline float __uint_as_float(unsigned v) {
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned v;
    memcpy(&v, &f, sizeof v);
    return v;
}
static inline long long __double_as_longlong(double d) {
    long long v;
    memcpy(&v, &d, sizeof v);
    return v;
}
static inline double __hiloint2double(int high, int low) {
    unsigned long long v = (unsigned long long)(unsigned)high << 32 | (unsigned)low;
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
}
static inline float __double2float_rz(double d) {
    float f = (float)d;
    return fabs((double)f) > fabs(d) ? nextafterf(f, 0.f) : f;
}
static inline float normcdff(float z) { return (float)(.5 * erfc(-(double)z * 0.70710678118654752440)); }
static inline double normcdf(double z) {
    return (double)(.5L * erfcl(-(long double)z * 0.70710678118654752440L));
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
static inline size_t __cvta_generic_to_shared(const void *p) { return emulation_address(p); }

static inline void __syncthreads() { emulation_barrier(0, blockDim.x); }

static inline void emulation_whole_warp(unsigned mask) {
    if (mask != 0xffffffffu)
        emulation_fail("a warp instruction for the lanes %x: wanted all", mask);
}
template <typename T>
static inline T emulation_shuffle(const char *what, unsigned mask, T v, int from) {
    T other;
    emulation_whole_warp(mask);
    emulation_exchange(what, &v, &other, sizeof v, from);
    return other;
}
static inline int emulation_lane() { return (int)(threadIdx.x % 32); }
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int lane) {
    return emulation_shuffle("shfl", mask, v, lane & 31);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits) {
    return emulation_shuffle("shfl.xor", mask, v, (emulation_lane() ^ bits) & 31);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, int by) {
    int from = emulation_lane() + by;
    return emulation_shuffle("shfl.down", mask, v, from < 32 ? from : emulation_lane());
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, int by) {
    int from = emulation_lane() - by;
    return emulation_shuffle("shfl.up", mask, v, from >= 0 ? from : emulation_lane());
}
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    emulation_whole_warp(mask);
    return emulation_ballot("ballot", vote != 0);
}
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { (void)__ballot_sync(mask, 0); }
static inline void __threadfence() { emulation_pause(); }
