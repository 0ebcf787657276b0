/* A part of batch.cu: the output of a unit's steps. */

/* An element of dx. */
__device__ __forceinline__ real dx_of(real g, real d, const row_constants &c) {
    if (MEANS_GIVEN)
        return multiply_add(-d, c.c2, multiply_add(g, c.weight, LAYER ? -c.c1 : 0)) * c.rstd;
    if (FROZEN)
        return g * c.scale;
    return multiply_add(-d, c.c2, LAYER ? g - c.c1 : g) * c.scale;
}

template <int TYPE, int BYTES, int ACCESS>
__device__ __forceinline__ void put(const batch_args &args, char *base, const batch_tensor &t, u32 step,
                                    const real *v) {
    store_chunk<BYTES, ACCESS>(base + step_at<TYPE>(args, t, step), pack<TYPE, WIDTH>(v));
}

__device__ __forceinline__ void put_step(const batch_args &args, const row_bases &b, u32 step, const step_chunks &s,
                                         const row_constants *c) {
    real v[WIDTH], g[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const row_constants &of = c[BY_PLACE ? i : 0];
        const real x = element<X_TYPE>(s.x.word, i), d = LAYER ? x - of.mean : x;
        if constexpr (BACKWARD) {
            g[i] = element<DY_TYPE>(s.dy.word, i);
            if constexpr (!LEAVES_GRADIENT)
                g[i] = gradient_of(g[i], d, beside_of(s, i), of);
            v[i] = dx_of(g[i], d, of);
        } else {
            v[i] = activated(HAS_BESIDE ? normal_of(d, of) + beside_of(s, i) : normal_of(d, of));
        }
    }
    if constexpr (OUT_TYPE != NONE)
        put<OUT_TYPE, OUT_BYTES, OUT_ACCESS>(args, b.out, args.out, step, v);
    if constexpr (DADDEND_TYPE != NONE && !LEAVES_GRADIENT)
        put<DADDEND_TYPE, DADDEND_BYTES, DADDEND_ACCESS>(args, b.daddend, args.daddend, step, g);
}

/* Those of a thread's steps from the `first`th on, AT_ONCE or those that there are; then come those before them down to
 * the `lowest`th. */
template <bool ALL>
__device__ __forceinline__ void put_steps(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                          u32 first, u32 count, u32 lowest) {
    step_chunks s[AT_ONCE];
    load_steps<ALL, false>(args, b, begin, first, count, s);
    if (first > lowest)
        ask_for_steps<false>(args, b, begin, first - AT_ONCE, first);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        if (ALL || first + j < count)
            put_step(args, b, begin + (first + j) * PLANES, s[j], c);
}

/* A thread's steps from its `first`th on, the last first: these were read last. */
__device__ __forceinline__ void put_back(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 first, u32 count) {
    u32 k = first + (count - first) / AT_ONCE * AT_ONCE;
    if (k < count)
        put_steps<false>(args, b, c, begin, k, count, first);
#pragma unroll 1
    for (; k > first; k -= AT_ONCE)
        put_steps<true>(args, b, c, begin, k - AT_ONCE, count, first);
}

/* COUNT numbers of what the moments' kernel left. */
template <int COUNT> __device__ __forceinline__ void load_reals(const real *from, real *v) {
    constexpr int TYPE = sizeof(real) == 8 ? F64 : F32, B = COUNT * (int)sizeof(real);
    const auto c = load_chunk<B, least(B, 16)>(from);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = element<TYPE>(c.word, i);
}

/* Number `which` of those of COLUMNS rows, where it is wanted. */
template <bool WANTED>
__device__ __forceinline__ void kept_numbers(const batch_args &args, i64 row, int which, real *v) {
    if constexpr (WANTED)
        load_reals<COLUMNS>((const real *)args.constants + which * args.rows + row, v);
    else
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            v[i] = 0;
}

__device__ __forceinline__ void kept_constants(const batch_args &args, i64 row, row_constants *c) {
    real v[7][COLUMNS];
    kept_numbers<LAYER>(args, row, 0, v[0]);
    kept_numbers<!MEANS_GIVEN || NEEDS_Z>(args, row, 1, v[1]);
    kept_numbers<!BACKWARD || NEEDS_Z>(args, row, 2, v[2]);
    kept_numbers<BACKWARD && !FROZEN && LAYER>(args, row, 3, v[3]);
    kept_numbers<BACKWARD && !FROZEN>(args, row, 4, v[4]);
    kept_numbers<MEANS_GIVEN>(args, row, 5, v[5]);
    kept_numbers<MEANS_GIVEN>(args, row, 6, v[6]);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        c[i] = {v[0][i], v[1][i], v[2][i], v[3][i], v[4][i], v[5][i], v[6][i]};
}

__device__ __forceinline__ void put_unit(const batch_args &args, const unit_place &p) {
    row_constants c[COLUMNS];
    if (!p.active)
        return;
    if constexpr (SLAB) {
        const u32 count = steps_of(p.begin, p.end, p.plane);
        prefetch_steps(args, bases_of(args, p.row), p.begin + p.plane, count - least_of(AT_ONCE, count), count);
    }
    if constexpr (ALONE)
        given_columns(args, p.row, c);
    else
        kept_constants(args, p.row, c);
    put_back(args, bases_of(args, p.row), c, p.begin + p.plane, 0, steps_of(p.begin, p.end, p.plane));
}
