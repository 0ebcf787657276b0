/* A part of channels.cu: how dsum, the gradient that comes by the residual stream, comes to the backward, which adds
 * it to dx before that is rounded: until then dx is of f32, which DX_TYPE says; what is written is dresidual's dtype.
 * It waits nowhere but in the L2 and, for a few lines at a time, in registers. */
constexpr bool HAS_DSUM = !FORWARD && DSUM_TYPE != NONE;
constexpr int WRITTEN_TYPE = HAS_DSUM ? TYPES[ROLE_DRESIDUAL] : DX_TYPE;
constexpr int WRITTEN_ACCESS = HAS_DSUM ? ACCESSES[ROLE_DRESIDUAL] : DX_ACCESS;
constexpr bool DSUM_WIDE = WIDTH * bytes_of(DSUM_TYPE) > 8;
constexpr int DSUM_LINES = CROWDED || (DSUM_WIDE && EACH > 12) ? 1 : DSUM_WIDE || LINE_CHANNELS > 1 ? 2 : 4;

/* Where a tile of it begins in its first image. */
__device__ __forceinline__ const char *dsum_tile(const channels_args &args, const place &p) {
    return (const char *)args.dsum + p.image * args.dsum_image + element_of_tile(p) * bytes_of(DSUM_TYPE);
}

/* Asks for a tile of it to be brought to the L2, but for what lies in the next image. */
__device__ __forceinline__ void prefetch_dsum(const channels_args &args, const place &p) {
    constexpr int B = bytes_of(DSUM_TYPE);
    const char *from = dsum_tile(args, p);
    if constexpr (FLAT) {
        prefetch_run(from, p.channels * PIXELS * B, threadIdx.x, THREADS);
    } else {
        const int bytes = least(p.pixels, PIXELS - p.first_pixel) * B;
        for (int channel = threadIdx.x; channel < p.channels; channel += THREADS)
            prefetch_run(from + (i64)channel * (PIXELS * B), bytes);
    }
}

/* A thread's next lines of it. */
struct dsum_lines {
    const char *first; /* line */
    chunk<WIDTH * bytes_of(DSUM_TYPE)> held[DSUM_LINES];

    __device__ __forceinline__ dsum_lines(const channels_args &args, const place &p) {
        first = !HAS_DSUM ? nullptr
                          : dsum_tile(args, p) + first_line<DSUM_TYPE>(p) +
                                in_next_image(p, p.lane * WIDTH, args.dsum_image, PIXELS * bytes_of(DSUM_TYPE));
    }
    /* Asks for line e and those behind it, before `end`. */
    __device__ __forceinline__ void ask(const place &p, int e, int end) {
        constexpr int B = bytes_of(DSUM_TYPE);
#pragma unroll
        for (int j = 0; j < DSUM_LINES; j++) {
            int line;
            if (e + j >= end || e + j >= EACH || !line_of(p, e + j, line))
                continue;
            const char *from = first + next_lines<DSUM_TYPE>(e + j);
            if (is_there(p, WIDTH - 1))
                held[j] = load_chunk<WIDTH * B, DSUM_ACCESS>(from);
            else if constexpr (SHIFTED)
                held[j].word[0] = load_chunk<B, B>(from).word[0];
        }
    }
};
