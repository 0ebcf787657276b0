/* A part of channels.cu: what comes and goes of a shifted tile, in whole 16-byte pieces. */

/* Where the present tile's channels begin within 16 bytes. */
__device__ __forceinline__ void set_shifts(const channels_args &args, place &p) {
    if (!SHIFTED)
        return;
    const u32 at = (u32)(((i64)p.first * PIXELS + p.first_pixel) * 2);
    p.x_shift = (u32)((u64)args.x + (u64)(p.image * args.x_image)) + at & 15;
    if (!FORWARD)
        p.dy_shift = (u32)((u64)args.dy + (u64)(p.image * args.dy_image)) + at & 15;
}

/* A 16-byte piece of every channel of a shifted tile that begins as one of its first ALIKE does. */
struct shifted_piece {
    int begin, end; /* of its bytes those of the tile's pixels; whole: 0, 16 */
    int at;         /* bytes from the tile's first pixel of the channel */
    u32 room;       /* the same in shared memory, from the channel's first piece */

    __device__ __forceinline__ shifted_piece(const place &p, int number, u32 shift)
        : begin(number == 0 ? shift : 0), end(least(16, p.pixels * 2 + shift - 16 * number)),
          at(16 * number - (int)shift), room(16 * number) {}
    __device__ __forceinline__ bool is_whole() const { return begin == 0 && end == 16; }
};

/* Channels at once, if a thread each takes `threads` of one: those of a thread begin alike. */
__device__ constexpr int alike_at_once(int threads) {
    return most(THREADS / threads / ALIKE, 1) * ALIKE;
}

/* Brings a shifted tile: whole pieces, with what a neighbouring tile has of them, but where a piece would
 * leave the image. */
__device__ __forceinline__ void fill_shifted(const place &p, u32 to, const char *from) {
    constexpr int STEP = alike_at_once(PIECES), TURNS = ceil_div(DEPTH, STEP);
    const u32 first = (u32)(u64)from & 15;
#pragma unroll 1
    for (int i = threadIdx.x; i < STEP * PIECES; i += THREADS) {
        const int channel = i / PIECES;
        const shifted_piece c(p, i - channel * PIECES, shift_of(first, channel));
        const u32 room = to + channel_at<2>(channel) + c.room;
        const char *source = from + (i64)channel * (PIXELS * 2) + c.at;
        if (c.begin >= c.end)
            continue;
        /* The turn whose piece leaves the image: of its first channel, or of its last. */
        const int last = COLS - 1 - p.first - channel;
        const bool before = p.first + channel == 0 && p.first_pixel * 2 + c.at < 0;
        const bool behind = last >= 0 && last % STEP == 0 && p.first_pixel * 2 + c.at + 16 > PIXELS * 2;
        const int apart = before ? 0 : behind ? last / STEP : -1;
#pragma unroll(TURNS <= 8 ? TURNS : 4)
        for (int turn = 0; turn < TURNS; turn++)
            if (turn != apart && channel + turn * STEP < p.channels)
                copy_async<16, 16>(room + channel_at<2>(turn * STEP),
                                   source + (i64)turn * (STEP * PIXELS * 2), true);
        if (apart >= 0 && channel + apart * STEP < p.channels)
#pragma unroll 1
            for (int b = c.begin; b < c.end; b += 2)
                copy_in<2, 2>(room + channel_at<2>(apart * STEP) + b,
                              source + (i64)apart * (STEP * PIXELS * 2) + b, true);
    }
}

/* Writes the output of a shifted tile that is held in the place of x: pieces that are its alone, then the
 * others by two bytes. */
template <int TYPE> __device__ __forceinline__ void write_shifted(const place &p, char *out) {
    constexpr int STEP = alike_at_once(PIECES), ENDS = alike_at_once(16);
    const u32 tile = p.room + X_AT;
#pragma unroll 1
    for (int i = threadIdx.x; i < STEP * PIECES; i += THREADS) {
        const int channel = i / PIECES;
        const shifted_piece c(p, i - channel * PIECES, shift_of(p.x_shift, channel));
        if (!c.is_whole())
            continue;
        const u32 room = tile + channel_at<2>(channel) + c.room;
        char *to = out + (i64)channel * (PIXELS * 2) + c.at;
#pragma unroll 4
        for (int turn = 0; turn < ceil_div(DEPTH, STEP); turn++)
            if (channel + turn * STEP < p.channels)
                store_chunk<16, 16>(to + (i64)turn * (STEP * PIXELS * 2),
                                    load_from_shared<16>(room + channel_at<2>(turn * STEP)));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < ENDS * 16; i += THREADS) {
        const int channel = i / 16, byte = i % 8 * 2;
        const u32 shift = shift_of(p.x_shift, channel);
        const int last = (p.pixels * 2 + shift - 1) / 16;
        const shifted_piece c(p, i % 16 < 8 ? 0 : last, shift);
        if (c.is_whole() || byte < c.begin || byte >= c.end)
            continue;
        const u32 room = tile + channel_at<2>(channel) + c.room + byte;
        char *to = out + (i64)channel * (PIXELS * 2) + c.at + byte;
#pragma unroll 4
        for (int turn = 0; turn < ceil_div(DEPTH, ENDS); turn++)
            if (channel + turn * ENDS < p.channels)
                store_chunk<2, 2>(to + (i64)turn * (ENDS * PIXELS * 2),
                                  load_from_shared<2>(room + channel_at<2>(turn * ENDS)));
    }
}
