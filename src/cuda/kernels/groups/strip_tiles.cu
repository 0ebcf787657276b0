/*
 * A part of strips.cu: what follows from its constants, which pixels and channels of a strip a thread
 * has, where they lie in shared memory, how they come there, and in which steps they are written.
 */
constexpr int STRIPS = ceil_div(COLS, TILE_CHANNELS);
constexpr int STRIP_GROUPS = TILE_CHANNELS / DEPTH;
constexpr int STEP = WARPS * PLANES;
constexpr int STEPS = ceil_div(PIECE, STEP);
/* Steps that wait in shared memory between sums and output. What is more, the loose ones, is read again. */
constexpr int HELD = HOLD > 0 ? least(HOLD, STEPS) : STEPS;
constexpr bool HAS_LOOSE = HELD < STEPS;
/* Parts of a thread's held steps, each summed while the next ones are on their way; the first has the four
 * that pivots are found from. */
constexpr int PARTS = HELD >= 13 ? 4 : HELD >= 10 ? 3 : HELD >= 8 ? 2 : 1;
constexpr int PART = ceil_div(HELD, PARTS);
/* Of a strip these are summed before the one in front of it has been written. */
constexpr int PARTS_AHEAD = AHEAD ? PARTS - 1 : 0;

/* A chunk's columns: neighbours of one group, which have one pivot and one sum. */
__device__ constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
constexpr int EACH = gcd(DEPTH, WIDTH);       /* channels of a column */
constexpr int COLUMNS = WIDTH / EACH;
constexpr int GROUP_COLUMNS = DEPTH / EACH;   /* columns of a group */
constexpr int STRIP_COLUMNS = LANES * COLUMNS;

__device__ constexpr int round_to_power(int n) { return n < 2 ? 1 : 2 * round_to_power((n + 1) / 2); }
__device__ constexpr int round_up(int bytes) { return (bytes + 15) / 16 * 16; }
constexpr int HELD_PIXELS = HAS_LOOSE ? HELD * STEP : PIECE;
constexpr int DY_AT = round_up(HELD_PIXELS * LANES * X_BYTES);
constexpr int SUMS_AT = DY_AT + (FORWARD ? 0 : round_up(HELD_PIXELS * LANES * DY_BYTES));
constexpr int SUM_COUNT = (FORWARD || CORRECT ? 3 : 2) * WARPS * (FORWARD ? STRIP_COLUMNS : TILE_CHANNELS);
constexpr int MAIL_AT = SUMS_AT + round_up(4 * SUM_COUNT);

/* Blocks of a strip, and what they tell each other of a group: three values. Those of 16-bit tensors
 * are rounded to floats, which are sums of floats over one block. */
constexpr bool COOPERATIVE = COOPERATING_BLOCKS > 1;
constexpr int BLOCKS = COOPERATIVE ? COOPERATING_BLOCKS : CLUSTER;
template <bool FULL> struct message_of {
    typedef double type;
};
template <> struct message_of<false> {
    typedef float type;
};
typedef message_of<X_TYPE == F32>::type message;
constexpr int MESSAGE_BYTES = 4 * sizeof(message);
constexpr int FOUND_AT = MAIL_AT + (CLUSTER == 1 ? 0 : STRIP_GROUPS * CLUSTER * MESSAGE_BYTES);

/* What a thread does in a strip. Pixels are those of the block. */
struct strip_place {
    i64 image;
    int group, groups;  /* the strip's first, and how many it has */
    int chunk, channel; /* the thread's, and the first of its channels */
    int rank;           /* the block's of the strip's */
    int first, pixels;  /* its first pixel of the image, and how many it has */
    int begin, steps;   /* the thread's first pixel, and how many it has */
    int lane, warp;
};

__device__ __forceinline__ int pixels_of_block(int rank) { return least(PIECE, PIXELS - rank * PIECE); }

constexpr i64 NO_STRIP = -1; /* in which a thread has no pixel */

__device__ __forceinline__ strip_place place_of(i64 unit) {
    strip_place p;
    p.image = unit / STRIPS;
    const int strip = (int)(unit - p.image * STRIPS);
    p.lane = threadIdx.x % WARP;
    p.warp = threadIdx.x / WARP;
    p.group = strip * STRIP_GROUPS;
    p.groups = least(STRIP_GROUPS, GROUPS - p.group);
    p.chunk = p.lane % LANES;
    p.channel = strip * TILE_CHANNELS + p.chunk * WIDTH;
    p.rank = COOPERATIVE ? blockIdx.x % COOPERATING_BLOCKS : CLUSTER > 1 ? (int)cluster_rank() : 0;
    p.first = p.rank * PIECE;
    p.pixels = pixels_of_block(p.rank);
    const int plane = p.lane / LANES;
    p.begin = p.warp * PLANES + plane;
    const bool there = unit >= 0 && plane < PLANES && p.channel < COLS && p.begin < p.pixels;
    p.steps = there ? (p.pixels - p.begin + STEP - 1) / STEP : 0;
    return p;
}

/* How many of a thread's steps are held. */
__device__ __forceinline__ int held_of(const strip_place &p) { return HAS_LOOSE ? least(p.steps, HELD) : p.steps; }

/* How many pixels warp `warp` has of a block's `pixels`. */
__device__ __forceinline__ int pixels_of_warp(int warp, int pixels) {
    const int whole = pixels / STEP, rest = pixels - whole * STEP - warp * PLANES;
    return whole * PLANES + most(0, least(rest, PLANES));
}

/* Bytes from an image to the thread's first pixel. */
template <int TYPE> __device__ __forceinline__ i64 first_byte(const strip_place &p) {
    return ((i64)(p.first + p.begin) * COLS + p.channel) * bytes_of(TYPE);
}

/* ---- Shared memory ------------------------------------------------------------------------------ */

/* Where step k of a thread lies in a tile of chunks of B bytes. */
template <int B> __device__ __forceinline__ u32 chunk_at(u32 tile, const strip_place &p, int k) {
    return tile + ((p.begin + k * STEP) * LANES + p.chunk) * B;
}

/* Copies chunk k of the thread; `from` is its first. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void fill(u32 tile, const char *from, const strip_place &p, int k) {
    constexpr int B = WIDTH * bytes_of(TYPE);
    const char *at = from + (i64)k * STEP * COLS * bytes_of(TYPE);
    copy_in<B, ACCESS>(chunk_at<B>(tile, p, k), at, true);
}

/* A thread's chunks on their way to shared memory. */
struct filling {
    const strip_place &p;
    u32 tile;
    const char *x, *dy;

    __device__ __forceinline__ filling(const groups_args &args, const strip_place &place) : p(place) {
        tile = shared_address(dynamic_shared);
        x = (const char *)args.x + p.image * args.x_image + first_byte<X_TYPE>(p);
        dy = FORWARD ? nullptr
                     : (const char *)args.dy + p.image * args.dy_image + first_byte<DY_TYPE>(p);
    }
    __device__ __forceinline__ void ask(int k) const {
        if (k >= held_of(p))
            return;
        fill<X_TYPE, X_ACCESS>(tile, x, p, k);
        if constexpr (!FORWARD)
            fill<DY_TYPE, DY_ACCESS>(tile + DY_AT, dy, p, k);
    }
};

__device__ __forceinline__ void fill_all(const groups_args &args, const strip_place &p) {
    const filling f(args, p);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int k = 0; k < PART; k++)
            f.ask(part * PART + k);
        copy_async_commit();
    }
}

/* What was found of a row: forward, moments and whether it leaves float's range; backward, common. */
__device__ __forceinline__ float *found_of(int group) {
    return (float *)(dynamic_shared + FOUND_AT) + 4 * group;
}

/* ---- What many threads want of channels and rows --------------------------------------------------- */

/* Where chunks are of many groups, or nothing is to wait for but shared memory, each number comes there
 * once, and not to every thread. */
constexpr bool STAGED = !COOPERATIVE && (CLUSTER == 1 || EACH == 1);
constexpr int STAGED_AT = FOUND_AT + STRIP_GROUPS * 16;

/* Weights and biases of the strip's channels, and its rows' means, what these leave, and rstds. */
__device__ __forceinline__ float *staged_channels(int which) {
    return (float *)(dynamic_shared + STAGED_AT) + which * TILE_CHANNELS;
}
__device__ __forceinline__ float *staged_rows(int which) {
    return staged_channels(2) + which * STRIP_GROUPS;
}

/* What a thread brings there: asked for ahead of the copies, behind which it would come last, and looked at
 * after them, which need not wait for it. */
struct staging {
    static constexpr int CHANNELS = ceil_div(TILE_CHANNELS, THREADS), ROWS = ceil_div(STRIP_GROUPS, THREADS);
    chunk<bytes_of(WEIGHT_TYPE)> weight[CHANNELS];
    chunk<bytes_of(BIAS_TYPE)> bias[CHANNELS];
    chunk<bytes_of(MEAN_TYPE)> mean[ROWS];
    chunk<bytes_of(RSTD_TYPE)> rstd[ROWS];

    __device__ __forceinline__ staging(const groups_args &args, const strip_place &p) {
#pragma unroll
        for (int e = 0; STAGED && e < CHANNELS; e++) {
            const int c = threadIdx.x + e * THREADS;
            const i64 at = p.group * DEPTH + c;
            weight[e] = zero_chunk<bytes_of(WEIGHT_TYPE)>();
            bias[e] = zero_chunk<bytes_of(BIAS_TYPE)>();
            if (WEIGHTED && c < p.groups * DEPTH)
                weight[e] = load_as_is<WEIGHT_TYPE>(args.weight, at);
            if (BIASED && c < p.groups * DEPTH)
                bias[e] = load_as_is<BIAS_TYPE>(args.bias, at);
        }
#pragma unroll
        for (int e = 0; STAGED && !FORWARD && e < ROWS; e++) {
            const int g = threadIdx.x + e * THREADS;
            const i64 row = p.image * GROUPS + p.group + g;
            mean[e] = zero_chunk<bytes_of(MEAN_TYPE)>();
            rstd[e] = zero_chunk<bytes_of(RSTD_TYPE)>();
            if (MEANS_SAVED && g < p.groups)
                mean[e] = load_as_is<MEAN_TYPE>((const char *)args.mean + row * args.mean_stride, 0);
            if (g < p.groups)
                rstd[e] = load_as_is<RSTD_TYPE>((const char *)args.rstd + row * args.rstd_stride, 0);
        }
    }
    __device__ __forceinline__ void store() const {
#pragma unroll
        for (int e = 0; STAGED && e < CHANNELS; e++) {
            const int c = threadIdx.x + e * THREADS;
            if (c >= TILE_CHANNELS)
                break;
            staged_channels(0)[c] = weight_from(weight[e]);
            if (BIASED)
                staged_channels(1)[c] = element<BIAS_TYPE>(bias[e].word, 0);
        }
#pragma unroll
        for (int e = 0; STAGED && !FORWARD && e < ROWS; e++) {
            const int g = threadIdx.x + e * THREADS;
            if (g >= STRIP_GROUPS)
                break;
            staged_rows(0)[g] = MEANS_SAVED ? element<MEAN_TYPE>(mean[e].word, 0) : 0;
            if (HAS_REST)
                staged_rows(1)[g] = rest_of(mean[e]);
            staged_rows(2)[g] = element<RSTD_TYPE>(rstd[e].word, 0);
        }
    }
};

/* Weights of the thread's channels, or what stands for them. */
struct affine {
    float weight[WIDTH], bias[WIDTH];
};

/* A thread without a pixel takes the first ones: without a predicate all lie behind one address. */
__device__ __forceinline__ affine affine_of(const groups_args &args, const strip_place &p) {
    const i64 first = p.steps ? p.channel : 0;
    affine out;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if constexpr (STAGED) {
            out.weight[i] = staged_channels(0)[p.chunk * WIDTH + i];
            out.bias[i] = BIASED ? staged_channels(1)[p.chunk * WIDTH + i] : 0;
        } else {
            out.weight[i] = weight_of(args, first + i);
            out.bias[i] = bias_of(args, first + i);
        }
    return out;
}

/* Whether a thread with a pixel of one strip has one of every other. */
constexpr bool ALWAYS_THERE = COLS % TILE_CHANNELS == 0;

/* What follows a part that was asked for: with AHEAD the one before it has come, and take(that) is called. */
template <typename part_taker>
__device__ __forceinline__ void take_part_before(int part, const part_taker &take) {
    copy_async_commit();
    if (AHEAD && part > 0) {
        copy_async_wait<1>();
        take(part - 1);
    }
}

/* Calls write(k) for the thread's held steps. A block that lives on asks for each chunk of the `next` strip
 * as soon as its place is free. */
template <typename step_writer, typename part_taker>
__device__ __forceinline__ void write_steps(const strip_place &p, const filling &next,
                                            const step_writer &write, const part_taker &take) {
    if constexpr (!COOPERATIVE) {
#pragma unroll 2
        for (int k = 0; k < held_of(p); k++)
            write(k);
    } else {
        const int steps = most(held_of(p), held_of(next.p));
#pragma unroll 1
        for (int part = 0; part < PARTS; part++) {
            const int end = least(steps, (part + 1) * PART);
#pragma unroll 2
            for (int k = part * PART; k < end; k++) {
                if (ALWAYS_THERE || p.steps)
                    write(k);
                next.ask(k);
            }
            take_part_before(part, take);
        }
    }
}

/* Calls visit(k, x, dy) with a thread's loose steps, some of them under way at once. FROM_LAST: what was read last
 * comes first, as that is still in the L2. */
template <bool FROM_LAST, typename visitor>
__device__ __forceinline__ void read_loose(const groups_args &args, const strip_place &p, const visitor &visit) {
    if constexpr (HAS_LOOSE) {
        constexpr bool FEW_REGISTERS = MIN_BLOCKS * WARPS > 16;
        constexpr int AT_ONCE = FORWARD ? (FEW_REGISTERS ? 3 : 6) : FEW_REGISTERS ? 2 : 3;
        const filling from(args, p);
#pragma unroll 1
        for (int k = HELD; k < p.steps; k += AT_ONCE) {
            chunk<X_BYTES> x[AT_ONCE];
            chunk<DY_BYTES> dy[AT_ONCE];
            int at[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int step = least(k + j, p.steps - 1);
                at[j] = FROM_LAST ? HELD + p.steps - 1 - step : step;
                const i64 element = (i64)at[j] * STEP * COLS;
                x[j] = load_chunk<X_BYTES, X_ACCESS>(from.x + element * bytes_of(X_TYPE));
                if constexpr (!FORWARD)
                    dy[j] = load_chunk<DY_BYTES, DY_ACCESS>(from.dy + element * bytes_of(DY_TYPE));
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (k + j < p.steps)
                    visit(at[j], x[j], dy[j]);
        }
    }
}
