/*
 * Norms over channels whose pixels are dense: x[image][channel][pixel] is reduced over the channels,
 * a row for each pixel. Forward (PASS 0) and backward (PASS 1), each tensor read and written once.
 *
 * A block (or a cluster of CLUSTER blocks, each with DEPTH of the COLS channels) takes TILE pixels
 * of an image at a time, brought to shared memory by asynchronous copies; then the next tile. TILE
 * is PIXELS where the whole image does: then a block's part is one run of bytes, whatever PIXELS is.
 *
 * Thread (lane, plane) of LANES x PLANES has WIDTH neighbouring pixels and every PLANES-th channel,
 * EACH of them: the sums of a pixel are made of PLANES parts, each about a pivot of its own (forward),
 * merged in their order by one thread, then of CLUSTER parts in theirs. The mean stays a pair. Where squares leave float's range the sums are made again, scaled by a power of two,
 * which the pixel alone decides.
 *
 * The backward has a ring of STAGES tiles, keeps the sums of dweight and dbias of its channels in
 * registers from tile to tile and writes one row of partial sums at the end.
 *
 * LAST (forward): y is dense over channels, then pixels. HOLD: the output goes through shared memory,
 * where a thread's pixels are too few bytes for a store of their own.
 *
 * Constants: PASS KIND COLS PIXELS TILE DEPTH WIDTH LANES PLANES WARPS CLUSTER STAGES LAST HOLD CORRECT
 * WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS G_ACCESS Y_ACCESS D_ACCESS
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
constexpr int EACH = ceil_div(DEPTH, PLANES);
constexpr int FEWEST = COLS - (CLUSTER - 1) * DEPTH; /* channels of the last block of a cluster */
constexpr int WHOLE = FEWEST / PLANES;               /* channels that every thread has */
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
constexpr int MOMENTS_AT = PARTS_AT + round_up(3 * PLANES * TILE * 4);
constexpr int SAVED_AT = MOMENTS_AT + 16 * TILE;
constexpr int WEIGHT_AT = SAVED_AT + (FORWARD ? 0 : round_up(STAGES * 2 * TILE * 4));
constexpr int BIAS_AT = WEIGHT_AT + (WEIGHTED ? round_up(DEPTH * 4) : 0);
constexpr int BLOCKS_AT = BIAS_AT + (BIASED ? round_up(DEPTH * 4) : 0);

struct __align__(16) entry {
    total value[4];
};
struct __align__(16) four_floats {
    float x, y, z, w;
};

struct place {
    int lane, plane;  /* of the sums and the output */
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

/* Pixel `lane` * WIDTH and on of a channel. */
template <int TYPE>
__device__ __forceinline__ chunk<WIDTH * bytes_of(TYPE)> pixels_of(const place &p, int at,
                                                                   int channel) {
    constexpr int B = bytes_of(TYPE);
    return load_from_shared<WIDTH * B>(p.room + at + channel_at<B>(channel) + p.lane * (WIDTH * B));
}

/* Brings channels [begin, end) of a tile to shared memory: `from` is the first pixel of the block's
 * first channel. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void fill(const place &p, u32 to, const char *from, int begin, int end) {
    constexpr int B = bytes_of(TYPE), A = least(ACCESS, 16), RUN = FLAT ? 1 : TILE * B / A;
    const int first = FLAT ? ceil_div(begin * PIXELS * B, A) : begin * RUN;
    const int last = FLAT ? ceil_div(end * PIXELS * B, A) : end * RUN;
    constexpr int AT_ONCE = A < 4 ? 8 : 1;
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
            } else if (there) {
                held[j] = load_once<2, 2>(source);
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
    p.has = p.active && p.lane * WIDTH < p.pixels;
}

/* Bytes from a tensor's image to the tile, by element. */
__device__ __forceinline__ i64 element_of_tile(const place &p) {
    return (i64)p.first * PIXELS + p.first_pixel;
}

__device__ __forceinline__ void load_affine(const channels_args &args, const place &p) {
    for (int c = threadIdx.x; c < p.channels; c += THREADS) {
        if constexpr (WEIGHTED) {
            const float w = load_element<W_TYPE>(args.weight, p.first + c);
            p.weight[c] = WEIGHT_OFFSET ? w + (float)WEIGHT_OFFSET : w; /* adding 0 changes -0 */
        }
        if constexpr (BIASED)
            p.bias[c] = load_element<B_TYPE>(args.bias, p.first + c);
    }
}

/* Channel `e` of a thread; false past the block's last. */
__device__ __forceinline__ bool channel_of(const place &p, int e, int &channel) {
    channel = p.plane + e * PLANES;
    return e < WHOLE || channel < p.channels;
}

/* Writes a thread's parts of its pixels' sums. */
__device__ __forceinline__ void put_parts(const place &p, const float (*v)[WIDTH]) {
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            p.parts[(j * PLANES + p.plane) * TILE + p.lane * WIDTH + i] = v[j][i];
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
        send_to_block(to, bar, b, v);
}
__device__ __forceinline__ void wait_for_blocks(const place &p) {
    byte_barrier_wait(shared_address(p.byte_barriers + (p.round & 1)), p.round >> 1 & 1);
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

/* A whole image comes in PHASES, and is summed as it comes. */
constexpr int PHASES = FORWARD && FLAT && WHOLE >= 8 ? 4 : 1;
constexpr int PHASE_EACH = ceil_div(EACH, PHASES); /* channels of a thread in a phase */
/* Channels the pivot is the mean of: a power of two, so that equal values give it exactly. */
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
        const auto c = pixels_of<X_TYPE>(p, X_AT, p.plane + e * PLANES);
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

/* Adds channels [begin, end) of a thread's. */
template <bool SCALED>
__device__ __forceinline__ void add_channels(const place &p, const float *scale, pixel_sums &s,
                                             int begin, int end) {
#pragma unroll 1
    for (int first = begin; first < end; first += CHAIN) {
        float part[2][WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            part[0][i] = part[1][i] = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            int channel;
            if (first + j >= end || !channel_of(p, first + j, channel))
                continue;
            const auto c = pixels_of<X_TYPE>(p, X_AT, channel);
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
        add_channels<false>(p, nullptr, s, PHASE * PHASE_EACH, least(EACH, (PHASE + 1) * PHASE_EACH));
    }
    if constexpr (PHASE + 1 < PHASES)
        sum_phases<PHASE + 1>(p, s);
}

/* One pixel's moments: what the parts of all planes and blocks make, about the mean of their pivots:
 * any one of these may be far off. */
struct pixel_moments {
    total pivot, sum, squares;
};

__device__ __forceinline__ pixel_moments merge_planes(const place &p, int pixel) {
    const float *from = p.parts + pixel;
    total away = 0;
    if (LAYER)
#pragma unroll 8
        for (int r = 1; r < PLANES; r++)
            away += (total)from[r * TILE] - (total)from[0];
    pixel_moments m = {(total)from[0] + away * (total)(1.0 / PLANES), 0, 0};
#pragma unroll 1
    for (int first = 0; first < PLANES; first += CHAIN) {
        total sum = 0, squares = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            const int r = first + j;
            if (r >= PLANES)
                continue;
            total a = (total)from[(PLANES + r) * TILE], b = (total)from[(2 * PLANES + r) * TILE];
            if (LAYER) {
                const int channels = CLUSTER > 1 ? p.channels : DEPTH;
                shift((total)from[r * TILE] - m.pivot, (total)((channels - 1 - r) / PLANES + 1), a, b);
            }
            sum += a;
            squares += b;
        }
        m.sum += sum;
        m.squares += squares;
    }
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

/* Merges what the threads summed; `again`, in shared memory, says that a pixel has to be scaled. */
template <bool SCALED>
__device__ __forceinline__ void merge_pixels(const channels_args &args, place &p, int *again) {
    __syncthreads();
    if (CLUSTER > 1) {
        if (threadIdx.x == 0)
            expect_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS) {
            const pixel_moments m = merge_planes(p, pixel);
            const total v[4] = {m.pivot, m.sum, m.squares, 0};
            send_to_blocks(p, pixel, v);
        }
        wait_for_blocks(p);
    }
    for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS) {
        const float was = SCALED ? p.moments[pixel].w : 0;
        if (SCALED && was == 0)
            continue;
        const pixel_moments m = CLUSTER > 1 ? merge_blocks(p, pixel) : merge_planes(p, pixel);
        const int beyond =
            set_moments<SCALED>(args, p, pixel, m, SCALED ? (was > 0 ? 0x1p-64f : 0x1p64f) : 1);
        if (!SCALED && beyond && pixel < p.pixels)
            *again = 1;
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

/* The output in x's own layout. */
__device__ __forceinline__ void write_channels(const channels_args &args, const place &p, char *out) {
    constexpr int B = bytes_of(Y_TYPE);
    four_floats m[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        m[i] = p.moments[p.lane * WIDTH + i];
#pragma unroll 8
    for (int e = 0; e < EACH; e++) {
        int channel;
        if (!channel_of(p, e, channel))
            continue;
        const auto c = pixels_of<X_TYPE>(p, X_AT, channel);
        const float w = WEIGHTED ? p.weight[channel] : 1, b = BIASED ? p.bias[channel] : 0;
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = output_of(element<X_TYPE>(c.word, i), m[i], w, b);
        const auto y = pack<Y_TYPE, WIDTH>(v);
        if constexpr (HOLD)
            store_to_shared<WIDTH * B>(
                p.room + X_AT + channel_at<B>(channel) + p.lane * (WIDTH * B), y);
        else
            store_once<WIDTH * B, Y_ACCESS>(
                out + ((i64)channel * PIXELS + p.lane * WIDTH) * B, y);
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

__device__ __forceinline__ void forward_unit(const channels_args &args, place &p, int *again) {
    const char *x = (const char *)args.x + p.image * args.x_image;
    char *y = (char *)args.out + p.image * args.out_image;
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        const int end = (phase + 1) * PHASE_EACH * PLANES;
        fill<X_TYPE, X_ACCESS>(p, p.room + X_AT, x + element_of_tile(p) * bytes_of(X_TYPE),
                               least(p.channels, phase * PHASE_EACH * PLANES),
                               least(p.channels, end));
        copy_async_commit();
    }
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
                const float beyond = p.moments[p.lane * WIDTH + i].w;
                scale[i] = beyond > 0 ? 0x1p-64f : beyond < 0 ? 0x1p64f : 1;
            }
            begin_sums<true>(p, scale, sums);
            add_channels<true>(p, scale, sums, 0, EACH);
            put_parts(p, sums.v);
        }
        merge_pixels<true>(args, p, again);
    }
    if constexpr (LAST) {
        write_pixels(args, p, y + ((i64)p.first_pixel * COLS + p.first) * bytes_of(Y_TYPE));
    } else {
        char *out = y + element_of_tile(p) * bytes_of(Y_TYPE);
        if (p.has)
            write_channels(args, p, out);
        if constexpr (HOLD) {
            __syncthreads();
            write_held(p, out);
        }
    }
    __syncthreads(); /* the next tile takes this one's place */
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

/* Starts to bring a unit's tiles and its pixels' saved moments to a stage of the ring. */
__device__ __forceinline__ void fill_stage(const channels_args &args, place p, i64 unit, int stage) {
    if (unit < args.units) {
        set_unit(p, unit);
        const u32 room = p.room + stage * STAGE_BYTES;
        const i64 at = element_of_tile(p);
        fill<X_TYPE, X_ACCESS>(p, room + X_AT,
                               (const char *)args.x + p.image * args.x_image + at * bytes_of(X_TYPE),
                               0, p.channels);
        fill<G_TYPE, G_ACCESS>(p, room + G_AT,
                               (const char *)args.dy + p.image * args.dy_image +
                                   at * bytes_of(G_TYPE),
                               0, p.channels);
        float *saved = p.saved + stage * (2 * TILE);
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
    copy_async_commit();
}

/* Sums over a thread's channels of g, g * xhat and xhat. */
__device__ __forceinline__ void sum_gradients(const place &p) {
    float v[3][WIDTH], mean[WIDTH], rstd[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        v[0][i] = v[1][i] = v[2][i] = 0;
        mean[i] = LAYER ? p.saved[p.lane * WIDTH + i] : 0;
        rstd[i] = p.saved[TILE + p.lane * WIDTH + i];
    }
#pragma unroll 4
    for (int e = 0; e < EACH; e++) {
        int channel;
        if (!channel_of(p, e, channel))
            continue;
        const auto c = pixels_of<X_TYPE>(p, X_AT, channel);
        const auto d = pixels_of<G_TYPE>(p, G_AT, channel);
        const float w = WEIGHTED ? p.weight[channel] : 1;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float xhat = element<X_TYPE>(c.word, i), g = element<G_TYPE>(d.word, i);
            if (LAYER)
                xhat -= mean[i];
            xhat *= rstd[i];
            if (WEIGHTED)
                g *= w;
            v[1][i] = multiply_add(g, xhat, v[1][i]);
            if (LAYER)
                v[0][i] += g;
            if (CORRECT)
                v[2][i] += xhat;
        }
    }
    put_parts(p, v);
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
    for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS) {
        total v[4] = {0, 0, 0, 0};
#pragma unroll 8
        for (int r = 0; r < PLANES; r++)
#pragma unroll
            for (int j = 0; j < (CORRECT ? 3 : 2); j++)
                v[j] += (total)p.parts[(j * PLANES + r) * TILE + pixel];
        if (CLUSTER > 1)
            send_to_blocks(p, pixel, v);
        else
            set_common(p, pixel, v);
    }
    if (CLUSTER > 1) {
        wait_for_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE; pixel += THREADS) {
            total v[3] = {0, 0, 0};
#pragma unroll
            for (int b = 0; b < CLUSTER; b++)
#pragma unroll
                for (int j = 0; j < 3; j++)
                    v[j] += entries_of(p, b, pixel)->value[j];
            set_common(p, pixel, v);
        }
    }
    p.round++;
    __syncthreads();
}

/* dx of a tile, and what the tile adds to dweight and dbias. */
__device__ __forceinline__ void write_gradients(const place &p, char *out, gradients &sums) {
    constexpr int B = bytes_of(D_TYPE);
    float mean[WIDTH], rstd[WIDTH];
    four_floats c[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        mean[i] = LAYER ? p.saved[p.lane * WIDTH + i] : 0;
        rstd[i] = p.saved[TILE + p.lane * WIDTH + i];
        c[i] = p.moments[p.lane * WIDTH + i];
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int channel;
        if (!channel_of(p, e, channel))
            continue;
        const auto x = pixels_of<X_TYPE>(p, X_AT, channel);
        const auto d = pixels_of<G_TYPE>(p, G_AT, channel);
        const float w = WEIGHTED ? p.weight[channel] : 1;
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float xhat = element<X_TYPE>(x.word, i), dy = element<G_TYPE>(d.word, i);
            if (LAYER)
                xhat -= mean[i];
            xhat *= rstd[i];
            if (CORRECT)
                xhat -= c[i].z;
            if (WANT_DWEIGHT)
                sums.weight[e] = multiply_add(dy, xhat, sums.weight[e]);
            if (WANT_DBIAS)
                sums.bias[e] += dy;
            const float g = WEIGHTED ? dy * w : dy;
            v[i] = multiply_add(-xhat, c[i].y, LAYER ? g - c[i].x : g) * rstd[i];
        }
        if constexpr (D_TYPE != NONE) {
            const auto packed = pack<D_TYPE, WIDTH>(v);
            if constexpr (HOLD)
                store_to_shared<WIDTH * B>(
                    p.room + X_AT + channel_at<B>(channel) + p.lane * (WIDTH * B), packed);
            else
                store_once<WIDTH * B, D_ACCESS>(
                    out + ((i64)channel * PIXELS + p.lane * WIDTH) * B, packed);
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

/* Works on the unit that is in the ring's present stage, where p.room is. */
__device__ __forceinline__ void backward_unit(const channels_args &args, place &p, gradients &sums) {
    if (p.has)
        sum_gradients(p);
    merge_gradients(p);
    char *out = (char *)args.out + p.image * args.out_image + element_of_tile(p) * bytes_of(D_TYPE);
    if (p.has)
        write_gradients(p, out, sums);
    __syncthreads();
    if constexpr (HOLD && D_TYPE != NONE) {
        write_held_gradients(p, out);
        __syncthreads();
    }
}

/* The tiles of a block, each brought while the one before it is worked on. */
__device__ __forceinline__ void backward_units(const channels_args &args, place &p, gradients &sums) {
    const i64 step = gridDim.x / CLUSTER;
    const place first = p;
    int stage = 0;
    i64 unit = blockIdx.x / CLUSTER;
    if (STAGES > 1)
        fill_stage(args, first, unit, 0);
    for (; unit < args.units; unit += step) {
        const int next = STAGES > 1 ? stage ^ 1 : 0;
        fill_stage(args, first, STAGES > 1 ? unit + step : unit, next);
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        set_unit(p, unit);
        p.room = first.room + stage * STAGE_BYTES;
        p.saved = first.saved + stage * (2 * TILE);
        backward_unit(args, p, sums);
        stage = next;
    }
    copy_async_wait<0>();
}

/* A block's sums over its pixels' lanes, in their order, to its row of partial sums. */
__device__ __forceinline__ void write_partials(const place &p, const float *sums, float *to) {
    float *room = (float *)dynamic_shared; /* [LANES][DEPTH] in the place of the tiles */
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int channel;
        if (p.active && channel_of(p, e, channel))
            room[p.lane * DEPTH + channel] = sums[e];
    }
    __syncthreads();
    for (int channel = threadIdx.x; channel < p.channels; channel += THREADS) {
        float v = 0;
        for (int l = 0; l < LANES; l++)
            v += room[l * DEPTH + channel];
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
    load_affine(args, p);
    if (CLUSTER > 1)
        cluster_wait();
    gradients sums;
    if constexpr (!FORWARD)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            sums.weight[e] = sums.bias[e] = 0;
    if constexpr (FORWARD) {
        for (i64 unit = blockIdx.x / CLUSTER; unit < args.units; unit += gridDim.x / CLUSTER) {
            set_unit(p, unit);
            forward_unit(args, p, &again);
        }
    } else {
        backward_units(args, p, sums);
        __syncthreads();
    }
    if constexpr (!FORWARD && WANT_DWEIGHT)
        write_partials(p, sums.weight, args.partial_weight);
    if constexpr (!FORWARD && WANT_DBIAS)
        write_partials(p, sums.bias, args.partial_bias);
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}
