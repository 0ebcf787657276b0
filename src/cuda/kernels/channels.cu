/*
 * Norms over channels whose pixels are dense: x[image][channel][pixel] is reduced over the channels,
 * a row for each pixel. Forward (PASS 0) and backward (PASS 1), each tensor read and written once.
 *
 * A block (or a cluster of CLUSTER blocks, each with DEPTH of the COLS channels) takes TILE pixels
 * of an image at a time, brought to shared memory by asynchronous copies; then the next tile. TILE
 * is PIXELS where the whole image does: then a block's part is one run of bytes, whatever PIXELS is.
 *
 * The channels lie in lines of ROWS each: one, or in whole images of few odd pixels as many as make
 * whole chunks of WIDTH elements. Thread (lane, plane) of LANES x PLANES has a chunk of every
 * PLANES-th line, EACH of them: the sums of an element of a line are made of PLANES parts, each about
 * a pivot of its own (forward), merged in their order by one thread, then those of a pixel's ROWS
 * elements, then CLUSTER parts in their order. The mean stays a pair. Where squares leave float's range
 * the sums are made again, scaled by a power of two, which the pixel alone decides.
 *
 * A whole image comes in phases, a quarter of every thread's lines each, and is summed as it comes.
 * Weights are asked for before it where the compiler lets them be: loads come back in the order of asking,
 * so that a wait for weights asked for later is a wait for the image.
 *
 * The backward keeps the sums of dweight and dbias of its channels in registers from tile to tile and
 * writes one row of partial sums at the end. It has a ring of STAGES tiles, or the next image comes
 * phase by phase to the place of those that are done with. Its grid stays, and is as large as finds
 * room at once. Where a chunk is of two channels, what the second adds is kept in shared memory.
 *
 * LAST (forward): y is dense over channels, then pixels. HOLD: the output goes through shared memory,
 * where a thread's pixels are too few bytes for a store of their own.
 *
 * Constants: PASS KIND COLS PIXELS TILE DEPTH ROWS WIDTH LANES PLANES WARPS CLUSTER STAGES LAST HOLD
 * CORRECT WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS G_ACCESS Y_ACCESS D_ACCESS
 * (alignments of the parts of an image and their rows, in bytes).
 */
struct channels_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out;
    float *partial_weight, *partial_bias; /* [gridDim.x / CLUSTER][COLS] */
    i64 units;                            /* tiles of all images */
    i64 x_image, dy_image, out_image, mean_image, rstd_image; /* bytes from image to image */
    double eps;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
};

constexpr bool LAYER = KIND == 0;
constexpr bool FORWARD = PASS == 0;
constexpr bool FLAT = TILE == PIXELS;
constexpr int THREADS = WARPS * 32;
constexpr int TILES = ceil_div(PIXELS, TILE);
constexpr int LINE = ROWS * TILE;   /* elements of a line */
constexpr int LINES = DEPTH / ROWS; /* of a block */
constexpr int EACH = ceil_div(LINES, PLANES);
constexpr int FEWEST = COLS - (CLUSTER - 1) * DEPTH; /* channels of the last block of a cluster */
constexpr int WHOLE = FEWEST / ROWS / PLANES;        /* lines that every thread has */
/* Sums of so many channels, or so many threads, leave a thread few registers for anything else. */
constexpr bool CROWDED =
    !FORWARD && (EACH > (ROWS > 1 ? 12 : 16) || THREADS * MIN_BLOCKS > 65536 / 80);
constexpr bool WIDE_RANGE = X_TYPE == F32 || X_TYPE == BF16;
constexpr bool HALF = bytes_of(X_TYPE) == 2;
constexpr bool WEIGHTED = W_TYPE != NONE;
constexpr bool BIASED = FORWARD && B_TYPE != NONE;

template <bool FLOATS> struct total_of {
    typedef double type;
};
template <> struct total_of<true> {
    typedef float type;
};
typedef total_of<HALF && WHOLE >= 4>::type total;

/* ---- Shared memory ----------------------------------------------------------------------------- */

extern __shared__ __align__(16) unsigned char dynamic_shared[];

/* 16 bytes after every 8 channels, so that threads that gather channels meet other banks. */
constexpr int GAP = LAST && !FLAT ? 16 : 0;
__device__ constexpr int round_up(int bytes) { return (bytes + 15) / 16 * 16; }
__device__ constexpr int tile_bytes(int element_bytes) {
    return round_up(DEPTH * TILE * element_bytes + DEPTH / 8 * GAP);
}
constexpr int X_AT = 0;
constexpr int G_AT = X_AT + tile_bytes(bytes_of(X_TYPE));
constexpr int STAGE_BYTES = G_AT + (FORWARD ? 0 : tile_bytes(bytes_of(G_TYPE)));
constexpr int PARTS_AT = STAGES * STAGE_BYTES;
constexpr int PARTS = FORWARD || CORRECT ? 3 : 2; /* sums of a pixel */
/* In tiles always room for three: else one block more would fit than the fixed grid of the backward
 * means to, and some multiprocessors would take it and others go without. */
constexpr int ROOM = CLUSTER == 1 && !FLAT ? 3 : PARTS;
constexpr int MOMENTS_AT = PARTS_AT + round_up(ROOM * PLANES * LINE * 4);
constexpr int SAVED_AT = MOMENTS_AT + 16 * TILE;
constexpr int WEIGHT_AT = SAVED_AT + (FORWARD ? 0 : round_up(STAGES * 2 * TILE * 4));
constexpr int BIAS_AT = WEIGHT_AT + (WEIGHTED ? round_up(DEPTH * 4) : 0);
constexpr int CUT_AT = BIAS_AT + (BIASED ? round_up(DEPTH * 4) : 0);
constexpr int BLOCKS_AT = CUT_AT + (FORWARD ? 0 : round_up((ROWS - 1) * LINES * 8));

struct __align__(least(16, (PARTS + 1) / 2 * 2 * sizeof(total))) entry {
    total value[(PARTS + 1) / 2 * 2];
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
    u32 round;        /* exchanges so far */
    u64 *byte_barriers;
    float *parts, *weight, *bias;
    float *saved; /* backward: mean and rstd of the tile's pixels */
    four_floats *moments;
};

template <int BYTES> __device__ __forceinline__ u32 channel_at(int channel) {
    return channel * (TILE * BYTES) + channel / 8 * GAP;
}

/* Element `lane` * WIDTH and on of a line. */
template <int TYPE>
__device__ __forceinline__ chunk<WIDTH * bytes_of(TYPE)> elements_of(const place &p, int at, int line) {
    constexpr int B = bytes_of(TYPE);
    return load_from_shared<WIDTH * B>(p.room + at + channel_at<B>(line * ROWS) +
                                       p.lane * (WIDTH * B));
}

/* Whether a thread's element `i` is of the same channel as its first. */
__device__ __forceinline__ bool is_first(const place &p, int i) {
    return ROWS == 1 || i == 0 || p.pixel + i < TILE;
}
/* Whether a thread's elements are of two channels. */
__device__ __forceinline__ bool is_cut(const place &p) { return !is_first(p, WIDTH - 1); }
__device__ __forceinline__ int pixel_of(const place &p, int i) {
    if (ROWS == 1)
        return p.lane * WIDTH + i;
    return is_first(p, i) ? p.pixel + i : p.pixel + i - TILE;
}

/* Numbers of channels, as a thread's elements of a line take them; 0 where there are none. */
template <bool THERE> struct of_channels {
    float first, second;
    __device__ __forceinline__ of_channels(const place &p, const float *numbers, int line)
        : first(THERE ? numbers[line * ROWS + p.row] : 0), second(first) {
        if (THERE && ROWS > 1)
            second = numbers[line * ROWS + p.row + is_cut(p)];
    }
    __device__ __forceinline__ float at(const place &p, int i) const {
        return is_first(p, i) ? first : second;
    }
};

/* Brings channels [begin, end) of a tile to shared memory: `from` is the first pixel of the block's
 * first channel. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void fill(const place &p, u32 to, const char *from, int begin, int end) {
    constexpr int B = bytes_of(TYPE), A = least(ACCESS, 16), RUN = FLAT ? 1 : TILE * B / A;
    const int first = FLAT ? ceil_div(begin * PIXELS * B, A) : begin * RUN;
    const int last = FLAT ? ceil_div(end * PIXELS * B, A) : end * RUN;
    constexpr int AT_ONCE = A < 4 ? 8 : 1;
    constexpr int UNROLL = A < 4 || CROWDED ? 1 : !FLAT ? 4 : FORWARD || STAGES > 1 ? 1 : 2;
#pragma unroll(UNROLL)
    for (int i = first + threadIdx.x; i < last; i += AT_ONCE * THREADS) {
        chunk<2> held[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int n = i + j * THREADS, channel = FLAT ? 0 : n / RUN, byte = (n - channel * RUN) * A;
            const char *source = from + (i64)channel * (PIXELS * B) + byte;
            const bool there = n < last && (FLAT || byte < p.pixels * B);
            if constexpr (A >= 4) {
                if (there)
                    copy_async<A, A>(to + channel_at<B>(channel) + byte, source, true);
            } else { /* without a predicate: eight of them are more than there are registers for */
                held[j] = load_once<2, 2>(there ? source : from);
            }
        }
        if constexpr (A < 4)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int n = i + j * THREADS, channel = FLAT ? 0 : n / RUN;
                const int byte = (n - channel * RUN) * A;
                if (n < last && (FLAT || byte < p.pixels * B))
                    store_to_shared<2>(to + channel_at<B>(channel) + byte, held[j]);
            }
    }
}

/* Sets the tile that unit `unit` is. */
__device__ __forceinline__ void set_unit(place &p, i64 unit) {
    p.image = unit / TILES;
    p.first_pixel = (int)(unit - p.image * TILES) * TILE;
    p.pixels = FLAT ? PIXELS : least(TILE, PIXELS - p.first_pixel);
    p.has = p.active && (FLAT || p.lane * WIDTH < p.pixels);
}

/* Bytes from a tensor's image to the tile, by element. */
__device__ __forceinline__ i64 element_of_tile(const place &p) {
    return (i64)p.first * PIXELS + p.first_pixel;
}

/* A block's weights and biases on their way to shared memory: asked for before the copies of its first
 * tile, stored when these are asked for too. */
struct affine {
    static constexpr int EACH_HELD = least(ceil_div(DEPTH, THREADS), 8); /* further ones come late */
    chunk<bytes_of(W_TYPE)> weight[EACH_HELD];
    chunk<bytes_of(B_TYPE)> bias[EACH_HELD];
};

template <int TYPE>
__device__ __forceinline__ chunk<bytes_of(TYPE)> raw_number(const void *from, int at) {
    constexpr int B = bytes_of(TYPE);
    return load_shared_by_rows<B, B>((const char *)from + (i64)at * B);
}

__device__ __forceinline__ void load_affine(const channels_args &args, const place &p, affine &a) {
#pragma unroll
    for (int j = 0; j < affine::EACH_HELD; j++) {
        const int c = threadIdx.x + j * THREADS;
        if (c >= p.channels)
            continue;
        if constexpr (WEIGHTED)
            a.weight[j] = raw_number<W_TYPE>(args.weight, p.first + c);
        if constexpr (BIASED)
            a.bias[j] = raw_number<B_TYPE>(args.bias, p.first + c);
    }
}

__device__ __forceinline__ void put_affine(const place &p, int c, const chunk<bytes_of(W_TYPE)> &weight,
                                           const chunk<bytes_of(B_TYPE)> &bias) {
    if constexpr (WEIGHTED) {
        const float w = element<W_TYPE>(weight.word, 0);
        p.weight[c] = WEIGHT_OFFSET ? w + (float)WEIGHT_OFFSET : w; /* adding 0 changes -0 */
    }
    if constexpr (BIASED)
        p.bias[c] = element<B_TYPE>(bias.word, 0);
}

__device__ __forceinline__ void store_affine(const channels_args &args, const place &p, const affine &a) {
#pragma unroll
    for (int j = 0; j < affine::EACH_HELD; j++)
        if (threadIdx.x + j * THREADS < p.channels)
            put_affine(p, threadIdx.x + j * THREADS, a.weight[j], a.bias[j]);
    if constexpr (affine::EACH_HELD * THREADS < DEPTH)
        for (int c = threadIdx.x + affine::EACH_HELD * THREADS; c < p.channels; c += THREADS) {
            chunk<bytes_of(W_TYPE)> weight = {};
            chunk<bytes_of(B_TYPE)> bias = {};
            if constexpr (WEIGHTED)
                weight = raw_number<W_TYPE>(args.weight, p.first + c);
            if constexpr (BIASED)
                bias = raw_number<B_TYPE>(args.bias, p.first + c);
            put_affine(p, c, weight, bias);
        }
}

/* Line `e` of a thread; false past the block's last. */
__device__ __forceinline__ bool line_of(const place &p, int e, int &line) {
    line = p.plane + e * PLANES;
    return e < WHOLE || line * ROWS < p.channels;
}

/* Bytes from a thread's first line of a tensor in x's layout to its line `e`: all but a constant is
 * added once. */
template <int TYPE> __device__ __forceinline__ i64 first_line(const place &p) {
    return ((i64)p.plane * (ROWS * PIXELS) + p.lane * WIDTH) * bytes_of(TYPE);
}
template <int TYPE> __device__ __forceinline__ constexpr i64 next_lines(int e) {
    return (i64)e * PLANES * ROWS * PIXELS * bytes_of(TYPE);
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
    return (entry *)(dynamic_shared + BLOCKS_AT) + ((p.round & 1) * CLUSTER + block) * TILE + pixel;
}

/* Before the sums of a tile are sent: how much will come. One thread calls. */
__device__ __forceinline__ void expect_blocks(const place &p) {
    byte_barrier_expect(shared_address(p.byte_barriers + (p.round & 1)),
                        CLUSTER * TILE * sizeof(entry));
}
__device__ __forceinline__ void send_to_blocks(const place &p, int pixel, const total *v) {
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
        : pixel(ROWS > 1 ? least(i / ROWS, TILE - 1) : i), element(i % ROWS * TILE + pixel),
          is_idle(ROWS > 1 && (i % ROWS || i >= LINE)) {}
};
/* Whether a warp has such a place; without rows, a thread. */
__device__ __forceinline__ bool is_in_line(int i) { return (ROWS > 1 ? i / 32 * 32 : i) < LINE; }

/* What the lanes of a pixel's rows have, summed; whole warps call. */
__device__ __forceinline__ total sum_over_rows(total v) {
    return ROWS == 1 ? v : sum_over_lanes<ROWS>(v, threadIdx.x % 32);
}

/* A whole image that has no ring comes in PHASES, and is summed as it comes. */
constexpr int PHASES = FLAT && STAGES == 1 && WHOLE >= (FORWARD ? 8 : 4) ? 4 : 1;
constexpr int PHASE_EACH = ceil_div(EACH, PHASES); /* lines of a thread in a phase */
__device__ __forceinline__ int phase_begin(const place &p, int phase) {
    return phase == 0 ? 0 : least(p.channels, phase * PHASE_EACH * PLANES * ROWS);
}

/* ---- Forward ----------------------------------------------------------------------------------- */

/* From sums about p + d to sums about p, of n elements. */
__device__ __forceinline__ void shift(total d, total n, total &a, total &b) {
    total shifted = multiply_add(n, d, a);
    b = multiply_add(d, a + shifted, b);
    a = shifted;
}

/* Sums are made by eights, so that errors do not add up along a long chain. */
constexpr int CHAIN = 8;

/* Lines the pivot is the mean of: a power of two, so that equal values give it exactly. */
constexpr int PIVOTS = power_of_two_up_to(least(HALF ? 16 : WHOLE, least(WHOLE, PHASE_EACH)));

/* Pivot, sum and squares of a thread's pixels. */
struct pixel_sums {
    float v[3][WIDTH];
};

template <bool SCALED>
__device__ __forceinline__ void begin_sums(const place &p, const float *scale, pixel_sums &s) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        s.v[0][i] = s.v[1][i] = s.v[2][i] = 0;
    if (!LAYER)
        return;
#pragma unroll 4
    for (int e = 0; e < PIVOTS; e++) {
        const auto c = elements_of<X_TYPE>(p, X_AT, p.plane + e * PLANES);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float x = element<X_TYPE>(c.word, i);
            s.v[0][i] += SCALED ? x * scale[i] : x;
        }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        s.v[0][i] *= (float)(1.0 / PIVOTS);
}

/* Adds lines [begin, end) of a thread's. */
template <bool SCALED>
__device__ __forceinline__ void add_lines(const place &p, const float *scale, pixel_sums &s,
                                          int begin, int end) {
#pragma unroll 1
    for (int first = begin; first < end; first += CHAIN) {
        float part[2][WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            part[0][i] = part[1][i] = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            int line;
            if (first + j >= end || !line_of(p, first + j, line))
                continue;
            const auto c = elements_of<X_TYPE>(p, X_AT, line);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                float d = element<X_TYPE>(c.word, i);
                if (SCALED)
                    d *= scale[i];
                if (LAYER) {
                    d -= s.v[0][i];
                    part[0][i] += d;
                }
                part[1][i] = multiply_add(d, d, part[1][i]);
            }
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            s.v[1][i] += part[0][i];
            s.v[2][i] += part[1][i];
        }
    }
}

/* The sums of a tile's pixels, phase after phase as they come. */
template <int PHASE> __device__ __forceinline__ void sum_phases(const place &p, pixel_sums &s) {
    copy_async_wait<PHASES - 1 - PHASE>();
    __syncthreads();
    if (p.has) {
        if constexpr (PHASE == 0)
            begin_sums<false>(p, nullptr, s);
        add_lines<false>(p, nullptr, s, PHASE * PHASE_EACH, least(EACH, (PHASE + 1) * PHASE_EACH));
    }
    if constexpr (PHASE + 1 < PHASES)
        sum_phases<PHASE + 1>(p, s);
}

/* One pixel's moments: what the parts of all planes and blocks make, about the mean of their pivots:
 * any one of these may be far off. */
struct pixel_moments {
    total pivot, sum, squares;
};

/* `from`: an element of a line. */
__device__ __forceinline__ pixel_moments merge_planes(const place &p, const float *from) {
    total away = 0;
    if (LAYER)
#pragma unroll 8
        for (int r = 1; r < PLANES; r++)
            away += (total)from[r * LINE] - (total)from[0];
    pixel_moments m = {(total)from[0] + away * (total)(1.0 / PLANES), 0, 0};
#pragma unroll 1
    for (int first = 0; first < PLANES; first += CHAIN) {
        total sum = 0, squares = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            const int r = first + j;
            if (r >= PLANES)
                continue;
            total a = (total)from[(PLANES + r) * LINE], b = (total)from[(2 * PLANES + r) * LINE];
            if (LAYER) {
                const int lines = (CLUSTER > 1 ? p.channels : DEPTH) / ROWS;
                shift((total)from[r * LINE] - m.pivot, (total)((lines - 1 - r) / PLANES + 1), a, b);
            }
            sum += a;
            squares += b;
        }
        m.sum += sum;
        m.squares += squares;
    }
    return m;
}

/* What a pixel's rows have, about the mean of their pivots; whole warps call. */
__device__ __forceinline__ pixel_moments merge_rows(const place &p, pixel_moments m) {
    if (ROWS == 1)
        return m;
    if (LAYER) {
        const total pivot = sum_over_rows(m.pivot) * (total)(1.0 / ROWS);
        shift(m.pivot - pivot, (total)((CLUSTER > 1 ? p.channels : DEPTH) / ROWS), m.sum, m.squares);
        m.pivot = pivot;
    }
    m.sum = sum_over_rows(m.sum);
    m.squares = sum_over_rows(m.squares);
    return m;
}

__device__ __forceinline__ pixel_moments merge_blocks(const place &p, int pixel) {
    const total first = entries_of(p, 0, pixel)->value[0];
    total away = 0;
    if (LAYER)
#pragma unroll
        for (int b = 1; b < CLUSTER; b++)
            away += entries_of(p, b, pixel)->value[0] - first;
    pixel_moments m = {first + away * (total)(1.0 / CLUSTER), 0, 0};
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) {
        const entry e = *entries_of(p, b, pixel);
        total sum = e.value[1], squares = e.value[2];
        if (LAYER)
            shift(e.value[0] - m.pivot, (total)(b < CLUSTER - 1 ? DEPTH : FEWEST), sum, squares);
        m.sum += sum;
        m.squares += squares;
    }
    return m;
}

/* The pixel's moments from its sums, which are scaled by `scale`; returns whether float holds them
 * (0), or they are too large (1) or too small (-1). */
template <bool SCALED>
__device__ __forceinline__ int set_moments(const channels_args &args, const place &p, int pixel,
                                           const pixel_moments &m, float scale) {
    typedef typename total_of<HALF && WHOLE >= 4 && !SCALED>::type wide;
    wide delta = LAYER ? (wide)m.sum * (wide)(1.0 / COLS) : 0;
    wide variance = (LAYER ? multiply_add(-(wide)m.sum, delta, (wide)m.squares) : (wide)m.squares) *
                    (wide)(1.0 / COLS);
    if (variance < 0)
        variance = 0;
    wide pivot = (wide)m.pivot;
    if (SCALED) {
        const double back = scale < 1 ? 0x1p64 : 0x1p-64;
        variance *= back * back;
        delta *= back;
        pivot *= back;
    }
    const int beyond = !WIDE_RANGE                                 ? 0
                       : !(m.squares < (total)1e36)                ? 1
                       : args.eps_is_small && m.squares < (total)1e-28 ? -1
                                                                   : 0;
    const real rstd = reciprocal_root(variance + (wide)args.eps);
    const float mean = (float)(pivot + delta);
    p.moments[pixel] = {mean, (float)((pivot - mean) + delta), rstd,
                        SCALED ? scale : (float)beyond};
    if (p.block == 0 && pixel < p.pixels && (SCALED || !beyond)) {
        const i64 at = p.first_pixel + pixel;
        store_element<MEAN_TYPE>((char *)args.mean + p.image * args.mean_image, at,
                                 (real)((double)pivot + (double)delta));
        store_element<RSTD_TYPE>((char *)args.rstd + p.image * args.rstd_image, at, rstd);
    }
    return beyond;
}

/* Sets a pixel's moments where they are wanted; `again`, in shared memory, says that a pixel has to
 * be scaled. */
template <bool SCALED>
__device__ __forceinline__ void finish_pixel(const channels_args &args, const place &p, int pixel,
                                             const pixel_moments &m, int *again) {
    const float was = SCALED ? p.moments[pixel].w : 0;
    if (SCALED && was == 0)
        return;
    const int beyond =
        set_moments<SCALED>(args, p, pixel, m, SCALED ? (was > 0 ? 0x1p-64f : 0x1p64f) : 1);
    if (!SCALED && beyond && pixel < p.pixels)
        *again = 1;
}

/* Merges what the threads summed. */
template <bool SCALED>
__device__ __forceinline__ void merge_pixels(const channels_args &args, place &p, int *again) {
    __syncthreads();
    if (CLUSTER > 1 && threadIdx.x == 0)
        expect_blocks(p);
    for (int i = threadIdx.x; is_in_line(i); i += THREADS) {
        const merged_place at(i);
        const pixel_moments m = merge_rows(p, merge_planes(p, p.parts + at.element));
        const total v[4] = {m.pivot, m.sum, m.squares, 0};
        if (at.is_idle)
            continue;
        if (CLUSTER > 1)
            send_to_blocks(p, at.pixel, v);
        else
            finish_pixel<SCALED>(args, p, at.pixel, m, again);
    }
    if (CLUSTER > 1) {
        wait_for_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS)
            finish_pixel<SCALED>(args, p, pixel, merge_blocks(p, pixel), again);
    }
    p.round++;
    __syncthreads();
}

__device__ __forceinline__ float output_of(float x, const four_floats &m, float weight, float bias) {
    if (LAYER)
        x = (x - m.x) - m.y;
    x *= m.z;
    if (WEIGHTED && BIASED)
        return multiply_add(x, weight, bias);
    return WEIGHTED ? x * weight : BIASED ? x + bias : x;
}

/* The output in x's own layout; `out`: of the thread's first line. */
__device__ __forceinline__ void write_channels(const channels_args &args, const place &p, char *out) {
    constexpr int B = bytes_of(Y_TYPE);
    four_floats m[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        m[i] = p.moments[pixel_of(p, i)];
#pragma unroll 8
    for (int e = 0; e < EACH; e++) {
        int line;
        if (!line_of(p, e, line))
            continue;
        const auto c = elements_of<X_TYPE>(p, X_AT, line);
        const of_channels<WEIGHTED> w(p, p.weight, line);
        const of_channels<BIASED> b(p, p.bias, line);
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = output_of(element<X_TYPE>(c.word, i), m[i], w.at(p, i), b.at(p, i));
        const auto y = pack<Y_TYPE, WIDTH>(v);
        if constexpr (HOLD)
            store_to_shared<WIDTH * B>(
                p.room + X_AT + channel_at<B>(line * ROWS) + p.lane * (WIDTH * B), y);
        else
            store_once<WIDTH * B, Y_ACCESS>(
                out + next_lines<Y_TYPE>(e), y);
    }
}

/* Writes the tile from shared memory, in as wide stores as its place allows. */
__device__ __forceinline__ void write_held(const place &p, char *out) {
    constexpr int B = bytes_of(Y_TYPE), A = most(least(Y_ACCESS, 16), B);
    const int count = p.channels * PIXELS * B / A;
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += THREADS)
        store_once<A, A>(out + (i64)i * A, load_from_shared<A>(p.room + X_AT + i * A));
}

/* The output with the channels of a pixel side by side: in a warp 8 pixels by 4 chunks of them. */
__device__ __forceinline__ void write_pixels(const channels_args &args, const place &p, char *out) {
    constexpr int B = bytes_of(Y_TYPE), XB = bytes_of(X_TYPE), STEP = Y_ACCESS / B;
    constexpr int QUADS = ceil_div(ceil_div(DEPTH, STEP), 4), OCTETS = ceil_div(TILE, 8);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < QUADS * OCTETS; i += WARPS) {
        const int channel = (i % QUADS * 4 + lane % 4) * STEP, pixel = i / QUADS * 8 + lane / 4;
        if (channel >= p.channels || pixel >= p.pixels)
            continue;
        const four_floats m = p.moments[pixel];
        float v[STEP];
#pragma unroll
        for (int j = 0; j < STEP; j++) {
            const auto c = load_from_shared<XB>(p.room + X_AT + channel_at<XB>(channel + j) + pixel * XB);
            v[j] = output_of(element<X_TYPE>(c.word, 0), m, WEIGHTED ? p.weight[channel + j] : 1,
                             BIASED ? p.bias[channel + j] : 0);
        }
        store_once<STEP * B, STEP * B>(out + ((i64)pixel * COLS + channel) * B,
                                       pack<Y_TYPE, STEP>(v));
    }
}

__device__ __forceinline__ void fill_forward(const channels_args &args, const place &p) {
    const char *x = (const char *)args.x + p.image * args.x_image;
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        fill<X_TYPE, X_ACCESS>(p, p.room + X_AT, x + element_of_tile(p) * bytes_of(X_TYPE),
                               phase_begin(p, phase), phase_begin(p, phase + 1));
        copy_async_commit();
    }
}

__device__ __forceinline__ void forward_unit(const channels_args &args, place &p, int *again) {
    char *y = (char *)args.out + p.image * args.out_image;
    if (WIDE_RANGE && threadIdx.x == 0)
        *again = 0;
    pixel_sums sums;
    sum_phases<0>(p, sums);
    if (p.has)
        put_parts(p, sums.v);
    merge_pixels<false>(args, p, again);
    if (WIDE_RANGE && *again) {
        if (p.has) {
            float scale[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float beyond = p.moments[pixel_of(p, i)].w;
                scale[i] = beyond > 0 ? 0x1p-64f : beyond < 0 ? 0x1p64f : 1;
            }
            begin_sums<true>(p, scale, sums);
            add_lines<true>(p, scale, sums, 0, EACH);
            put_parts(p, sums.v);
        }
        merge_pixels<true>(args, p, again);
    }
    if constexpr (LAST) {
        write_pixels(args, p, y + ((i64)p.first_pixel * COLS + p.first) * bytes_of(Y_TYPE));
    } else {
        char *out = y + element_of_tile(p) * bytes_of(Y_TYPE);
        if (p.has)
            write_channels(args, p, out + first_line<Y_TYPE>(p));
        if constexpr (HOLD) {
            __syncthreads();
            write_held(p, out);
        }
    }
}

__device__ __forceinline__ void forward_units(const channels_args &args, place &p, int *again) {
    /* The compiler asks for weights between the phases: alone in its multiprocessor a block would wait
     * for them all. */
    constexpr bool WEIGHTS_FIRST = CLUSTER > 1 && PHASES > 1;
    i64 unit = blockIdx.x / CLUSTER;
    affine a;
    load_affine(args, p, a);
    if (WEIGHTS_FIRST)
        store_affine(args, p, a);
    set_unit(p, unit);
    fill_forward(args, p);
    if (!WEIGHTS_FIRST)
        store_affine(args, p, a); /* in the loop it would be made ready before the copies */
    if (CLUSTER > 1)
        cluster_wait();
    for (;;) {
        forward_unit(args, p, again);
        unit += gridDim.x / CLUSTER;
        if (unit >= args.units)
            break;
        __syncthreads(); /* the next tile takes this one's place */
        set_unit(p, unit);
        fill_forward(args, p);
    }
}

/* ---- Backward ---------------------------------------------------------------------------------- */

struct gradients {
    float weight[FORWARD ? 1 : EACH], bias[FORWARD ? 1 : EACH];
};

/* Copies a float to shared memory, asynchronously where it is one. */
template <int TYPE>
__device__ __forceinline__ void copy_float(float *to, const void *from, i64 at) {
    if constexpr (TYPE == F32)
        copy_async<4, 4>(shared_address(to), (const float *)from + at, true);
    else
        *to = load_element<TYPE>(from, at);
}

/* Starts to bring a phase of a unit's tiles, with the first its pixels' saved moments. */
__device__ __forceinline__ void fill_phase(const channels_args &args, const place &p, u32 room,
                                           float *saved, int phase) {
    const i64 at = element_of_tile(p);
    fill<X_TYPE, X_ACCESS>(p, room + X_AT,
                           (const char *)args.x + p.image * args.x_image + at * bytes_of(X_TYPE),
                           phase_begin(p, phase), phase_begin(p, phase + 1));
    fill<G_TYPE, G_ACCESS>(p, room + G_AT,
                           (const char *)args.dy + p.image * args.dy_image + at * bytes_of(G_TYPE),
                           phase_begin(p, phase), phase_begin(p, phase + 1));
    if (phase == 0)
#pragma unroll(CROWDED ? 1 : 4)
        for (int pixel = threadIdx.x; pixel < p.pixels; pixel += THREADS) {
            if constexpr (LAYER && MEAN_TYPE != NONE)
                copy_float<MEAN_TYPE>(saved + pixel,
                                      (const char *)args.mean + p.image * args.mean_image,
                                      p.first_pixel + pixel);
            copy_float<RSTD_TYPE>(saved + TILE + pixel,
                                  (const char *)args.rstd + p.image * args.rstd_image,
                                  p.first_pixel + pixel);
        }
}

/* Starts to bring a unit to a stage of the ring. */
__device__ __forceinline__ void fill_stage(const channels_args &args, place p, i64 unit, int stage) {
    const bool there = unit < args.units;
    if (there)
        set_unit(p, unit);
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        if (there)
            fill_phase(args, p, p.room + stage * STAGE_BYTES, p.saved + stage * (2 * TILE), phase);
        copy_async_commit();
    }
}

/* A thread's pixels in the backward. */
struct pixel_gradients {
    float mean[WIDTH], rstd[WIDTH];
    float sums[3][WIDTH]; /* of g, g * xhat and xhat over its lines */
};

__device__ __forceinline__ void begin_gradients(const place &p, pixel_gradients &t) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        t.sums[0][i] = t.sums[1][i] = t.sums[2][i] = 0;
        t.mean[i] = LAYER ? p.saved[pixel_of(p, i)] : 0;
        t.rstd[i] = p.saved[TILE + pixel_of(p, i)];
    }
}

/* Adds lines [begin, end) of a thread's. */
__device__ __forceinline__ void add_gradients(const place &p, pixel_gradients &t, int begin, int end) {
#pragma unroll 4
    for (int e = begin; e < end; e++) {
        int line;
        if (!line_of(p, e, line))
            continue;
        const auto c = elements_of<X_TYPE>(p, X_AT, line);
        const auto d = elements_of<G_TYPE>(p, G_AT, line);
        const of_channels<WEIGHTED> w(p, p.weight, line);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float xhat = element<X_TYPE>(c.word, i), g = element<G_TYPE>(d.word, i);
            if (LAYER)
                xhat -= t.mean[i];
            xhat *= t.rstd[i];
            if (WEIGHTED)
                g *= w.at(p, i);
            t.sums[1][i] = multiply_add(g, xhat, t.sums[1][i]);
            if (LAYER)
                t.sums[0][i] += g;
            if (CORRECT)
                t.sums[2][i] += xhat;
        }
    }
}

/* The sums of the unit that is in the ring's present stage, phase after phase as they come. */
template <int PHASE> __device__ __forceinline__ void sum_gradients(const place &p, pixel_gradients &t) {
    copy_async_wait<(PHASES > 1 ? PHASES - 1 - PHASE : STAGES - 1)>();
    __syncthreads();
    if (p.has) {
        if constexpr (PHASE == 0)
            begin_gradients(p, t);
        add_gradients(p, t, PHASE * PHASE_EACH, least(EACH, (PHASE + 1) * PHASE_EACH));
    }
    if constexpr (PHASE + 1 < PHASES)
        sum_gradients<PHASE + 1>(p, t);
}

/* c1, c2 and the mean of xhat (not 0 where the saved mean was rounded) of a pixel, from its sums. */
__device__ __forceinline__ void set_common(const place &p, int pixel, const total *v) {
    const total delta = CORRECT ? v[2] * (total)(1.0 / COLS) : 0;
    const total c2 = multiply_add(-delta, v[0], v[1]) * (total)(1.0 / COLS);
    const total c1 = v[0] * (total)(1.0 / COLS);
    p.moments[pixel] = {(float)c1, (float)c2, (float)delta, 0};
}

__device__ __forceinline__ void merge_gradients(place &p) {
    __syncthreads();
    if (CLUSTER > 1 && threadIdx.x == 0)
        expect_blocks(p);
    for (int i = threadIdx.x; is_in_line(i); i += THREADS) {
        const merged_place at(i);
        total v[4] = {0, 0, 0, 0};
#pragma unroll(CROWDED ? 4 : 8)
        for (int r = 0; r < PLANES; r++)
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                v[j] += (total)p.parts[(j * PLANES + r) * LINE + at.element];
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            v[j] = sum_over_rows(v[j]);
        if (at.is_idle)
            continue;
        if (CLUSTER > 1)
            send_to_blocks(p, at.pixel, v);
        else
            set_common(p, at.pixel, v);
    }
    if (CLUSTER > 1) {
        wait_for_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS) {
            total v[3] = {0, 0, 0};
#pragma unroll
            for (int b = 0; b < CLUSTER; b++)
#pragma unroll
                for (int j = 0; j < PARTS; j++)
                    v[j] += entries_of(p, b, pixel)->value[j];
            set_common(p, pixel, v);
        }
    }
    p.round++;
    __syncthreads();
}

/* What lane's `row` + 1 adds to dweight and dbias where a lane's elements begin in `row`. */
__device__ __forceinline__ float *cut_of(int row, int line) {
    return (float *)(dynamic_shared + CUT_AT) + (row * LINES + line) * 2;
}

/* dx of lines [begin, end) of a thread's, and what they add to dweight and dbias; `out`: of the
 * thread's first line. */
__device__ __forceinline__ void write_gradients(const place &p, const pixel_gradients &t,
                                                const four_floats *common, char *out,
                                                gradients &sums, int begin, int end) {
    constexpr int B = bytes_of(D_TYPE);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line;
        if (e < begin || e >= end || !line_of(p, e, line))
            continue;
        const auto x = elements_of<X_TYPE>(p, X_AT, line);
        const auto d = elements_of<G_TYPE>(p, G_AT, line);
        const of_channels<WEIGHTED> w(p, p.weight, line);
        float v[WIDTH], cut_weight = 0, cut_bias = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float xhat = element<X_TYPE>(x.word, i), dy = element<G_TYPE>(d.word, i);
            if (LAYER)
                xhat -= t.mean[i];
            xhat *= t.rstd[i];
            if (CORRECT)
                xhat -= common[i].z;
            if (is_first(p, i)) {
                if (WANT_DWEIGHT)
                    sums.weight[e] = multiply_add(dy, xhat, sums.weight[e]);
                if (WANT_DBIAS)
                    sums.bias[e] += dy;
            } else {
                cut_weight = multiply_add(dy, xhat, cut_weight);
                cut_bias += dy;
            }
            const float g = WEIGHTED ? dy * w.at(p, i) : dy;
            v[i] = multiply_add(-xhat, common[i].y, LAYER ? g - common[i].x : g) * t.rstd[i];
        }
        if (ROWS > 1 && (WANT_DWEIGHT || WANT_DBIAS) && is_cut(p)) {
            float *cut = cut_of(p.row, line);
            cut[0] += cut_weight;
            cut[1] += cut_bias;
        }
        if constexpr (D_TYPE != NONE) {
            const auto packed = pack<D_TYPE, WIDTH>(v);
            if constexpr (HOLD)
                store_to_shared<WIDTH * B>(
                    p.room + X_AT + channel_at<B>(line * ROWS) + p.lane * (WIDTH * B), packed);
            else
                store_once<WIDTH * B, D_ACCESS>(
                    out + next_lines<D_TYPE>(e), packed);
        }
    }
}

__device__ __forceinline__ void write_held_gradients(const place &p, char *out) {
    constexpr int B = bytes_of(D_TYPE), A = most(least(D_ACCESS, 16), B);
    const int count = p.channels * PIXELS * B / A;
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += THREADS)
        store_once<A, A>(out + (i64)i * A, load_from_shared<A>(p.room + X_AT + i * A));
}

/* Whether each phase of a unit makes room for the next unit's. */
constexpr bool ROLLING = PHASES > 1 && !HOLD;

/* Works on the unit that is in the ring's present stage, where p.room is. */
__device__ __forceinline__ void backward_unit(const channels_args &args, place &p, gradients &sums,
                                              i64 next) {
    pixel_gradients t;
    four_floats common[WIDTH];
    sum_gradients<0>(p, t);
    if (p.has)
        put_parts(p, t.sums);
    merge_gradients(p);
    if (p.has)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            common[i] = p.moments[pixel_of(p, i)];
    char *out = (char *)args.out + p.image * args.out_image + element_of_tile(p) * bytes_of(D_TYPE);
    const bool more = ROLLING && next < args.units;
    if (more)
        set_unit(p, next);
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        if (p.has)
            write_gradients(p, t, common, out + first_line<D_TYPE>(p), sums, phase * PHASE_EACH,
                            (phase + 1) * PHASE_EACH);
        if (more) {
            __syncthreads();
            fill_phase(args, p, p.room, p.saved, phase);
            copy_async_commit();
        }
    }
    if constexpr (!ROLLING)
        __syncthreads();
    if constexpr (HOLD && D_TYPE != NONE) {
        write_held_gradients(p, out);
        __syncthreads();
    }
}

/* The tiles of a block, each brought while the one before it is worked on. */
__device__ __forceinline__ void backward_units(const channels_args &args, place &p, gradients &sums) {
    constexpr bool AHEAD = STAGES > 1 || ROLLING;
    const i64 step = gridDim.x / CLUSTER;
    const place first = p;
    int stage = 0;
    i64 unit = blockIdx.x / CLUSTER;
    affine a;
    load_affine(args, p, a);
    fill_stage(args, first, unit, 0);
    store_affine(args, p, a);
    if (CLUSTER > 1)
        cluster_wait();
    for (; unit < args.units; unit += step) {
        const int next = STAGES > 1 ? stage ^ 1 : 0;
        if (STAGES > 1)
            fill_stage(args, first, unit + step, next);
        set_unit(p, unit);
        p.room = first.room + stage * STAGE_BYTES;
        p.saved = first.saved + stage * (2 * TILE);
        backward_unit(args, p, sums, unit + step);
        if (!AHEAD)
            fill_stage(args, first, unit + step, 0);
        stage = next;
    }
    copy_async_wait<0>();
}

/* A block's sums over its pixels' lanes, in their order, to its row of partial sums; `cut`: which of
 * a pair of cut_of(). */
__device__ __forceinline__ void write_partials(const place &p, const float *sums, int cut, float *to) {
    constexpr int STEP = LINES | 1;          /* odd, so that a warp's lanes meet other banks */
    float *room = (float *)dynamic_shared; /* [LANES][STEP] in the place of the tiles and parts */
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line;
        if (p.active && line_of(p, e, line))
            room[p.lane * STEP + line] = sums[e];
    }
    __syncthreads();
    for (int channel = threadIdx.x; channel < p.channels; channel += THREADS) {
        const int line = channel / ROWS, row = channel % ROWS;
        const int begin = ROWS > 1 ? ceil_div(row * TILE, WIDTH) : 0;
        const int end = ROWS > 1 ? ceil_div((row + 1) * TILE, WIDTH) : LANES;
        float v = ROWS > 1 && row > 0 ? cut_of(row - 1, line)[cut] : 0;
#pragma unroll 8
        for (int l = begin; l < end; l++)
            v += room[l * STEP + line];
        to[(i64)(blockIdx.x / CLUSTER) * COLS + p.first + channel] = v;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_channels(const channels_args args) {
    __shared__ u64 byte_barriers[2];
    __shared__ int again;
    place p;
    p.lane = threadIdx.x % LANES;
    p.plane = threadIdx.x / LANES;
    p.row = ROWS > 1 ? p.lane * WIDTH / TILE : 0;
    p.pixel = p.lane * WIDTH - p.row * TILE;
    p.active = p.plane < PLANES;
    p.block = CLUSTER > 1 ? (int)cluster_rank() : 0;
    p.first = p.block * DEPTH;
    p.channels = p.block < CLUSTER - 1 ? DEPTH : FEWEST;
    p.room = shared_address(dynamic_shared);
    p.round = 0;
    p.byte_barriers = byte_barriers;
    p.parts = (float *)(dynamic_shared + PARTS_AT);
    p.moments = (four_floats *)(dynamic_shared + MOMENTS_AT);
    p.saved = (float *)(dynamic_shared + SAVED_AT);
    p.weight = (float *)(dynamic_shared + WEIGHT_AT);
    p.bias = (float *)(dynamic_shared + BIAS_AT);
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    gradients sums;
    if constexpr (!FORWARD)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            sums.weight[e] = sums.bias[e] = 0;
    if constexpr (!FORWARD && ROWS > 1)
        for (int i = threadIdx.x; i < (ROWS - 1) * LINES * 2; i += THREADS)
            cut_of(0, 0)[i] = 0; /* before the first barrier of a unit */
    if constexpr (FORWARD) {
        forward_units(args, p, &again);
    } else {
        backward_units(args, p, sums);
        __syncthreads();
    }
    if constexpr (!FORWARD && WANT_DWEIGHT)
        write_partials(p, sums.weight, 0, args.partial_weight);
    if constexpr (!FORWARD && WANT_DBIAS)
        write_partials(p, sums.bias, 1, args.partial_bias);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}
