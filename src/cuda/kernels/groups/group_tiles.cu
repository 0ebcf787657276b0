/*
 * A part of groups.cu: rows in tiles. ROWS neighbouring groups of an image, or what a block of a cluster
 * has of one, are one piece of memory whatever PIXELS is. It comes to shared memory and leaves it in
 * whole 16-byte accesses; there it lies as far behind a multiple of 16 bytes as in memory. The output is
 * written where x was.
 *
 * A channel is cut into RUNS runs of WIDTH elements and a shorter one. A run is an odd number of words, so that
 * neighbouring lanes meet in no bank. Runs of 16-bit elements that begin inside a word are shifted into
 * place as they are read, and back as they are written: an element is the same lane's wherever its row
 * lies. THREADS_PER_CHANNEL threads share a channel.
 *
 * OUT_LIES_AS_X says that x and the output lie alike to 16 bytes in every image; else the output leaves element
 * by element.
 */
constexpr bool TILED = VARIANT == GROUPS_IN_TILES;
constexpr int RUNS = PIXELS / WIDTH, REST = PIXELS % WIDTH; /* the elements behind the last run */
constexpr int TILE_DEPTH = ceil_div(DEPTH, CLUSTER);   /* channels that a block has of a row */
constexpr int TILE_ROWS = TILED ? ROWS : 1;
constexpr int TILES = ceil_div(GROUPS, TILE_ROWS);     /* of an image */
constexpr int TILE_CHANNELS = TILED ? ROWS * TILE_DEPTH : 1;
constexpr int PARTS = FORWARD || CORRECT ? 3 : 2;      /* sums of a channel, or of a lane */
constexpr int LANE_SUMS = TILE_CHANNELS * THREADS_PER_CHANNEL;

/* Bytes of a tile: with what may come before it to a multiple of 16, and what is read behind it. */
__device__ constexpr int tile_room(int type) {
    return (int)round_up(TILE_CHANNELS * (TILED ? PIXELS : 1) * bytes_of(type) + 20);
}

/* ---- Tiles on their way ------------------------------------------------------------------------- */

/* The whole 16-byte pieces of a tensor's tile are bytes [head, end) of it. */
struct pieces {
    int head, end;
};
template <int ACCESS> __device__ __forceinline__ pieces pieces_of(const char *from, int bytes) {
    const int head = ACCESS >= 16 ? 0 : least((int)(-(u32)(u64)from & 15), bytes);
    return {head, head + (bytes - head) / 16 * 16};
}

/* Where the first element of a tensor's tile lies in its room. */
template <int ACCESS> __device__ __forceinline__ u32 begin_of(u32 room, const char *from) {
    return room + (ACCESS >= 16 ? 0 : (u32)(u64)from & 15);
}

template <int ACCESS>
__device__ __forceinline__ void bring_pieces(u32 to, const char *from, int bytes) {
    const pieces p = pieces_of<ACCESS>(from, bytes);
#pragma unroll 4
    for (int i = p.head + threadIdx.x * 16; i < p.end; i += THREADS * 16)
        copy_async<16, 16>(to + i, from + i, true);
}

/* What is before and behind the pieces, fewer elements than a block has threads. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void bring_ends(u32 to, const char *from, int bytes) {
    constexpr int B = bytes_of(TYPE);
    const pieces p = pieces_of<ACCESS>(from, bytes);
    const int at = threadIdx.x * B, last = p.end + at;
    if (at < p.head)
        copy_in<B, B>(to + at, from + at, true);
    if (last < bytes)
        copy_in<B, B>(to + last, from + last, true);
}

template <int TYPE, int ACCESS>
__device__ __forceinline__ void send_tile(char *to, u32 from, int bytes) {
    constexpr int B = bytes_of(TYPE);
    const pieces p = OUT_LIES_AS_X ? pieces_of<ACCESS>(to, bytes) : pieces{bytes, bytes};
#pragma unroll 4
    for (int i = p.head + threadIdx.x * 16; i < p.end; i += THREADS * 16)
        store_chunk<16, 16>(to + i, load_from_shared<16>(from + i));
#pragma unroll 1
    for (int i = threadIdx.x * B; i < p.head; i += THREADS * B)
        store_chunk<B, B>(to + i, load_from_shared<B>(from + i));
    if (p.end + threadIdx.x * B < bytes)
        store_chunk<B, B>(to + p.end + threadIdx.x * B,
                          load_from_shared<B>(from + p.end + threadIdx.x * B));
}

/* Sends a tile of f32 with what dsum has there, asked for AT_ONCE pieces at a time; `dsum`: where the tile's begins,
 * which may lie otherwise within 16 bytes. */
template <int ACCESS>
__device__ __forceinline__ void send_tile_with_dsum(char *to, u32 from, const char *dsum, int bytes) {
    constexpr int AT_ONCE = 4;
    const pieces p = OUT_LIES_AS_X ? pieces_of<ACCESS>(to, bytes) : pieces{bytes, bytes};
    const bool alike = (((u64)dsum ^ (u64)to) & 15) == 0;
    const auto send = [&](int at) {
        const float v[1] = {element<F32>(load_from_shared<4>(from + at).word, 0) +
                            element<F32>(load_chunk<4, 4>(dsum + at).word, 0)};
        store_chunk<4, 4>(to + at, pack<F32, 1>(v));
    };
#pragma unroll 1
    for (int i = p.head + threadIdx.x * 16; i < p.end; i += AT_ONCE * THREADS * 16) {
        chunk<16> s[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = i + j * THREADS * 16;
            if (at < p.end)
                s[j] = alike ? load_chunk<16, 16>(dsum + at) : load_chunk<16, 4>(dsum + at);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = i + j * THREADS * 16;
            if (at >= p.end)
                continue;
            const auto made = load_from_shared<16>(from + at);
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[e] = element<F32>(made.word, e) + element<F32>(s[j].word, e);
            store_chunk<16, 16>(to + at, pack<F32, 4>(v));
        }
    }
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < p.head; i += THREADS * 4)
        send(i);
    if (p.end + threadIdx.x * 4 < bytes)
        send(p.end + threadIdx.x * 4);
}

/* ---- Runs --------------------------------------------------------------------------------------- */

/* The first COUNT elements of a run. */
template <int TYPE, int COUNT> struct run_of {
    static constexpr int WORDS = ceil_div(COUNT * bytes_of(TYPE), 4);
    u32 word[WORDS];
};

/* Whether all runs begin with a word. */
template <int TYPE, int ACCESS> __device__ constexpr bool in_words() {
    return bytes_of(TYPE) == 4 || (PIXELS % 2 == 0 && ACCESS >= 4);
}

/* Up to an element is read before and behind the run: other lanes may be writing there, and what is
 * read of it is not used. */
template <int TYPE, int ACCESS, int COUNT>
__device__ __forceinline__ run_of<TYPE, COUNT> read_run(u32 at) {
    constexpr int WORDS = run_of<TYPE, COUNT>::WORDS;
    run_of<TYPE, COUNT> r;
    if constexpr (in_words<TYPE, ACCESS>()) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            r.word[i] = load_from_shared<4>(at + 4 * i).word[0];
    } else {
        const u32 shift = (at & 2) * 8, from = at & ~3u;
        u32 held = load_from_shared<4>(from).word[0];
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const u32 next = load_from_shared<4>(from + 4 * i + 4).word[0];
            r.word[i] = __funnelshift_r(held, next, shift);
            held = next;
        }
    }
    return r;
}

/* Writes a run's elements and no other. */
template <int TYPE, int ACCESS, int COUNT>
__device__ __forceinline__ void write_run(u32 at, const run_of<TYPE, COUNT> &r) {
    constexpr int WORDS = run_of<TYPE, COUNT>::WORDS;
    if constexpr (bytes_of(TYPE) == 4 || (in_words<TYPE, ACCESS>() && COUNT % 2 == 0)) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            store_to_shared<4>(at + 4 * i, chunk<4>{{r.word[i]}});
    } else if constexpr (COUNT < WIDTH) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            store_to_shared<2>(at + 2 * i, chunk<2>{{r.word[i / 2] >> 16 * (i & 1)}});
    } else {
        /* Beginning inside a word, a run has a half of its first and of a further one. */
        const u32 inside = at >> 1 & 1, from = at & ~3u;
        if (inside) {
            store_to_shared<2>(at, chunk<2>{{r.word[0]}});
            store_to_shared<2>(from + 4 * WORDS, chunk<2>{{r.word[WORDS - 1] >> 16}});
        } else {
            store_to_shared<4>(at, chunk<4>{{r.word[0]}});
        }
#pragma unroll
        for (int i = 1; i < WORDS; i++)
            store_to_shared<4>(from + 4 * i,
                               chunk<4>{{__funnelshift_l(r.word[i - 1], r.word[i], 16 * inside)}});
    }
}

/* ---- A tile ------------------------------------------------------------------------------------- */

/* What a row's elements have in common. */
struct __align__(16) tile_row {
    float mean, rstd, slope, constant;
};
struct tile_rest {
    float rest, delta;
};

/* In shared memory, behind x and dy. */
struct tile_numbers {
    tile_row row[TILE_ROWS];
    tile_rest more[TILE_ROWS];
    float weight[TILE_CHANNELS], bias[TILE_CHANNELS];
    float lane[FORWARD || THREADS_PER_CHANNEL > 1 ? PARTS * LANE_SUMS : 1]; /* of each lane of a channel */
    /* Backward: of all images of the block, and sums. */
    float dweight[FORWARD ? 1 : TILE_CHANNELS], dbias[FORWARD ? 1 : TILE_CHANNELS];
    float channel[FORWARD ? 1 : PARTS][FORWARD ? 1 : TILE_CHANNELS];
};

struct tile_place {
    i64 image;
    int first_row, rows; /* of the image's groups */
    int first, channels; /* the block's, of the image's channels */
    u32 x, dy;           /* first elements in shared memory */
    tile_numbers *numbers;

    __device__ __forceinline__ int bytes(int type) const { return channels * PIXELS * bytes_of(type); }
    __device__ __forceinline__ const char *of(const void *tensor, i64 stride, int type) const {
        return (const char *)tensor + image * stride + (i64)first * (PIXELS * bytes_of(type));
    }
    __device__ __forceinline__ int row_of(int channel) const {
        return TILE_ROWS > 1 ? channel / TILE_DEPTH : 0;
    }
    __device__ __forceinline__ saved saved_in(int row) const {
        const tile_row r = numbers->row[row];
        return {r.mean, HAS_REST ? numbers->more[row].rest : 0, r.rstd};
    }
    __device__ __forceinline__ channel_affine affine_in(int channel, const saved &of) const {
        return affine_behind(of, WEIGHTED ? numbers->weight[channel] : 1,
                             BIASED ? numbers->bias[channel] : 0);
    }
};

constexpr int DY_TILE = tile_room(X_TYPE), NUMBERS_TILE = DY_TILE + (FORWARD ? 0 : tile_room(DY_TYPE));

__device__ __forceinline__ void bring_x(const groups_args &args, tile_place &p) {
    const char *from = p.of(args.x, args.x_image, X_TYPE);
    p.x = begin_of<X_ACCESS>(shared_address(dynamic_shared), from);
    bring_pieces<X_ACCESS>(p.x, from, p.bytes(X_TYPE));
}

/* The block's place in its first image. */
__device__ __forceinline__ tile_place first_tile() {
    const int unit = blockIdx.x / CLUSTER, block = CLUSTER > 1 ? (int)cluster_rank() : 0;
    tile_place p;
    p.image = unit / TILES;
    p.first_row = unit % TILES * TILE_ROWS;
    p.rows = least(TILE_ROWS, GROUPS - p.first_row);
    p.first = p.first_row * DEPTH + block * TILE_DEPTH;
    p.channels = CLUSTER > 1 ? most(0, least(TILE_DEPTH, DEPTH - block * TILE_DEPTH)) : p.rows * DEPTH;
    p.x = p.dy = 0;
    p.numbers = (tile_numbers *)(dynamic_shared + NUMBERS_TILE);
    return p;
}
__device__ __forceinline__ i64 images_at_once() { return gridDim.x / (CLUSTER * TILES); }

__device__ __forceinline__ void load_affine(const groups_args &args, const tile_place &p) {
#pragma unroll 1
    for (int c = threadIdx.x; c < p.channels; c += THREADS) {
        if (WEIGHTED)
            p.numbers->weight[c] = weight_of(args, p.first + c);
        if (BIASED)
            p.numbers->bias[c] = bias_of(args, p.first + c);
    }
}

/* Writes numbers where x was: `run` makes element i of the COUNT that begin with element `at`. */
template <int COUNT, typename MAKE>
__device__ __forceinline__ void put_run(u32 at, const MAKE &element_at) {
    constexpr int WORDS = run_of<OUT_TYPE, COUNT>::WORDS, EACH = 4 / bytes_of(OUT_TYPE);
    run_of<OUT_TYPE, COUNT> out;
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        float v[EACH] = {};
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (k * EACH + j < COUNT)
                v[j] = element_at(k * EACH + j);
        out.word[k] = pack<OUT_TYPE, EACH>(v).word[0];
    }
    write_run<OUT_TYPE, X_ACCESS, COUNT>(at, out);
}

/* Threads that share a row's COUNT numbers; a row that a cluster shares is the first warp's. */
__device__ constexpr int team_of(int count) {
    return least(WARP, count > 1 ? 2 * power_of_two_up_to(count - 1) : 1);
}
