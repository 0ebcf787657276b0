/* Division by what arguments/divisor.h has, as a multiplication. Included by what divides so. */
__device__ __forceinline__ i64 quotient_of(const divisor &d, i64 number) {
    return (u32)((u64)(u32)number * d.multiplier >> 32) >> d.shift;
}
