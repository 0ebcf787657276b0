/*
 * A part of channels.cu: its arguments, what follows from its constants, and what both passes do with
 * a tile: where it lies in shared memory, which of it a thread has, and how the blocks of a cluster tell
 * each other their parts of a pixel's sums.
 */
#include "../arguments/channel_args.h"
#include "../common/fusion.cu"
#include "../common/saved_mean.cu"

#include "../common/rule.cu"
constexpr bool FORWARD = PASS == 0;
constexpr bool FLAT = TILE_PIXELS == PIXELS;
constexpr int THREADS = WARPS * WARP;
constexpr int TILES = ceil_div(PIXELS, TILE_PIXELS);
constexpr int LINE = LINE_CHANNELS * TILE_PIXELS;   /* elements of a line */
constexpr int LINES = DEPTH / LINE_CHANNELS; /* of a block */
constexpr int EACH = ceil_div(LINES, PLANES);
constexpr int FEWEST = COLS - (CLUSTER - 1) * DEPTH; /* channels of the last block of a cluster */
constexpr int WHOLE = FEWEST / LINE_CHANNELS / PLANES;        /* lines that every thread has */
constexpr bool HALF = bytes_of(X_TYPE) == 2;
/* Sums of so many channels, or so many threads, leave a thread few registers for anything else. */
constexpr int ROOMY_EACH = LINE_CHANNELS == 1 ? 16 : !HALF ? 8 : CLUSTER > 1 ? 12 : 13;
constexpr bool CROWDED = !FORWARD && (EACH > ROOMY_EACH || THREADS * MIN_BLOCKS > 65536 / 80);
constexpr bool WIDE_RANGE = X_TYPE == F32 || X_TYPE == BF16;
/* Tiles of an odd number of 16-bit pixels: every channel begins elsewhere within 16 bytes. Each lies in
 * shared memory as it does in memory, so that it comes and goes in whole 16-byte pieces; a thread has two
 * pixels, which may lie in two words. Every eighth channel begins alike. */
constexpr bool SHIFTED =
    !FLAT && !LAST && PIXELS % 2 == 1 && HALF && (FORWARD || bytes_of(DY_TYPE) == 2);
constexpr int ALIKE = 8;
/* A tile goes on in the next image where one ends: images that are no whole number of tiles would each end in
 * one that is nearly empty. Forward tiles of few channels are many, and no faster for it. */
constexpr bool SPANS = !FLAT && !LAST && !SHIFTED && CLUSTER == 1 && (!FORWARD || COLS >= 128) &&
                       PIXELS > TILE_PIXELS && PIXELS % TILE_PIXELS && PIXELS * bytes_of(X_TYPE) % 32 == 0 &&
                       TILE_PIXELS * bytes_of(X_TYPE) % 32 == 0;
constexpr bool WEIGHTED = WEIGHT_TYPE != NONE;
constexpr bool BIASED = (FORWARD || ACTIVE) && BIAS_TYPE != NONE;
/* What goes into an activation is made again by the mean with all its digits. */
constexpr bool EXACT_MEAN = !FORWARD && ACTIVE && LAYER && MEAN_IS_EXACT && !SHORT_Z;

template <bool FLOATS> struct total_of {
    typedef double type;
};
template <> struct total_of<true> {
    typedef float type;
};
typedef total_of<HALF && WHOLE >= 4>::type total;

/* ---- Shared memory ----------------------------------------------------------------------------- */

/* On a line of 128 bytes: copies of whole sectors to the middle of others are slower, and where this began
 * was decided by the size of a kernel's other shared variables. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* 16-byte pieces of a channel of a shifted tile, wherever it begins. */
constexpr int PIECES = ceil_div(TILE_PIXELS * 2 + 14, 16);
/* Bytes from channel to channel of a tile. */
__device__ constexpr int channel_bytes(int element_bytes) {
    return SHIFTED ? PIECES * 16 : TILE_PIXELS * element_bytes;
}
__device__ constexpr int round_up(int bytes) { return (bytes + 15) / 16 * 16; }
__device__ constexpr int tile_bytes(int element_bytes) {
    return (DEPTH * channel_bytes(element_bytes) + 127) / 128 * 128;
}
constexpr int X_AT = 0;
constexpr int DY_AT = X_AT + tile_bytes(bytes_of(X_TYPE));
constexpr int SLOT_BYTES = DY_AT + (FORWARD ? 0 : tile_bytes(bytes_of(DY_TYPE)));
constexpr int PARTS_AT = RING_SLOTS * SLOT_BYTES;
constexpr int PARTS = FORWARD || CORRECT ? 3 : 2; /* sums of a pixel */
/* In tiles always room for three: else one block more would fit than the fixed grid of the backward
 * means to, and some multiprocessors would take it and others go without. */
constexpr int ROOM = CLUSTER == 1 && !FLAT ? 3 : PARTS;
constexpr int MOMENTS_AT = PARTS_AT + round_up(ROOM * PLANES * LINE * 4);
constexpr int SAVED_AT = MOMENTS_AT + 16 * TILE_PIXELS;
constexpr int WEIGHT_AT = SAVED_AT + (FORWARD ? 0 : round_up(RING_SLOTS * 2 * TILE_PIXELS * 4));
constexpr int BIAS_AT = WEIGHT_AT + (WEIGHTED ? round_up(DEPTH * 4) : 0);
constexpr int CUT_AT = BIAS_AT + (BIASED ? round_up(DEPTH * 4) : 0);
constexpr int BLOCKS_AT = CUT_AT + (FORWARD ? 0 : round_up((LINE_CHANNELS - 1) * LINES * 8));

/* What a block tells the others of a pixel: sums of floats, as floats, and forward the float they are about. */
struct __align__(PARTS > 2 ? 16 : 8) entry {
    float value[(PARTS + 1) / 2 * 2];
};
struct __align__(16) four_floats {
    float x, y, z, w;
};

struct place {
    int lane, plane;  /* of the sums and the output */
    int row, pixel;   /* of the lane's first element: its channel of a line, its pixel */
    int block, first; /* in the cluster; its first channel */
    int channels;     /* it has of DEPTH */
    int pixels;       /* of the present tile */
    int first_pixel;
    i64 image;
    bool active, has; /* a lane and plane; pixels of this tile */
    u32 room;         /* shared memory */
    u32 x_shift, dy_shift; /* SHIFTED: where the first channel of the tile begins within 16 bytes */
    u32 round;        /* exchanges so far */
    u64 *byte_barriers;
    float *parts, *weight, *bias;
    float *saved; /* backward: mean and rstd of the tile's pixels */
    four_floats *moments;
};

template <int BYTES> __device__ __forceinline__ u32 channel_at(int channel) {
    return channel * channel_bytes(BYTES);
}

/* Where y's channels lie side by side, a warp gathers 4 chunks of them at once, from one sector of the pixels of
 * each channel. In a tile the sectors of a channel's pixels change places, chunk by chunk otherwise, so that those
 * are in other banks: all 4 of a line, where pixels fill lines. */
constexpr int CHUNK = Y_ACCESS / bytes_of(Y_TYPE);
constexpr int PIXEL_BYTES = TILE_PIXELS * bytes_of(X_TYPE);
constexpr int PLACES = !LAST || FLAT ? 1 : PIXEL_BYTES % 128 == 0 ? 4 : PIXEL_BYTES % 64 == 0 ? 2 : 1;

/* Where byte `byte` of a channel's pixels lies behind channel_at(). */
__device__ __forceinline__ int place_of_byte(int channel, int byte) {
    return PLACES == 1 ? byte : byte ^ (int)((u32)channel / CHUNK % PLACES * 32);
}

/* Where a channel of a shifted tile begins within 16 bytes, whose first does at `first`. */
__device__ __forceinline__ u32 shift_of(u32 first, int channel) {
    return (first + channel * (PIXELS * 2 % 16)) & 15;
}

/* Where a thread's two pixels of a line of a shifted tile lie, x from X_AT on: a whole word, or the second
 * half of one and the first of the next. */
struct two_pixels {
    u32 at, shift; /* the word; bits that are not theirs */
    __device__ __forceinline__ two_pixels(const place &p, u32 first, int line) {
        const u32 byte = shift_of(first, PLANES % ALIKE ? line : p.plane) + p.lane * 4;
        at = p.room + (byte & ~3u) + channel_at<2>(line);
        shift = (byte & 2) * 8;
    }
};

/* Element `lane` * WIDTH and on of a line. */
template <int TYPE>
__device__ __forceinline__ chunk<WIDTH * bytes_of(TYPE)> elements_of(const place &p, int at, int line) {
    constexpr int B = bytes_of(TYPE);
    if constexpr (SHIFTED) {
        const two_pixels two(p, at == X_AT ? p.x_shift : p.dy_shift, line);
        const u32 first = load_from_shared<4>(two.at + at).word[0];
        return {{__funnelshift_r(first, load_from_shared<4>(two.at + at + 4).word[0], two.shift)}};
    } else {
        return load_from_shared<WIDTH * B>(p.room + at + channel_at<B>(line * LINE_CHANNELS) +
                                           place_of_byte(line * LINE_CHANNELS, p.lane * (WIDTH * B)));
    }
}

/* Puts a thread's output of a line in the place of x. */
template <int TYPE>
__device__ __forceinline__ void hold_output(const place &p, int line,
                                            const chunk<WIDTH * bytes_of(TYPE)> &v) {
    constexpr int B = bytes_of(TYPE);
    if constexpr (SHIFTED) {
        const two_pixels two(p, p.x_shift, line);
        if (two.shift) {
            store_to_shared<2>(two.at + X_AT + 2, chunk<2>{{v.word[0]}});
            store_to_shared<2>(two.at + X_AT + 4, chunk<2>{{v.word[0] >> 16}});
        } else {
            store_to_shared<4>(two.at + X_AT, v);
        }
    } else {
        store_to_shared<WIDTH * B>(p.room + X_AT + channel_at<B>(line * LINE_CHANNELS) + p.lane * (WIDTH * B), v);
    }
}

/* Whether element `i` of a thread that has pixels of this tile is one of them. */
__device__ __forceinline__ bool is_there(const place &p, int i) {
    return !SHIFTED || i == 0 || p.lane * WIDTH + i < p.pixels;
}

/* Writes a thread's output of a line to memory. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void write_output(const place &p, char *out,
                                             const chunk<WIDTH * bytes_of(TYPE)> &v) {
    constexpr int B = bytes_of(TYPE);
    if (is_there(p, WIDTH - 1))
        store_chunk<WIDTH * B, ACCESS>(out, v);
    else if constexpr (SHIFTED)
        store_chunk<B, B>(out, chunk<B>{{v.word[0]}});
}

/* Whether a thread's element `i` is of the same channel as its first. */
__device__ __forceinline__ bool is_first(const place &p, int i) {
    return LINE_CHANNELS == 1 || i == 0 || p.pixel + i < TILE_PIXELS;
}
/* Whether a thread's elements are of two channels. */
__device__ __forceinline__ bool is_cut(const place &p) { return !is_first(p, WIDTH - 1); }
__device__ __forceinline__ int pixel_of(const place &p, int i) {
    if (LINE_CHANNELS == 1)
        return p.lane * WIDTH + i;
    return is_first(p, i) ? p.pixel + i : p.pixel + i - TILE_PIXELS;
}

/* Numbers of channels, as a thread's elements of a line take them; 0 where there are none. */
template <bool THERE> struct of_channels {
    float first, second;
    __device__ __forceinline__ of_channels(const place &p, const float *numbers, int line)
        : first(THERE ? numbers[line * LINE_CHANNELS + p.row] : 0), second(first) {
        if (THERE && LINE_CHANNELS > 1)
            second = numbers[line * LINE_CHANNELS + p.row + is_cut(p)];
    }
    __device__ __forceinline__ float at(const place &p, int i) const {
        return is_first(p, i) ? first : second;
    }
};

/* Bytes from a tensor's image to the tile, by element. */
__device__ __forceinline__ i64 element_of_tile(const place &p) {
    return (i64)p.first * PIXELS + p.first_pixel;
}

/* How much further than in the tile's first image a pixel of it lies: of a tensor's images and of what an image
 * takes of it. */
__device__ __forceinline__ i64 in_next_image(const place &p, int pixel, i64 image, i64 taken) {
    return SPANS && p.first_pixel + pixel >= PIXELS ? image - taken : 0;
}

/* Sets the tile that unit `unit` is. */
__device__ __forceinline__ void set_unit(const channels_args &args, place &p, i64 unit) {
    if constexpr (SPANS) {
        p.image = unit * TILE_PIXELS / PIXELS;
        p.first_pixel = (int)(unit * TILE_PIXELS - p.image * PIXELS);
        const bool last = p.image == args.images - 1;
        p.pixels = last ? least(TILE_PIXELS, PIXELS - p.first_pixel) : TILE_PIXELS;
    } else {
        p.image = unit / TILES;
        p.first_pixel = (int)(unit - p.image * TILES) * TILE_PIXELS;
        p.pixels = FLAT ? PIXELS : least(TILE_PIXELS, PIXELS - p.first_pixel);
    }
    p.has = p.active && (FLAT || p.lane * WIDTH < p.pixels);
}

/* A block's weights and biases on their way to shared memory: asked for before the copies of its first
 * tile, stored when these are asked for too. */
struct affine {
    static constexpr int EACH_HELD = least(ceil_div(DEPTH, THREADS), 8); /* further ones come late */
    chunk<bytes_of(WEIGHT_TYPE)> weight[EACH_HELD];
    chunk<bytes_of(BIAS_TYPE)> bias[EACH_HELD];
};

template <int TYPE>
__device__ __forceinline__ chunk<bytes_of(TYPE)> raw_number(const void *from, int at) {
    constexpr int B = bytes_of(TYPE);
    return load_chunk<B, B>((const char *)from + (i64)at * B);
}

__device__ __forceinline__ void load_affine(const channels_args &args, const place &p, affine &a) {
#pragma unroll
    for (int j = 0; j < affine::EACH_HELD; j++) {
        const int c = threadIdx.x + j * THREADS;
        if (c >= p.channels)
            continue;
        if constexpr (WEIGHTED)
            a.weight[j] = raw_number<WEIGHT_TYPE>(args.weight, p.first + c);
        if constexpr (BIASED)
            a.bias[j] = raw_number<BIAS_TYPE>(args.bias, p.first + c);
    }
}

__device__ __forceinline__ void put_affine(const place &p, int c, const chunk<bytes_of(WEIGHT_TYPE)> &weight,
                                           const chunk<bytes_of(BIAS_TYPE)> &bias) {
    if constexpr (WEIGHTED) {
        const float w = element<WEIGHT_TYPE>(weight.word, 0);
        p.weight[c] = WEIGHT_OFFSET ? w + (float)WEIGHT_OFFSET : w; /* adding 0 changes -0 */
    }
    if constexpr (BIASED)
        p.bias[c] = element<BIAS_TYPE>(bias.word, 0);
}

__device__ __forceinline__ void store_affine(const channels_args &args, const place &p, const affine &a) {
#pragma unroll
    for (int j = 0; j < affine::EACH_HELD; j++)
        if (threadIdx.x + j * THREADS < p.channels)
            put_affine(p, threadIdx.x + j * THREADS, a.weight[j], a.bias[j]);
    if constexpr (affine::EACH_HELD * THREADS < DEPTH)
        for (int c = threadIdx.x + affine::EACH_HELD * THREADS; c < p.channels; c += THREADS) {
            chunk<bytes_of(WEIGHT_TYPE)> weight = {};
            chunk<bytes_of(BIAS_TYPE)> bias = {};
            if constexpr (WEIGHTED)
                weight = raw_number<WEIGHT_TYPE>(args.weight, p.first + c);
            if constexpr (BIASED)
                bias = raw_number<BIAS_TYPE>(args.bias, p.first + c);
            put_affine(p, c, weight, bias);
        }
}

/* Line `e` of a thread; false past the block's last. */
__device__ __forceinline__ bool line_of(const place &p, int e, int &line) {
    line = p.plane + e * PLANES;
    return e < WHOLE || line * LINE_CHANNELS < p.channels;
}

/* Bytes from a thread's first line of a tensor in x's layout to its line `e`: all but a constant is
 * added once. */
template <int TYPE> __device__ __forceinline__ i64 first_line(const place &p) {
    return ((i64)p.plane * (LINE_CHANNELS * PIXELS) + p.lane * WIDTH) * bytes_of(TYPE);
}
template <int TYPE> __device__ __forceinline__ constexpr i64 next_lines(int e) {
    return (i64)e * PLANES * LINE_CHANNELS * PIXELS * bytes_of(TYPE);
}

/* Writes a thread's parts of its pixels' sums. */
__device__ __forceinline__ void put_parts(const place &p, const float (*v)[WIDTH]) {
#pragma unroll
    for (int j = 0; j < PARTS; j++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            p.parts[(j * PLANES + p.plane) * LINE + p.lane * WIDTH + i] = v[j][i];
}

/* ---- Clusters ---------------------------------------------------------------------------------- */

__device__ __forceinline__ entry *entries_of(const place &p, int block, int pixel) {
    return (entry *)(dynamic_shared + BLOCKS_AT) + ((p.round & 1) * CLUSTER + block) * TILE_PIXELS + pixel;
}

/* Before the sums of a tile are sent: how much will come. One thread calls. */
__device__ __forceinline__ void expect_blocks(const place &p) {
    byte_barrier_expect(shared_address(p.byte_barriers + (p.round & 1)),
                        CLUSTER * TILE_PIXELS * sizeof(entry));
}
__device__ __forceinline__ void send_to_blocks(const place &p, int pixel, const total *sums) {
    const float v[4] = {(float)sums[0], (float)sums[1], (float)sums[2], 0};
    const u32 to = shared_address(entries_of(p, p.block, pixel));
    const u32 bar = shared_address(p.byte_barriers + (p.round & 1));
#pragma unroll
    for (int b = 0; b < CLUSTER; b++)
        if constexpr (PARTS > 2)
            send_to_block(to, bar, b, v);
        else
            send_two_to_block(to, bar, b, v);
}
__device__ __forceinline__ void wait_for_blocks(const place &p) {
    byte_barrier_wait(shared_address(p.byte_barriers + (p.round & 1)), p.round >> 1 & 1);
}

/* Where a thread merges the parts of a line's elements: the rows of a pixel in neighbouring lanes,
 * the first of which has their sum. */
struct merged_place {
    int pixel, element;
    bool is_idle;
    __device__ __forceinline__ explicit merged_place(int i)
        : pixel(LINE_CHANNELS > 1 ? least(i / LINE_CHANNELS, TILE_PIXELS - 1) : i),
          element(i % LINE_CHANNELS * TILE_PIXELS + pixel),
          is_idle(LINE_CHANNELS > 1 && (i % LINE_CHANNELS || i >= LINE)) {}
};
/* Whether a warp has such a place; without rows, a thread. */
__device__ __forceinline__ bool is_in_line(int i) { return (LINE_CHANNELS > 1 ? i / WARP * WARP : i) < LINE; }

/* What the lanes of a pixel's rows have, summed; whole warps call. */
__device__ __forceinline__ total sum_over_rows(total v) {
    return LINE_CHANNELS == 1 ? v : sum_over_lanes<LINE_CHANNELS>(v, threadIdx.x % WARP);
}

/* A whole image that has no ring comes in PHASES, and is summed as it comes. */
constexpr int PHASES = FLAT && RING_SLOTS == 1 && WHOLE >= (FORWARD ? 8 : 4) ? 4 : 1;
/* Lines of a thread in a phase. In the backward the next image's come while later phases are still to be
 * put out: none may end within a 16-byte piece, so that odd numbers of 8 bytes are made even. */
constexpr int PHASE_LINES = ceil_div(EACH, PHASES);
constexpr int PHASE_BYTES = PHASE_LINES * PLANES * LINE * least(bytes_of(X_TYPE), FORWARD ? 8 : bytes_of(DY_TYPE));
constexpr int PHASE_EACH = PHASE_LINES + (!FORWARD && PHASES > 1 && PHASE_BYTES % 16 != 0);
__device__ __forceinline__ int phase_begin(const place &p, int phase) {
    return phase == 0 ? 0 : least(p.channels, phase * PHASE_EACH * PLANES * LINE_CHANNELS);
}
