/*
 * Norms over groups of channels of images stored by pixel, in one read. A cluster of CLUSTER blocks takes a
 * strip of an image: TILE channels, whole groups, of every pixel. A block has PIECE pixels of it in shared
 * memory; a thread has a chunk of WIDTH channels of every STEP-th pixel, which it alone copies, sums and
 * writes, so that threads wait for each other only where sums meet: over the pixels of a warp by shuffles,
 * over warps by shared memory, over the cluster by stores into each other's.
 * Forward (PASS 0) or backward (1).
 *
 * Strips and pieces are cut by COLS, DEPTH, PIXELS and the dtypes alone, so that a row does not depend on
 * the others. Sums run along fixed trees. Forward sums are about pivots, and the mean stays a pair; strips
 * with a row whose squares leave float's range are summed again, such rows scaled by a power of two.
 *
 * Constants: PASS KIND GROUPS DEPTH PIXELS COLS (channels of an image) TILE PIECE WIDTH LANES (chunks of a
 * pixel of a strip) PLANES (pixels of a warp at a time) WARPS CLUSTER CORRECT WEIGHT_OFFSET MIN_BLOCKS
 * WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS G_ACCESS Y_ACCESS D_ACCESS (alignments of a strip in bytes).
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
constexpr int COLUMNS = DEPTH % WIDTH == 0 ? 1 : WIDTH % DEPTH == 0 ? WIDTH / DEPTH : WIDTH;
constexpr int EACH = WIDTH / COLUMNS;         /* channels of a column */
constexpr int GROUP_COLUMNS = DEPTH / EACH;   /* columns of a group */
constexpr int STRIP_COLUMNS = LANES * COLUMNS;

__device__ constexpr int round_to_power(int n) { return n < 2 ? 1 : 2 * round_to_power((n + 1) / 2); }
__device__ constexpr int round_up(int bytes) { return (bytes + 15) / 16 * 16; }
constexpr int DY_AT = round_up(PIECE * LANES * X_BYTES);
constexpr int SUMS_AT = DY_AT + (FORWARD ? 0 : round_up(PIECE * LANES * G_BYTES));
constexpr int SUM_COUNT = 3 * WARPS * (FORWARD ? STRIP_COLUMNS : TILE);
constexpr int MAIL_AT = SUMS_AT + round_up(4 * SUM_COUNT);
constexpr int BOXES = WIDE_RANGE ? 2 : 1; /* a strip is summed so often, at most */
constexpr int FOUND_AT = MAIL_AT + BOXES * STRIP_GROUPS * CLUSTER * 32;

/* What a thread does in a strip. Pixels are those of the block. */
struct strip_place {
    i64 image;
    int group, groups;  /* the strip's first, and how many it has */
    int chunk, channel; /* the thread's, and the first of its channels */
    int first, pixels;  /* the block's first pixel of the image, and how many it has */
    int begin;          /* the thread's first pixel; none: at or past the last */
    int lane, warp;
};

__device__ __forceinline__ int block_of_cluster() { return CLUSTER > 1 ? (int)cluster_rank() : 0; }
__device__ __forceinline__ int pixels_of_block(int rank) { return least(PIECE, PIXELS - rank * PIECE); }

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
    p.first = block_of_cluster() * PIECE;
    p.pixels = pixels_of_block(block_of_cluster());
    const int plane = p.lane / LANES;
    p.begin = plane < PLANES && p.channel < COLS ? p.warp * PLANES + plane : PIECE;
    return p;
}

/* How many pixels the thread has. */
__device__ __forceinline__ int steps_of(const strip_place &p) {
    return p.begin < p.pixels ? (p.pixels - p.begin + STEP - 1) / STEP : 0;
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

/* Copies the thread's chunks of a part. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void fill(u32 tile, const char *from, const strip_place &p, int part) {
    constexpr int B = WIDTH * bytes_of(TYPE);
#pragma unroll
    for (int k = part * PART; k < (part + 1) * PART; k++) {
        const char *at = from + (i64)k * STEP * COLS * bytes_of(TYPE);
        if (p.begin + k * STEP >= p.pixels)
            continue;
        if constexpr (least(ACCESS, B) >= 4)
            copy_async<B, ACCESS>(chunk_at<B>(tile, p, k), at, true);
        else
            store_to_shared<B>(chunk_at<B>(tile, p, k), load_once<B, ACCESS>(at));
    }
}

__device__ __forceinline__ void fill_all(const groups_args &args, const strip_place &p) {
    const u32 tile = shared_address(dynamic_shared);
    const char *x = (const char *)args.x + p.image * args.x_image + first_byte<X_TYPE>(p);
    const char *dy = (const char *)args.dy + p.image * args.dy_image + first_byte<G_TYPE>(p);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
        fill<X_TYPE, X_ACCESS>(tile, x, p, part);
        if constexpr (!FORWARD)
            fill<G_TYPE, G_ACCESS>(tile + DY_AT, dy, p, part);
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

/* A round's entries of a group, one of each block. */
__device__ __forceinline__ double (*entries_of(u32 round, int group))[4] {
    double(*all)[4] = (double(*)[4])(dynamic_shared + MAIL_AT);
    return all + (round % BOXES * STRIP_GROUPS + group) * CLUSTER;
}

__device__ __forceinline__ void expect_mail(mailbox &m, const strip_place &p, u32 round) {
    if (CLUSTER > 1 && threadIdx.x == 0)
        byte_barrier_expect(shared_address(m.byte_barriers + (round & 1)), p.groups * CLUSTER * 32);
}

/* SEND neighbouring lanes, of which this is the `rank`th, give three values of a group to every block. */
template <int SEND>
__device__ __forceinline__ void send_mail(mailbox &m, int group, u32 round, int rank, double a,
                                          double b, double c) {
    double *const to = entries_of(round, group)[block_of_cluster()];
    if constexpr (CLUSTER == 1) {
        if (rank == 0)
            to[0] = a, to[1] = b, to[2] = c;
    } else {
        const double mine[4] = {a, b, c, 0};
        for (int block = rank; block < CLUSTER; block += SEND)
            send_to_block(shared_address(to), shared_address(m.byte_barriers + (round & 1)), block, mine);
    }
}

__device__ __forceinline__ void wait_for_mail(mailbox &m, u32 round) {
    if (CLUSTER > 1)
        byte_barrier_wait(shared_address(m.byte_barriers + (round & 1)), round >> 1 & 1);
    else
        __syncthreads();
}

/* Weights of the thread's channels, or what stands for them. */
struct affine {
    float weight[WIDTH], bias[WIDTH];
};

__device__ __forceinline__ affine affine_of(const groups_args &args, const strip_place &p) {
    affine out;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out.weight[i] = p.begin < p.pixels ? weight_of(args, p.channel + i) : 0;
        out.bias[i] = p.begin < p.pixels ? bias_of(args, p.channel + i) : 0;
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
    s.template add_parts<0>(steps_of(p));
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
    const int count = steps_of(p);
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

__device__ __forceinline__ void send_group(mailbox &m, const strip_place &p, int group, u32 round) {
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
        send_mail<SEND>(m, group, round, rank, pivot, v[0], v[1]);
}

/* CLUSTER lanes add up what the blocks sent of a group; the moments go to `found`. */
template <bool SCALED>
__device__ __forceinline__ void merge_group(const groups_args &args, const strip_place &p, int group,
                                            u32 round) {
    const int rank = p.lane % CLUSTER;
    double v[3] = {0, 0, 0}, pivot = 0;
    if (group < p.groups)
#pragma unroll
        for (int j = 0; j < 3; j++)
            v[j] = entries_of(round, group)[rank][j];
    if (LAYER) {
        pivot = sum_over_lanes<CLUSTER>(v[0], p.lane) * (1.0 / CLUSTER);
        shift(v[0] - pivot, (double)(pixels_of_block(rank) * (i64)DEPTH), v[1], v[2]);
        v[1] = sum_over_lanes<CLUSTER>(v[1], p.lane);
    }
    v[2] = sum_over_lanes<CLUSTER>(v[2], p.lane);
    if (rank != 0 || group >= p.groups)
        return;
    float *found = found_of(group);
    const moments f = moments_of(pivot, v[1], v[2], SCALED ? 1 / (double)found[3] : 1, args.eps);
    found[0] = f.mean;
    found[1] = f.rest;
    found[2] = f.rstd;
    if (!SCALED) /* what the elements are to be scaled by */
        found[3] = !leaves_range(args, v[2]) ? 1 : v[2] < 1 ? BACK : 1 / BACK;
    if (block_of_cluster() == 0)
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
        scale[j] = p.begin < p.pixels ? found_of((p.chunk * WIDTH + j * EACH) / DEPTH)[3] : 1;
    expect_mail(m, p, round);
    sum_thread<SCALED>(p, scale, own);
    sum_warp(p, own);
    if (CLUSTER > 1 && !SCALED)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (32 / SEND); g < p.groups; g += WARPS * (32 / SEND))
        send_group(m, p, g + p.lane / SEND, round);
    if (!SCALED)
        w = affine_of(args, p);
    wait_for_mail(m, round);
    for (int g = p.warp * (32 / CLUSTER); g < p.groups; g += WARPS * (32 / CLUSTER))
        merge_group<SCALED>(args, p, g + p.lane / CLUSTER, round);
    __syncthreads();
}

/* ---- Forward: output ---------------------------------------------------------------------------- */

__device__ __forceinline__ void write_forward(const groups_args &args, const strip_place &p,
                                              const affine &w) {
    const u32 tile = shared_address(dynamic_shared);
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    float mean[COLUMNS], scale[WIDTH], bias[WIDTH];
    if (p.begin >= p.pixels)
        return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float *found = found_of((p.chunk * WIDTH + i) / DEPTH);
        mean[i / EACH] = found[0];
        scale[i] = WEIGHTED ? found[2] * w.weight[i] : found[2];
        /* The rest of the mean comes in with the bias. */
        bias[i] = LAYER ? multiply_add(-found[1], scale[i], w.bias[i]) : w.bias[i];
    }
#pragma unroll 2
    for (int k = 0; p.begin + k * STEP < p.pixels; k++) {
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
    }
}

__device__ __forceinline__ void forward_strip(const groups_args &args, i64 unit, mailbox &m,
                                              u32 &round) {
    const strip_place p = place_of(unit);
    affine w;
    fill_all(args, p);
    find_moments<false>(args, p, m, round++, w);
    if constexpr (WIDE_RANGE) {
        bool again = false;
        for (int g = 0; g < p.groups; g++)
            again |= found_of(g)[3] != 1;
        if (again)
            find_moments<true>(args, p, m, round++, w);
    }
    write_forward(args, p, w);
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
        out.mean[j] = p.begin < p.pixels ? saved_mean(args, row) : 0;
        out.rstd[j] = p.begin < p.pixels ? saved_rstd(args, row) : 0;
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
    add_gradients<0>(p, s, steps_of(p), v);
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
        send_mail<SEND>(m, group, round, rank, v[0], v[1], v[2]);
}

/* CLUSTER lanes add up what the blocks sent of a group. */
__device__ __forceinline__ void merge_gradients(const strip_place &p, int group, u32 round) {
    const int rank = p.lane % CLUSTER;
    double v[3] = {0, 0, 0};
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (group < p.groups)
            v[j] = entries_of(round, group)[rank][j];
        v[j] = sum_over_lanes<CLUSTER>(v[j], p.lane);
    }
    if (rank != 0 || group >= p.groups)
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
        const i64 at = (p.image * CLUSTER + block_of_cluster()) * COLS + p.group * DEPTH + c;
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
                                               const saved &s, const affine &w) {
    const u32 tile = shared_address(dynamic_shared);
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    float a[WIDTH], b[COLUMNS], c[COLUMNS];
    if (p.begin >= p.pixels)
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
#pragma unroll 2
    for (int k = 0; p.begin + k * STEP < p.pixels; k++) {
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
}

__device__ __forceinline__ void backward_strip(const groups_args &args, i64 unit, mailbox &m,
                                               u32 &round) {
    const strip_place p = place_of(unit);
    fill_all(args, p);
    const saved s = saved_of(args, p);
    expect_mail(m, p, round);
    sum_channels(p, s);
    if (CLUSTER > 1)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (32 / SEND); g < p.groups; g += WARPS * (32 / SEND))
        send_gradients(args, m, p, g + p.lane / SEND, round);
    const affine w = affine_of(args, p);
    wait_for_mail(m, round);
    for (int g = p.warp * (32 / CLUSTER); g < p.groups; g += WARPS * (32 / CLUSTER))
        merge_gradients(p, g + p.lane / CLUSTER, round);
    __syncthreads();
    round++;
    if constexpr (D_TYPE != NONE)
        write_backward(args, p, s, w);
    if (WANT_DWEIGHT || WANT_DBIAS)
        write_partials(args, p);
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
    u32 round = 0;
    const i64 all = args.images * STRIPS, step = gridDim.x / CLUSTER;
    for (i64 unit = blockIdx.x / CLUSTER; unit < all; unit += step) {
        if constexpr (FORWARD)
            forward_strip(args, unit, m, round);
        else
            backward_strip(args, unit, m, round);
        /* Nobody is to send what belongs to the next strip before all are done with this one. After the
         * last a block may leave at once: all that is sent to it has come. */
        if (unit + step < all) {
            __syncthreads();
            if (CLUSTER > 1)
                cluster_arrive();
        }
    }
}
