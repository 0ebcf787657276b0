/* A part of channels.cu: how a tile comes to shared memory, and what is held there goes. */

/* Brings the channels of a tile whose threads each have a place in every STEP-th of them, of TURNS. */
template <int B, int A, int STEP, int TURNS>
__device__ __forceinline__ void fill_channels(const place &p, u32 to, const char *from, i64 image) {
    const int channel = threadIdx.x / (THREADS / STEP), byte = threadIdx.x % (THREADS / STEP) * A;
    if (byte >= p.pixels * B)
        return;
    to += channel_at<B>(channel);
    from += (i64)channel * (PIXELS * B) + byte + in_next_image(p, byte / B, image, PIXELS * B);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (turn < FEWEST / STEP || channel + turn * STEP < p.channels)
            copy_async<A, A>(to + place_of_byte(channel + turn * STEP, byte) + channel_at<B>(turn * STEP),
                             from + (i64)turn * (STEP * PIXELS * B), true);
}

/* Brings channels [begin, end) of a tile to shared memory: `from` is the first pixel of the block's
 * first channel, `image` bytes lie from image to image. Tiles of some pixels come whole. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void fill(const place &p, u32 to, const char *from, i64 image, int begin, int end) {
    constexpr int B = bytes_of(TYPE), A = least(ACCESS, 16), RUN = FLAT ? 1 : TILE_PIXELS * B / A;
    constexpr int STEP = THREADS / most(RUN, 1), TURNS = ceil_div(DEPTH, most(STEP, 1));
    constexpr bool EVEN = !FLAT && A >= 4 && RUN > 0 && STEP * RUN == THREADS && TURNS <= 16 &&
                          !(FORWARD && PIXELS * B % 2048 == 0); /* as measured, run 23 */
    if constexpr (SHIFTED) {
        fill_shifted(p, to, from);
        return;
    }
    if constexpr (EVEN) {
        fill_channels<B, A, STEP, TURNS>(p, to, from, image);
        return;
    }
    const int first = FLAT ? ceil_div(begin * PIXELS * B, A) : begin * RUN;
    const int last = FLAT ? ceil_div(end * PIXELS * B, A) : end * RUN;
    constexpr int AT_ONCE = A < 4 ? 8 : 1;
    constexpr int UNROLL = A < 4 || CROWDED ? 1 : !FLAT ? 4 : FORWARD || RING_SLOTS > 1 ? 1 : 2;
#pragma unroll(UNROLL)
    for (int i = first + threadIdx.x; i < last; i += AT_ONCE * THREADS) {
        chunk<2> held[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int n = i + j * THREADS, channel = FLAT ? 0 : n / RUN, byte = (n - channel * RUN) * A;
            const char *source = from + (i64)channel * (PIXELS * B) + byte +
                                 in_next_image(p, byte / B, image, PIXELS * B);
            const bool there = n < last && (FLAT || byte < p.pixels * B);
            if constexpr (A >= 4) {
                if (there)
                    copy_async<A, A>(to + channel_at<B>(channel) + place_of_byte(channel, byte), source, true);
            } else { /* without a predicate: eight of them are more than there are registers for */
                held[j] = load_chunk<2, 2>(there ? source : from);
            }
        }
        if constexpr (A < 4)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int n = i + j * THREADS, channel = FLAT ? 0 : n / RUN;
                const int byte = (n - channel * RUN) * A;
                if (n < last && (FLAT || byte < p.pixels * B))
                    store_to_shared<2>(to + channel_at<B>(channel) + place_of_byte(channel, byte), held[j]);
            }
    }
}

/* Writes the output of a tile that is held in the place of x, in as wide stores as it allows. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void write_held(const place &p, char *out) {
    if constexpr (SHIFTED) {
        write_shifted<TYPE>(p, out);
        return;
    }
    constexpr int B = bytes_of(TYPE), A = most(least(ACCESS, 16), B);
    const int count = p.channels * PIXELS * B / A;
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += THREADS)
        store_chunk<A, A>(out + (i64)i * A, load_from_shared<A>(p.room + X_AT + i * A));
}
