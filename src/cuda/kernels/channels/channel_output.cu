/* A part of channels.cu: the forward's output of a tile whose moments are there. */

/* Of moments: the mean, what its rest adds to xhat, rstd. */
__device__ __forceinline__ float normalized(float x, const four_floats &m) {
    return LAYER ? multiply_add(x - m.x, m.z, m.y) : x * m.z;
}

/* A thread's pixels of a line. */
struct pixels_of_line {
    typedef chunk<WIDTH * bytes_of(X_TYPE)> line_chunk;
    __device__ __forceinline__ static bool there(int, const four_floats *) { return true; }
    __device__ __forceinline__ static line_chunk take(const place &p, int, int line, const four_floats *) {
        return elements_of<X_TYPE>(p, X_AT, line);
    }
    __device__ __forceinline__ static float xhat(const line_chunk &c, int i, int, int,
                                                 const four_floats *m) {
        return normalized(element<X_TYPE>(c.word, i), m[i]);
    }
};

/* The weights of a line's channels, read behind its pixels. */
struct weights_of_line {
    __device__ __forceinline__ static void take(const channels_args &, const place &, int, int, float *,
                                                float *) {}
    __device__ __forceinline__ static void take_in(const channels_args &, const place &p, int, int line,
                                                   float *scale, float *offset, const four_floats *) {
        const of_channels<WEIGHTED> w(p, p.weight, line);
        const of_channels<BIASED> b(p, p.bias, line);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            scale[i] = w.at(p, i);
            offset[i] = b.at(p, i);
        }
    }
};

/* A line of the output in x's own layout, in memory or (OUT_THROUGH_SHARED) in the place of x. */
struct y_in_line {
    __device__ __forceinline__ static bool has(const place &, int) { return true; }
    __device__ __forceinline__ static void put(const channels_args &, const place &p, char *out, int,
                                               int line, const float *v) {
        const auto y = pack<Y_TYPE, WIDTH>(v);
        if constexpr (OUT_THROUGH_SHARED)
            hold_output<Y_TYPE>(p, line, y);
        else
            write_output<Y_TYPE, Y_ACCESS>(p, out, y);
    }
};

/* `out`: of the thread's first line. */
__device__ __forceinline__ void write_channels(const channels_args &args, const place &p, char *out) {
    four_floats m[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        m[i] = p.moments[pixel_of(p, i)];
#pragma unroll 8
    for (int e = 0; e < EACH; e++) {
        int line;
        if (line_of(p, e, line))
            chunk_output<pixels_of_line, weights_of_line, y_in_line, 1, WIDTH>(
                args, p, 0, out + next_lines<Y_TYPE>(e), line, m);
    }
}

/* Neighbouring pixels of a thread that writes channels side by side: a channel's come by one read of shared
 * memory, and its weight serves both. */
constexpr int NEAR = TILE_PIXELS % 2 ? 1 : 2;

/* COUNT neighbouring channels' numbers. */
template <int COUNT> __device__ __forceinline__ chunk<COUNT * 4> numbers_of(const float *first) {
    return load_from_shared<COUNT * 4>(shared_address(first));
}

/* The output with the channels of a pixel side by side: in a warp 8 neighbourhoods of pixels by 4 chunks of
 * channels. */
__device__ __forceinline__ void write_pixels(const channels_args &args, const place &p, char *out) {
    constexpr int B = bytes_of(Y_TYPE), XB = bytes_of(X_TYPE);
    constexpr int QUADS = ceil_div(ceil_div(DEPTH, CHUNK), 4), OCTETS = ceil_div(TILE_PIXELS, 8 * NEAR);
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int i = threadIdx.x / WARP; i < QUADS * OCTETS; i += WARPS) {
        const int channel = (i % QUADS * 4 + lane % 4) * CHUNK, pixel = (i / QUADS * 8 + lane / 4) * NEAR;
        if (channel >= p.channels || pixel >= p.pixels)
            continue;
        four_floats m[NEAR];
#pragma unroll
        for (int n = 0; n < NEAR; n++)
            m[n] = p.moments[pixel + n];
        chunk<CHUNK * 4> weight = {}, bias = {};
        if constexpr (WEIGHTED)
            weight = numbers_of<CHUNK>(p.weight + channel);
        if constexpr (BIASED)
            bias = numbers_of<CHUNK>(p.bias + channel);
        float v[NEAR][CHUNK];
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const u32 at = channel_at<XB>(channel + j) + place_of_byte(channel, pixel * XB);
            const auto c = load_from_shared<NEAR * XB>(p.room + X_AT + at);
#pragma unroll
            for (int n = 0; n < NEAR; n++)
                v[n][j] = epilogue(normalized(element<X_TYPE>(c.word, n), m[n]),
                                   __uint_as_float(weight.word[j]), __uint_as_float(bias.word[j]));
        }
#pragma unroll
        for (int n = 0; n < NEAR; n++)
            if (pixel + n < p.pixels)
                store_chunk<CHUNK * B, CHUNK * B>(out + ((i64)(pixel + n) * COLS + channel) * B,
                                                  pack<Y_TYPE, CHUNK>(v[n]));
    }
}
