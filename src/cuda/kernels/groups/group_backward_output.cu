/* A part of group_backward.cu: dx of a row, segment by segment, once its sums are there. */

/* The same part of the row that the block takes next, in memory, where there is one: its chunks take the place of those
 * that are done with. */
struct next_part {
    const char *x, *dy;

    __device__ __forceinline__ void ask(const row_place &r, int k) const {
        if (!x)
            return;
        copy_in<X_BYTES, X_ACCESS>(r.x + k * X_BYTES, x + (i64)k * X_BYTES, true);
        copy_in<DY_BYTES, DY_ACCESS>(r.dy + k * DY_BYTES, dy + (i64)k * DY_BYTES, true);
    }
};

/* dx of chunks [first, end) of the block's part; `dy`: in memory, for what is not kept of it. */
template <bool IS_KEPT>
__device__ __forceinline__ void write_segment(const row_place &r, const row_factors &f,
                                              const channel_affine &a, int first, int end,
                                              const char *dy, char *out, const next_part &next) {
    constexpr int B = WIDTH * bytes_of(DX_TYPE);
#pragma unroll 1
    for (int turn = first + OWN_TURNS * (threadIdx.x % WARP); turn < end; turn += WARP * AT_ONCE) {
        const int k = turn + !OWN_TURNS * (threadIdx.x % WARP);
        chunks_at_once at;
        load_chunks(r, k, end, at);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (k + WARP * j >= end)
                continue;
            if constexpr (KEPT_IF_HELD && !IS_KEPT)
                at.dy[j] = load_chunk<DY_BYTES, DY_ACCESS>(dy + (i64)(k + WARP * j) * DY_BYTES);
            float v[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float d = centred(r.of, element<X_TYPE>(at.x[j].word, i));
                const float g = element<DY_TYPE>(at.dy[j].word, i);
                v[i] = gradient_of(r.of, f, a, d, IS_KEPT ? g : gradient_of_norm(r.of, a, d, g));
            }
            store_chunk<B, DX_ACCESS>(out + (i64)(k + WARP * j) * B, pack<DX_TYPE, WIDTH>(v));
            if (ANYWHERE)
                next.ask(r, k + WARP * j);
        }
        if (COMES_IN_TURNS)
            copy_async_commit();
    }
}

/* With dsum, whose chunks a lane asks for several at once. Of narrow chunks it takes two neighbours as one: nothing is
 * summed here any more, and they are moved in fewer accesses. */
constexpr int WIDEST_BYTES = most(most(X_BYTES, DY_BYTES), most(DSUM_BYTES, OUT_BYTES));
constexpr int JOINED = CHUNKS % 2 == 0 && PIECE % 64 == 0 && 2 * WIDEST_BYTES <= 16 ? 2 : 1;

__device__ __forceinline__ void write_segment_with_dsum(const row_place &r, const row_factors &f,
                                                        const channel_affine &a, int first, int end,
                                                        const char *dsum, char *out, const next_part &next) {
    constexpr int COUNT = JOINED * WIDTH, OUT = COUNT * bytes_of(OUT_TYPE), DSUM = JOINED * DSUM_BYTES;
    constexpr int ASKED = DSUM < 16 ? 4 : ANYWHERE ? 1 : 2; /* one: what is asked for next takes registers */
#pragma unroll 1
    for (int k = first / JOINED + threadIdx.x % WARP; k < end / JOINED; k += WARP * ASKED) {
        chunk<DSUM> s[ASKED];
#pragma unroll
        for (int j = 0; j < ASKED; j++)
            if (k + WARP * j < end / JOINED)
                s[j] = load_chunk<DSUM, DSUM_ACCESS>(dsum + (i64)(k + WARP * j) * DSUM);
#pragma unroll
        for (int j = 0; j < ASKED; j++) {
            const int at = k + WARP * j;
            if (at >= end / JOINED)
                continue;
            const auto x = load_from_shared<JOINED * X_BYTES>(r.x + at * (JOINED * X_BYTES));
            const auto dy = load_from_shared<JOINED * DY_BYTES>(r.dy + at * (JOINED * DY_BYTES));
            float v[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const float d = centred(r.of, element<X_TYPE>(x.word, i));
                const float g = element<DY_TYPE>(dy.word, i);
                v[i] = gradient_of(r.of, f, a, d, KEPT ? g : gradient_of_norm(r.of, a, d, g));
                v[i] += element<DSUM_TYPE>(s[j].word, i);
            }
            store_chunk<OUT, OUT_ACCESS>(out + (i64)at * OUT, pack<OUT_TYPE, COUNT>(v));
            if (ANYWHERE)
#pragma unroll
                for (int n = 0; n < JOINED; n++)
                    next.ask(r, at * JOINED + n);
        }
    }
}

__device__ __forceinline__ void write_segments(const row_place &r, const float *sums, const common &c,
                                               const char *dy, const char *dsum, char *out, const next_part &next) {
    constexpr int ALL = PART * SEGMENTS;
    const row_factors f = factors_of(r.of, c);
#pragma unroll 1
    for (int s = threadIdx.x / WARP; s < ALL; s += WARPS) {
        int channel, first, end;
        segment_of(r, s, channel, first, end);
        const channel_affine a = r.affine_of(channel);
        if constexpr (HAS_DSUM)
            write_segment_with_dsum(r, f, a, first, end, dsum, out, next);
        else if (KEPT_IF_HELD && sums[2 * ALL + s] != 0)
            write_segment<true>(r, f, a, first, end, dy, out, next);
        else
            write_segment<KEPT>(r, f, a, first, end, dy, out, next);
    }
}
