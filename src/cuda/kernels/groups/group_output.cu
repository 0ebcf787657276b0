/* A part of groups.cu: of two reads, the output. */

/* What an element's output needs of its row. */
struct row_common {
    float mean, rest, rstd;
    float a, b; /* backward: c2, delta * c2 - c1 */
};

__device__ __forceinline__ row_common common_of_row(const groups_args &args, i64 row) {
    const float *from = args.moments + row * 8;
    if (FORWARD)
        return {from[0], from[1], from[2], 0, 0};
    return {from[3], from[5], from[4], from[1],
            CORRECT ? multiply_add(from[2], from[1], -from[0]) : -from[0]};
}

__device__ __forceinline__ float output_of(float x, float dy, const row_common &c, float w, float b) {
    x = less_mean(x, c.mean, c.rest) * c.rstd;
    if (FORWARD)
        return epilogue(x, w, b);
    dy = gradient_behind(dy, x, w, b);
    const float g = WEIGHTED ? dy * w : dy;
    return (multiply_add(-x, c.a, g) + (LAYER ? c.b : 0)) * c.rstd;
}

__device__ __forceinline__ void apply_pieces(const groups_args &args, const piece_place &p) {
    constexpr int ROWS = SAME ? 1 : WIDTH, WEIGHTS = LAST ? WIDTH : 1, AT_ONCE = 4;
    const int step = LAST ? PLANES : WARP * WIDTH;
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
    const char *dsum = HAS_DSUM ? (const char *)args.dsum + p.image * args.dsum_image : nullptr;
    char *out = (char *)args.out + p.image * args.out_image;
    row_common c[ROWS];
    float w[WEIGHTS], b[WEIGHTS];
    if (!p.active)
        return;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        c[i] = common_of_row(args, p.image * GROUPS + (p.channel + i) / DEPTH);
#pragma unroll
    for (int i = 0; i < WEIGHTS; i++) {
        w[i] = weight_of(args, p.channel + i);
        b[i] = bias_of(args, p.channel + i);
    }
#pragma unroll 1
    for (int pixel = p.first_pixel + (LAST ? p.plane : p.lane * WIDTH); pixel < p.end;
         pixel += AT_ONCE * step) {
        chunk<X_BYTES> cx[AT_ONCE];
        chunk<DY_BYTES> cg[AT_ONCE];
        chunk<DSUM_BYTES> cs[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = pixel + j * step;
            if (at >= p.end)
                continue;
            cx[j] = load_chunk<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, at));
            if constexpr (!FORWARD)
                cg[j] = load_chunk<DY_BYTES, DY_ACCESS>(dy + byte_of<DY_TYPE>(p.channel, at));
            if constexpr (HAS_DSUM)
                cs[j] = load_chunk<DSUM_BYTES, DSUM_ACCESS>(dsum + byte_of<DSUM_TYPE>(p.channel, at));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = pixel + j * step;
            if (at >= p.end)
                continue;
            float v[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                v[i] = output_of(element<X_TYPE>(cx[j].word, i),
                                 FORWARD ? 0 : element<DY_TYPE>(cg[j].word, i), c[SAME ? 0 : i],
                                 w[LAST ? i : 0], b[LAST ? i : 0]);
                if constexpr (HAS_DSUM)
                    v[i] += element<DSUM_TYPE>(cs[j].word, i);
            }
            store_chunk<OUT_BYTES, OUT_ACCESS>(out + byte_of<OUT_TYPE>(p.channel, at),
                                               pack<OUT_TYPE, WIDTH>(v));
        }
    }
}
