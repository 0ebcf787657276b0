/* A part of batch.cu: the output of a unit's steps. */

/* An element of y, or of dx. */
__device__ __forceinline__ real output_of(real x, real dy, const row_constants &c) {
    const real d = LAYER ? x - c.mean : x;
    if (!BACKWARD)
        return activated(normal_of(d, c));
    if (ACTIVE)
        dy = through_activation(dy, normal_of(d, c));
    return multiply_add(-d, c.c2, LAYER ? dy - c.c1 : dy) * c.scale;
}

__device__ __forceinline__ void put_step(const batch_args &args, char *out, u32 step, const chunk<X_BYTES> &x,
                                         const chunk<DY_BYTES> &dy, const row_constants *c) {
    real v[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        v[i] = output_of(element<X_TYPE>(x.word, i), BACKWARD ? element<DY_TYPE>(dy.word, i) : 0, c[LAST ? i : 0]);
    store_chunk<OUT_BYTES, OUT_ACCESS>(out + step_at<OUT_TYPE>(args, args.out_at, step), pack<OUT_TYPE, WIDTH>(v));
}

/* Those of a thread's steps from the `first`th on, AT_ONCE or those that there are. */
template <bool ALL>
__device__ __forceinline__ void put_steps(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                          u32 first, u32 count) {
    chunk<X_BYTES> x[AT_ONCE];
    chunk<DY_BYTES> dy[AT_ONCE];
    load_steps<ALL>(args, b, begin, first, count, x, dy);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        if (ALL || first + j < count)
            put_step(args, b.out, begin + (first + j) * PLANES, x[j], dy[j], c);
}

/* A thread's steps from its `first`th on, the last first: these were read last. */
__device__ __forceinline__ void put_back(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 first, u32 count) {
    u32 k = first + (count - first) / AT_ONCE * AT_ONCE;
    if (k < count)
        put_steps<false>(args, b, c, begin, k, count);
#pragma unroll 1
    for (; k > first; k -= AT_ONCE)
        put_steps<true>(args, b, c, begin, k - AT_ONCE, count);
}

/* COUNT numbers of what the moments' kernel left. */
template <int COUNT> __device__ __forceinline__ void load_reals(const real *from, real *v) {
    constexpr int TYPE = sizeof(real) == 8 ? F64 : F32, B = COUNT * (int)sizeof(real);
    const auto c = load_chunk<B, least(B, 16)>(from);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = element<TYPE>(c.word, i);
}

__device__ __forceinline__ void kept_constants(const batch_args &args, i64 row, row_constants *c) {
    const real *const from = (const real *)args.constants + row;
    real v[5][COLUMNS];
#pragma unroll
    for (int j = 0; j < 5; j++)
        if (BACKWARD || j < 3)
            load_reals<COLUMNS>(from + j * args.rows, v[j]);
        else
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                v[j][i] = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        c[i] = {v[0][i], v[1][i], v[2][i], v[3][i], v[4][i]};
}

__device__ __forceinline__ void put_unit(const batch_args &args, const unit_place &p) {
    row_constants c[COLUMNS];
    if (!p.active)
        return;
    if constexpr (GIVEN)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            c[i] = given_constants(args, number_of(args, p.row + i));
    else
        kept_constants(args, p.row, c);
    put_back(args, bases_of(args, p.row), c, p.begin + p.plane, 0, steps_of(p.begin, p.end, p.plane));
}
