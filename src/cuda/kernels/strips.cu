/*
 * Norms over groups of channels of images stored by pixel, in one read. Some blocks take a strip of an
 * image: TILE channels, whole groups, of every pixel. A block has PIECE pixels of it in shared
 * memory; a thread has a chunk of WIDTH channels of every STEP-th pixel, which it alone copies, sums and
 * writes, so that threads wait for each other only where sums meet: over the pixels of a warp by shuffles,
 * over warps by shared memory, over the strip's blocks by messages. Forward (PASS 0) or backward (1).
 *
 * GROUP 1: the blocks are a cluster of CLUSTER, which store into each other's shared memory, and take one
 * strip; as others write, new ones start to read. GROUP > 1 (then CLUSTER 1, a cooperative launch): they
 * are GROUP blocks anywhere on the device, which tell each other through the L2 and live on: where a
 * thread has written a chunk it asks for that of its next strip. More strips are under way so than
 * clusters find room for, at the price of a barrier of the grid. Both give the same bits.
 *
 * Strips and pieces are cut by COLS, DEPTH, PIXELS and the dtypes alone, so that a row does not depend on
 * the others. Sums run along fixed trees. Forward sums are about pivots, and the mean stays a pair; strips
 * with a row whose squares leave float's range are summed again, such rows scaled by a power of two.
 *
 * Constants: PASS KIND GROUPS DEPTH PIXELS COLS (channels of an image) TILE PIECE WIDTH LANES (chunks of a
 * pixel of a strip) PLANES (pixels of a warp at a time) WARPS CLUSTER GROUP DELAY (the later half of GROUPs
 * begins after the barrier) CORRECT WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS
 * G_ACCESS Y_ACCESS D_ACCESS (alignments of a strip in bytes).
 */
#include "group_words.cu"

constexpr int STRIPS = ceil_div(COLS, TILE);
constexpr int STRIP_GROUPS = TILE / DEPTH;
constexpr int STEP = WARPS * PLANES;
constexpr int STEPS = ceil_div(PIECE, STEP);
/* Parts of a thread's steps, each summed while the next ones are on their way. */
constexpr int PARTS = STEPS >= 8 ? 4 : 1;
constexpr int PART = ceil_div(STEPS, PARTS);
constexpr float BACK = 0x1p100f; /* squares of what is left of any row beyond float's range fit */

/* A chunk's columns: neighbours of one group, which have one pivot and one sum. */
__device__ constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
constexpr int EACH = gcd(DEPTH, WIDTH);       /* channels of a column */
constexpr int COLUMNS = WIDTH / EACH;
constexpr int GROUP_COLUMNS = DEPTH / EACH;   /* columns of a group */
constexpr int STRIP_COLUMNS = LANES * COLUMNS;

__device__ constexpr int round_to_power(int n) { return n < 2 ? 1 : 2 * round_to_power((n + 1) / 2); }
__device__ constexpr int round_up(int bytes) { return (bytes + 15) / 16 * 16; }
constexpr int DY_AT = round_up(PIECE * LANES * X_BYTES);
constexpr int SUMS_AT = DY_AT + (FORWARD ? 0 : round_up(PIECE * LANES * G_BYTES));
constexpr int SUM_COUNT = (FORWARD || CORRECT ? 3 : 2) * WARPS * (FORWARD ? STRIP_COLUMNS : TILE);
constexpr int MAIL_AT = SUMS_AT + round_up(4 * SUM_COUNT);
constexpr int BOXES = WIDE_RANGE ? 2 : 1; /* a strip is summed so often, at most */

/* Blocks of a strip, and what they tell each other of a group: three values. Those of 16-bit tensors
 * are rounded to floats, which are sums of floats over one block. */
constexpr bool WIDE = GROUP > 1;
constexpr int BLOCKS = WIDE ? GROUP : CLUSTER;
template <bool FULL> struct message_of {
    typedef double type;
};
template <> struct message_of<false> {
    typedef float type;
};
typedef message_of<X_TYPE == F32>::type message;
constexpr int MESSAGE_BYTES = 4 * sizeof(message);
constexpr int FOUND_AT = MAIL_AT + (WIDE ? 0 : BOXES * STRIP_GROUPS * CLUSTER * MESSAGE_BYTES);

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
    p.lane = threadIdx.x % 32;
    p.warp = threadIdx.x / 32;
    p.group = strip * STRIP_GROUPS;
    p.groups = least(STRIP_GROUPS, GROUPS - p.group);
    p.chunk = p.lane % LANES;
    p.channel = strip * TILE + p.chunk * WIDTH;
    p.rank = WIDE ? blockIdx.x % GROUP : CLUSTER > 1 ? (int)cluster_rank() : 0;
    p.first = p.rank * PIECE;
    p.pixels = pixels_of_block(p.rank);
    const int plane = p.lane / LANES;
    p.begin = p.warp * PLANES + plane;
    const bool there = unit >= 0 && plane < PLANES && p.channel < COLS && p.begin < p.pixels;
    p.steps = there ? (p.pixels - p.begin + STEP - 1) / STEP : 0;
    return p;
}

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
    if constexpr (least(ACCESS, B) >= 4)
        copy_async<B, ACCESS>(chunk_at<B>(tile, p, k), at, true);
    else
        store_to_shared<B>(chunk_at<B>(tile, p, k), load_once<B, ACCESS>(at));
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
                     : (const char *)args.dy + p.image * args.dy_image + first_byte<G_TYPE>(p);
    }
    __device__ __forceinline__ void ask(int k) const {
        if (k >= p.steps)
            return;
        fill<X_TYPE, X_ACCESS>(tile, x, p, k);
        if constexpr (!FORWARD)
            fill<G_TYPE, G_ACCESS>(tile + DY_AT, dy, p, k);
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

struct mailbox {
    u64 byte_barriers[2];
};

/* A round's entries of a group, one of each block: in a cluster, in shared memory. */
__device__ __forceinline__ message (*entries_of(u32 round, int group))[4] {
    message(*all)[4] = (message(*)[4])(dynamic_shared + MAIL_AT);
    return all + (round % BOXES * STRIP_GROUPS + group) * CLUSTER;
}

/* Blocks anywhere on the device post theirs in global memory. A word has 32 bits of the last two
 * values, 16 of the first, and 16 that say which round it is of; there is room for two rounds, as
 * nobody posts a third before all have taken the first. */
constexpr int HALVES = sizeof(message) / 4;
constexpr int WORDS = 2 * HALVES;
constexpr i64 LINE_WORDS = (i64)2 * STRIP_GROUPS * BLOCKS * WORDS;

__device__ __forceinline__ u64 *post_of(const groups_args &args, u32 round, int group, int block) {
    const i64 entry = ((i64)(round % 2) * STRIP_GROUPS + group) * BLOCKS + block;
    return args.mail + blockIdx.x / GROUP * LINE_WORDS + entry * WORDS;
}
__device__ __forceinline__ u64 mark_of(u32 round) { return round % 0xffff + 1; }
__device__ __forceinline__ u64 bits_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ u64 bits_of(double v) { return (u64)__double_as_longlong(v); }
__device__ __forceinline__ void from_bits(u64 bits, float &v) { v = __uint_as_float((u32)bits); }
__device__ __forceinline__ void from_bits(u64 bits, double &v) {
    v = __hiloint2double((int)(u32)(bits >> 32), (int)(u32)bits);
}

__device__ __forceinline__ void post_mail(u64 *to, u32 round, const message *v) {
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const u64 value = bits_of(v[1 + j / HALVES]) >> 32 * (j % HALVES) & 0xffffffffu;
        post_word(to + j, mark_of(round) << 48 | (bits_of(v[0]) >> 16 * j & 0xffff) << 32 | value);
    }
}

/* Waits until it is there. */
__device__ __forceinline__ void take_post(const u64 *from, u32 round, message *v) {
    u64 word[WORDS], bits[3];
    for (bool all = false; !all;) {
        all = true;
#pragma unroll
        for (int j = 0; j < WORDS; j += 2) {
            look_at_words(from + j, word[j], word[j + 1]);
            all = all && word[j] >> 48 == mark_of(round) && word[j + 1] >> 48 == mark_of(round);
        }
    }
    bits[0] = bits[1] = bits[2] = 0;
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        bits[0] |= (word[j] >> 32 & 0xffff) << 16 * j;
        bits[1 + j / HALVES] |= (word[j] & 0xffffffffu) << 32 * (j % HALVES);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        from_bits(bits[j], v[j]);
}

/* Before anybody posts: no mark of an earlier launch is left. */
__device__ __forceinline__ void clear_mail(const groups_args &args, const strip_place &p) {
    for (int i = threadIdx.x; i < 2 * STRIP_GROUPS * WORDS; i += THREADS) {
        const int entry = i / WORDS;
        post_word(post_of(args, entry / STRIP_GROUPS, entry % STRIP_GROUPS, p.rank) + i % WORDS, 0);
    }
    grid_barrier(THREADS);
}

__device__ __forceinline__ void expect_mail(mailbox &m, const strip_place &p, u32 round) {
    if (CLUSTER > 1 && threadIdx.x == 0)
        byte_barrier_expect(shared_address(m.byte_barriers + (round & 1)),
                            p.groups * CLUSTER * MESSAGE_BYTES);
}

/* SEND neighbouring lanes, of which this is the `lane`th, give three values of a group to every
 * block. */
template <int SEND>
__device__ __forceinline__ void send_mail(const groups_args &args, mailbox &m, const strip_place &p,
                                          int group, u32 round, int lane, double a, double b,
                                          double c) {
    const message mine[4] = {(message)a, (message)b, (message)c, 0};
    if constexpr (WIDE) {
        if (lane == 0)
            post_mail(post_of(args, round, group, p.rank), round, mine);
    } else if constexpr (CLUSTER == 1) {
        message *const to = entries_of(round, group)[0];
        if (lane == 0)
            to[0] = mine[0], to[1] = mine[1], to[2] = mine[2];
    } else {
        message *const to = entries_of(round, group)[p.rank];
        for (int block = lane; block < CLUSTER; block += SEND)
            send_to_block(shared_address(to), shared_address(m.byte_barriers + (round & 1)), block, mine);
    }
}

__device__ __forceinline__ void wait_for_mail(mailbox &m, u32 round) {
    if (CLUSTER > 1)
        byte_barrier_wait(shared_address(m.byte_barriers + (round & 1)), round >> 1 & 1);
    else if (!WIDE)
        __syncthreads();
}

/* MERGE lanes add up what the blocks sent of a group. */
constexpr int MERGE = least(32, round_to_power(BLOCKS));
constexpr int MERGE_EACH = ceil_div(BLOCKS, MERGE);

struct taken {
    message v[MERGE_EACH][3];

    __device__ __forceinline__ taken(const groups_args &args, const strip_place &p, int group,
                                     u32 round, int lane) {
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++) {
            const int block = lane + e * MERGE;
            v[e][0] = v[e][1] = v[e][2] = 0;
            if (group >= p.groups || block >= BLOCKS)
                continue;
            if constexpr (WIDE) {
                take_post(post_of(args, round, group, block), round, v[e]);
            } else {
#pragma unroll
                for (int j = 0; j < 3; j++)
                    v[e][j] = entries_of(round, group)[block][j];
            }
        }
    }
    __device__ __forceinline__ double sum(int j, int lane) const {
        double all = 0;
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++)
            all += (double)v[e][j];
        return sum_over_lanes<MERGE>(all, lane);
    }
};

/* Weights of the thread's channels, or what stands for them. */
struct affine {
    float weight[WIDTH], bias[WIDTH];
};

__device__ __forceinline__ affine affine_of(const groups_args &args, const strip_place &p) {
    affine out;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out.weight[i] = p.steps ? weight_of(args, p.channel + i) : 0;
        out.bias[i] = p.steps ? bias_of(args, p.channel + i) : 0;
    }
    return out;
}

/* ---- Forward: sums ------------------------------------------------------------------------------ */

/* Sums of a column about its pivot. */
struct column {
    float pivot, a, b;
};

/* Sums of the thread's channels about its columns' pivots; SCALED: of elements times scale[column]. */
template <bool SCALED> struct thread_sums {
    const strip_place &p;
    const float *scale;
    column *out;
    float a[WIDTH], b[WIDTH];

    __device__ __forceinline__ chunk<X_BYTES> load(int k) const {
        return load_from_shared<X_BYTES>(chunk_at<X_BYTES>(shared_address(dynamic_shared), p, k));
    }

    /* Pivots: means of the first pixels, up to 4 and a power of two of them. */
    __device__ __forceinline__ void find_pivots(int count) {
        const int pivots = count >= 4 && PART >= 4 ? 4 : count >= 2 && PART >= 2 ? 2 : least(count, 1);
        const float each = pivots == 4 ? .25f : pivots == 2 ? .5f : 1;
        for (int k = 0; k < pivots; k++) {
            const auto c = load(k);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                a[i] += element<X_TYPE>(c.word, i) * (SCALED ? scale[i / EACH] * each : each);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            out[j].pivot = tree_sum<EACH>(a + j * EACH) * (1.f / EACH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            a[i] = 0;
    }

    /* Parts from PART_NUMBER on, as they come. */
    template <int PART_NUMBER> __device__ __forceinline__ void add_parts(int count) {
        copy_async_wait<PARTS - 1 - PART_NUMBER>();
        if (PART_NUMBER == 0 && LAYER)
            find_pivots(count);
        const int end = least(count, (PART_NUMBER + 1) * PART);
#pragma unroll 2
        for (int k = PART_NUMBER * PART; k < end; k++) {
            const auto c = load(k);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                float d = element<X_TYPE>(c.word, i);
                if (SCALED)
                    d *= scale[i / EACH];
                if (LAYER) {
                    d -= out[i / EACH].pivot;
                    a[i] += d;
                }
                b[i] = multiply_add(d, d, b[i]);
            }
        }
        if constexpr (PART_NUMBER + 1 < PARTS)
            add_parts<PART_NUMBER + 1>(count);
    }
};

template <bool SCALED>
__device__ __forceinline__ void sum_thread(const strip_place &p, const float *scale, column *out) {
    thread_sums<SCALED> s = {p, scale, out, {}, {}};
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        out[j].pivot = 0;
    s.template add_parts<0>(p.steps);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        out[j].a = tree_sum<EACH>(s.a + j * EACH);
        out[j].b = tree_sum<EACH>(s.b + j * EACH);
    }
}

/* The warp's columns, about the mean of the pixels' pivots, of which any one may be far off. */
__device__ __forceinline__ void sum_warp(const strip_place &p, column *own) {
    float *sums = (float *)(dynamic_shared + SUMS_AT) + p.warp * STRIP_COLUMNS * 3;
    const int planes = most(1, least(p.pixels - p.warp * PLANES, PLANES)); /* that have a pixel */
    const int count = p.steps;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        column &c = own[j];
        if (LAYER) {
            const float pivot = sum_over_planes<LANES, PLANES>(c.pivot, p.lane) / (float)planes;
            shift(count ? c.pivot - pivot : 0, (float)(count * EACH), c.a, c.b);
            c.pivot = pivot;
            c.a = sum_over_planes<LANES, PLANES>(c.a, p.lane);
        }
        c.b = sum_over_planes<LANES, PLANES>(c.b, p.lane);
        if (p.lane < LANES) {
            float *to = sums + (p.chunk * COLUMNS + j) * 3;
            to[0] = c.pivot;
            to[1] = c.a;
            to[2] = c.b;
        }
    }
}

/* SEND lanes add up a group of the block's and send that: as many as it has entries, up to a warp. */
constexpr int ENTRIES = WARPS * GROUP_COLUMNS;
constexpr int SEND = least(32, round_to_power(FORWARD ? ENTRIES : DEPTH));

__device__ __forceinline__ void send_group(const groups_args &args, mailbox &m, const strip_place &p,
                                           int group, u32 round) {
    const int rank = p.lane % SEND, filled = GROUP_COLUMNS * least(WARPS, ceil_div(p.pixels, PLANES));
    const bool there = group < p.groups;
    const float *sums = (const float *)(dynamic_shared + SUMS_AT) + (there ? group : 0) * GROUP_COLUMNS * 3;
    float pivot = 0;
    if (LAYER) {
#pragma unroll 2
        for (int e = rank; e < filled; e += SEND)
            pivot += sums[(e / GROUP_COLUMNS * STRIP_COLUMNS + e % GROUP_COLUMNS) * 3];
        pivot = sum_over_lanes<SEND>(pivot, p.lane) / (float)filled;
    }
    double v[2] = {0, 0};
#pragma unroll 2
    for (int e = rank; e < ENTRIES; e += SEND) {
        const int warp = e / GROUP_COLUMNS;
        const float *from = sums + (warp * STRIP_COLUMNS + e % GROUP_COLUMNS) * 3;
        const int count = pixels_of_warp(warp, p.pixels) * EACH;
        double a = from[1], b = from[2];
        if (count == 0)
            continue;
        if (LAYER)
            shift((double)from[0] - (double)pivot, (double)count, a, b);
        v[0] += a;
        v[1] += b;
    }
    if (LAYER)
        v[0] = sum_over_lanes<SEND>(v[0], p.lane);
    v[1] = sum_over_lanes<SEND>(v[1], p.lane);
    if (there)
        send_mail<SEND>(args, m, p, group, round, rank, pivot, v[0], v[1]);
}

/* MERGE lanes find a group's moments, which go to `found`. */
template <bool SCALED>
__device__ __forceinline__ void merge_group(const groups_args &args, const strip_place &p, int group,
                                            u32 round) {
    const int lane = p.lane % MERGE;
    const taken t(args, p, group, round, lane);
    double v[3] = {0, 0, 0};
    const double pivot = LAYER ? t.sum(0, p.lane) * (1.0 / BLOCKS) : 0;
#pragma unroll
    for (int e = 0; e < MERGE_EACH; e++) {
        const int block = lane + e * MERGE;
        double a = t.v[e][1], b = t.v[e][2];
        if (LAYER && block < BLOCKS)
            shift(t.v[e][0] - pivot, (double)(pixels_of_block(block) * (i64)DEPTH), a, b);
        v[1] += a;
        v[2] += b;
    }
    if (LAYER)
        v[1] = sum_over_lanes<MERGE>(v[1], p.lane);
    v[2] = sum_over_lanes<MERGE>(v[2], p.lane);
    if (lane != 0 || group >= p.groups)
        return;
    float *found = found_of(group);
    const moments f = moments_of(pivot, v[1], v[2], SCALED ? 1 / (double)found[3] : 1, args.eps);
    found[0] = f.mean;
    found[1] = f.rest;
    found[2] = f.rstd;
    if (!SCALED) /* what the elements are to be scaled by */
        found[3] = !leaves_range(args, v[2]) ? 1 : v[2] < 1 ? BACK : 1 / BACK;
    if (p.rank == 0)
        save_moments(args, p.image * GROUPS + p.group + group, f);
}

/* The strip's moments; weights are asked for while the sums are on their way. */
template <bool SCALED>
__device__ __forceinline__ void find_moments(const groups_args &args, const strip_place &p,
                                             mailbox &m, u32 round, affine &w) {
    column own[COLUMNS];
    float scale[COLUMNS];
#pragma unroll
    for (int j = 0; SCALED && j < COLUMNS; j++)
        scale[j] = p.steps ? found_of((p.chunk * WIDTH + j * EACH) / DEPTH)[3] : 1;
    expect_mail(m, p, round);
    sum_thread<SCALED>(p, scale, own);
    sum_warp(p, own);
    if (CLUSTER > 1 && !SCALED)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (32 / SEND); g < p.groups; g += WARPS * (32 / SEND))
        send_group(args, m, p, g + p.lane / SEND, round);
    if (!SCALED)
        w = affine_of(args, p);
    wait_for_mail(m, round);
    for (int g = p.warp * (32 / MERGE); g < p.groups; g += WARPS * (32 / MERGE))
        merge_group<SCALED>(args, p, g + p.lane / MERGE, round);
    __syncthreads();
}

/* Whether a thread with a pixel of one strip has one of every other. */
constexpr bool ALWAYS_THERE = COLS % TILE == 0;

/* ---- Forward: output ---------------------------------------------------------------------------- */

/* Calls write(k) for the thread's steps. A block that lives on asks for each chunk of the `next` strip
 * as soon as its place is free. */
template <typename step_writer>
__device__ __forceinline__ void write_steps(const strip_place &p, const filling &next,
                                            const step_writer &write) {
    if constexpr (!WIDE) {
#pragma unroll 2
        for (int k = 0; k < p.steps; k++)
            write(k);
    } else {
        const int steps = most(p.steps, next.p.steps);
#pragma unroll 1
        for (int part = 0; part < PARTS; part++) {
            const int end = least(steps, (part + 1) * PART);
#pragma unroll 2
            for (int k = part * PART; k < end; k++) {
                if (ALWAYS_THERE || p.steps)
                    write(k);
                next.ask(k);
            }
            copy_async_commit();
        }
    }
}

__device__ __forceinline__ void write_forward(const groups_args &args, const strip_place &p,
                                              const affine &w, const filling &next) {
    const u32 tile = shared_address(dynamic_shared);
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    float mean[COLUMNS], scale[WIDTH], bias[WIDTH];
    if (!WIDE && !p.steps)
        return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float *found = found_of((p.chunk * WIDTH + i) / DEPTH);
        mean[i / EACH] = found[0];
        scale[i] = WEIGHTED ? found[2] * w.weight[i] : found[2];
        /* The rest of the mean comes in with the bias. */
        bias[i] = LAYER ? multiply_add(-found[1], scale[i], w.bias[i]) : w.bias[i];
    }
    write_steps(p, next, [&](int k) {
        const auto c = load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k));
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float x = element<X_TYPE>(c.word, i);
            if (LAYER)
                x -= mean[i / EACH];
            v[i] = LAYER || BIASED ? multiply_add(x, scale[i], bias[i]) : x * scale[i];
        }
        store_once<OUT_BYTES, OUT_ACCESS>(out + (i64)k * STEP * COLS * bytes_of(OUT_TYPE),
                                          pack<OUT_TYPE, WIDTH>(v));
    });
}

/* Returns the place in the strip `after` this, of which a block that lives on has asked for its
 * chunks. */
__device__ __forceinline__ strip_place forward_strip(const groups_args &args, const strip_place &p,
                                                     i64 after, mailbox &m, u32 &round) {
    affine w;
    find_moments<false>(args, p, m, round++, w);
    if constexpr (WIDE_RANGE) {
        bool again = false;
        for (int g = 0; g < p.groups; g++)
            again |= found_of(g)[3] != 1;
        if (again)
            find_moments<true>(args, p, m, round++, w);
    }
    const strip_place then = place_of(after);
    write_forward(args, p, w, filling(args, then));
    return then;
}

/* ---- Backward ----------------------------------------------------------------------------------- */

/* The saved moments of the thread's columns. */
struct saved {
    float mean[COLUMNS], rstd[COLUMNS];
};

__device__ __forceinline__ saved saved_of(const groups_args &args, const strip_place &p) {
    saved out;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const i64 row = p.image * GROUPS + (p.channel + j * EACH) / DEPTH;
        out.mean[j] = p.steps ? saved_mean(args, row) : 0;
        out.rstd[j] = p.steps ? saved_rstd(args, row) : 0;
    }
    return out;
}

/* Where nothing leaves float's range rstd is multiplied by last, once and not for every element. */
constexpr bool SCALES_LAST = X_TYPE == F16 && G_TYPE == F16;

/* xhat, or what it is made of by rstd. */
__device__ __forceinline__ float deviation_of(float x, const saved &s, int i) {
    if (LAYER)
        x -= s.mean[i / EACH];
    return SCALES_LAST ? x : x * s.rstd[i / EACH];
}

__device__ __forceinline__ float *channel_sums(int which, int warp) {
    return (float *)(dynamic_shared + SUMS_AT) + (which * WARPS + warp) * TILE;
}

/* Sums of dy, dy * xhat and xhat of each of the thread's channels: parts from PART_NUMBER on, as they
 * come. */
template <int PART_NUMBER>
__device__ __forceinline__ void add_gradients(const strip_place &p, const saved &s, int count,
                                              float (*v)[WIDTH]) {
    const u32 tile = shared_address(dynamic_shared);
    copy_async_wait<PARTS - 1 - PART_NUMBER>();
    const int end = least(count, (PART_NUMBER + 1) * PART);
#pragma unroll 2
    for (int k = PART_NUMBER * PART; k < end; k++) {
        const auto x = load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k));
        const auto dy = load_from_shared<G_BYTES>(chunk_at<G_BYTES>(tile + DY_AT, p, k));
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float d = deviation_of(element<X_TYPE>(x.word, i), s, i);
            const float g = element<G_TYPE>(dy.word, i);
            v[0][i] += g;
            v[1][i] = multiply_add(g, d, v[1][i]);
            if (CORRECT)
                v[2][i] += d;
        }
    }
    if constexpr (PART_NUMBER + 1 < PARTS)
        add_gradients<PART_NUMBER + 1>(p, s, count, v);
}

/* The same of each of the warp's channels. */
__device__ __forceinline__ void sum_channels(const strip_place &p, const saved &s) {
    float v[3][WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        v[0][i] = v[1][i] = v[2][i] = 0;
    add_gradients<0>(p, s, p.steps, v);
#pragma unroll
    for (int j = 0; j < (CORRECT ? 3 : 2); j++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (SCALES_LAST && j > 0)
                v[j][i] *= s.rstd[i / EACH];
            const float sum = sum_over_planes<LANES, PLANES>(v[j][i], p.lane);
            if (p.lane < LANES)
                channel_sums(j, p.warp)[p.chunk * WIDTH + i] = sum;
        }
}

/* One of a channel's sums over the block. */
__device__ __forceinline__ float sum_of_warps(int which, int channel) {
    float v = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        v += channel_sums(which, w)[channel];
    return v;
}

/* SEND lanes add up a group of the block's and send that. */
__device__ __forceinline__ void send_gradients(const groups_args &args, mailbox &m,
                                               const strip_place &p, int group, u32 round) {
    const int rank = p.lane % SEND;
    double v[3] = {0, 0, 0};
    for (int d = rank; d < DEPTH && group < p.groups; d += SEND) {
        const int channel = group * DEPTH + d;
        const float w = weight_of(args, p.group * DEPTH + channel);
        v[0] += (double)(w * sum_of_warps(0, channel));
        v[1] += (double)(w * sum_of_warps(1, channel));
        if (CORRECT)
            v[2] += (double)sum_of_warps(2, channel);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j < 2 || CORRECT)
            v[j] = sum_over_lanes<SEND>(v[j], p.lane);
    if (group < p.groups)
        send_mail<SEND>(args, m, p, group, round, rank, v[0], v[1], v[2]);
}

/* MERGE lanes find what a group's elements have in common. */
__device__ __forceinline__ void merge_gradients(const groups_args &args, const strip_place &p,
                                                int group, u32 round) {
    const int lane = p.lane % MERGE;
    const taken t(args, p, group, round, lane);
    const double v[3] = {t.sum(0, p.lane), t.sum(1, p.lane), CORRECT ? t.sum(2, p.lane) : 0};
    if (lane != 0 || group >= p.groups)
        return;
    const common c = common_of(v);
    float *found = found_of(group);
    found[0] = c.c1;
    found[1] = c.c2;
    found[2] = c.delta;
}

/* The block's part of dweight and dbias. */
__device__ __forceinline__ void write_partials(const groups_args &args, const strip_place &p) {
    for (int c = threadIdx.x; c < p.groups * DEPTH; c += THREADS) {
        const i64 at = (p.image * BLOCKS + p.rank) * COLS + p.group * DEPTH + c;
        const float bias = sum_of_warps(0, c);
        if (WANT_DWEIGHT) {
            const float weight = sum_of_warps(1, c);
            args.partial_weight[at] =
                CORRECT ? multiply_add(-found_of(c / DEPTH)[2], bias, weight) : weight;
        }
        if (WANT_DBIAS)
            args.partial_bias[at] = bias;
    }
}

/* dx = rstd * (weight * dy - c1 - (xhat - delta) * c2), as dy * a + (xhat * b + c). */
__device__ __forceinline__ void write_backward(const groups_args &args, const strip_place &p,
                                               const saved &s, const affine &w,
                                               const filling &next) {
    const u32 tile = shared_address(dynamic_shared);
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    float a[WIDTH], b[COLUMNS], c[COLUMNS];
    if (!WIDE && !p.steps)
        return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        a[i] = w.weight[i] * s.rstd[i / EACH];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const float *found = found_of((p.chunk * WIDTH + j * EACH) / DEPTH);
        b[j] = -found[1] * s.rstd[j] * (SCALES_LAST ? s.rstd[j] : 1);
        c[j] = LAYER ? (CORRECT ? multiply_add(found[2], found[1], -found[0]) : -found[0]) * s.rstd[j]
                     : 0;
    }
    write_steps(p, next, [&](int k) {
        if constexpr (D_TYPE != NONE) {
            const auto x = load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k));
            const auto dy = load_from_shared<G_BYTES>(chunk_at<G_BYTES>(tile + DY_AT, p, k));
            float v[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float d = deviation_of(element<X_TYPE>(x.word, i), s, i);
                v[i] = multiply_add(element<G_TYPE>(dy.word, i), a[i],
                                    multiply_add(d, b[i / EACH], c[i / EACH]));
            }
            store_once<OUT_BYTES, OUT_ACCESS>(out + (i64)k * STEP * COLS * bytes_of(OUT_TYPE),
                                              pack<OUT_TYPE, WIDTH>(v));
        }
    });
}

/* Returns the place in the strip `after` this, whose moments `s` becomes. */
__device__ __forceinline__ strip_place backward_strip(const groups_args &args, const strip_place &p,
                                                      saved &s, i64 after, mailbox &m, u32 &round) {
    expect_mail(m, p, round);
    sum_channels(p, s);
    if (CLUSTER > 1)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (32 / SEND); g < p.groups; g += WARPS * (32 / SEND))
        send_gradients(args, m, p, g + p.lane / SEND, round);
    const affine w = affine_of(args, p);
    const strip_place then = place_of(after);
    const saved next = saved_of(args, then);
    wait_for_mail(m, round);
    for (int g = p.warp * (32 / MERGE); g < p.groups; g += WARPS * (32 / MERGE))
        merge_gradients(args, p, g + p.lane / MERGE, round);
    __syncthreads();
    round++;
    write_backward(args, p, s, w, filling(args, then));
    if (WANT_DWEIGHT || WANT_DBIAS) {
        write_partials(args, p);
        if (WIDE && after != NO_STRIP)
            __syncthreads();
    }
    s = next;
    return then;
}

/* ---- Strips ------------------------------------------------------------------------------------- */

__device__ __forceinline__ strip_place take_strip(const groups_args &args, const strip_place &p,
                                                  saved &s, i64 after, mailbox &m, u32 &round) {
    if constexpr (FORWARD)
        return forward_strip(args, p, after, m, round);
    else
        return backward_strip(args, p, s, after, m, round);
}

/* What the pass has to know of the rows beforehand. */
__device__ __forceinline__ saved known_of(const groups_args &args, const strip_place &p) {
    if constexpr (FORWARD)
        return {};
    else
        return saved_of(args, p);
}

/* A strip for each cluster, and no more but where there are more than a grid has blocks. */
__device__ __forceinline__ void take_one(const groups_args &args, mailbox &m) {
    const i64 all = args.images * STRIPS, step = gridDim.x / CLUSTER;
    u32 round = 0;
    for (i64 unit = blockIdx.x / CLUSTER; unit < all; unit += step) {
        const strip_place p = place_of(unit);
        fill_all(args, p);
        saved s = known_of(args, p);
        take_strip(args, p, s, NO_STRIP, m, round);
        /* Nobody is to send what belongs to the next strip before all are done with this one. After the
         * last a block may leave at once: all that is sent to it has come. */
        if (unit + step < all) {
            __syncthreads();
            if (CLUSTER > 1)
                cluster_arrive();
        }
    }
}

/* Blocks anywhere on the device live on. With DELAY the later half of them begin later, so that not
 * all read at one time and write at another. */
__device__ __forceinline__ void take_many(const groups_args &args, mailbox &m) {
    const i64 all = args.images * STRIPS, step = gridDim.x / GROUP;
    i64 unit = blockIdx.x / GROUP;
    u32 round = 0;
    strip_place p = place_of(unit);
    const bool late = DELAY && blockIdx.x >= gridDim.x / 2;
    if (!late)
        fill_all(args, p);
    saved s = known_of(args, p);
    clear_mail(args, p);
    if (late)
        fill_all(args, p);
    for (; unit < all; unit += step)
        p = take_strip(args, p, s, unit + step < all ? unit + step : NO_STRIP, m, round);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_strips(const groups_args args) {
    __shared__ mailbox m;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(m.byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    if constexpr (WIDE)
        take_many(args, m);
    else
        take_one(args, m);
}
