/*
 * Norms over groups of channels: image n has GROUPS groups of DEPTH channels of PIXELS pixels, a row
 * for each group of an image; weight and bias vary by channel. Everything is made of sums over one
 * channel of one image, which are what dweight and dbias need, too.
 *
 * STAGE 0, backward in one read (pixels dense): a block, or a cluster of CLUSTER of them, takes a row, x
 * and dy, into shared memory.
 * STAGE 1, 2, 3, each tensor read twice, for rows of any length: sums of every channel over PIECE
 * pixels at a time; what those of a group come to; the output. Forward (PASS 0) or backward (1).
 * LAST: channels are dense, pixels COLS apart; else pixels are dense.
 *
 * Pieces are cut by COLS, PIXELS and the dtypes alone, so that a row does not depend on the others.
 * Sums run along fixed trees. Forward sums are about pivots, and the mean stays a pair; rows whose
 * squares leave float's range are summed again, scaled by a power of two.
 *
 * Constants: STAGE PASS KIND GROUPS DEPTH PIXELS COLS (channels of an image) PIECE WIDTH LANES PLANES
 * WARPS LAST CORRECT WEIGHT_OFFSET MIN_BLOCKS WANT_DWEIGHT WANT_DBIAS, the dtypes, X_ACCESS G_ACCESS
 * Y_ACCESS D_ACCESS (alignments of a row in bytes).
 */
#include "group_words.cu"

constexpr int PIECES = ceil_div(PIXELS, PIECE);

/* ---- Sums over a block ------------------------------------------------------------------------- */

/* The sums of COUNT values over the block, in every thread; `room` holds WARPS x COUNT. */
template <int COUNT, typename T>
__device__ __forceinline__ void sum_over_block(T *v, T (*room)[COUNT]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = sum_over_lanes<32>(v[j], lane);
    if (WARPS == 1)
        return;
    if (lane == 0)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            room[threadIdx.x / 32][j] = v[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        v[j] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[j] += room[w][j];
    }
    __syncthreads();
}

/* ---- Backward in one read ---------------------------------------------------------------------- */

/* A block of a cluster of CLUSTER has PART of the row's channels. A channel is cut into SEGMENTS of at
 * most PIECE chunks; a warp takes one at a time. */
constexpr int CHUNKS = ceil_div(PIXELS, WIDTH); /* of a channel */
constexpr int SEGMENTS = ceil_div(CHUNKS, PIECE);
constexpr int PART = DEPTH / CLUSTER;
constexpr i64 PART_ROW = (i64)PART * PIXELS;
__device__ constexpr i64 round_up(i64 bytes) { return (bytes + 15) / 16 * 16; }

/* Copies a row to shared memory. */
template <int TYPE, int ACCESS> __device__ __forceinline__ void fill(u32 to, const char *from) {
    constexpr int B = bytes_of(TYPE), A = most(least(ACCESS, 16), B), COUNT = (int)(PART_ROW * B / A);
    if constexpr (A >= 4) {
#pragma unroll 4
        for (int i = threadIdx.x; i < COUNT; i += THREADS)
            copy_async<A, A>(to + i * A, from + (i64)i * A, true);
    } else {
        constexpr int AT_ONCE = 8;
        for (int i = threadIdx.x; i < COUNT; i += AT_ONCE * THREADS) {
            chunk<A> held[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * THREADS < COUNT)
                    held[j] = load_once<A, A>(from + (i64)(i + j * THREADS) * A);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * THREADS < COUNT)
                    store_to_shared<A>(to + (i + j * THREADS) * A, held[j]);
        }
    }
}

/* With f16 x, and weights of f16, no product of the factors leaves float's range whichever comes
 * first: rstd is multiplied in once for a sum or a channel in place of each element. */
constexpr bool SHORT_RANGE = X_TYPE == F16;
constexpr bool SHORT_WEIGHT = SHORT_RANGE && (W_TYPE == F16 || W_TYPE == NONE);

struct saved {
    float mean, rstd;
};
__device__ __forceinline__ saved saved_of(const groups_args &args, i64 row) {
    return {saved_mean(args, row), saved_rstd(args, row)};
}

/* Where a row lies in shared memory, and what its channels have in common. */
struct row_place {
    u32 x, dy;
    const float *weight; /* of the block's channels */
    saved of;
};

/* x - mean, and times rstd but for SHORT_RANGE. */
__device__ __forceinline__ float centred(const saved &of, float x) {
    if (LAYER)
        x -= of.mean;
    return SHORT_RANGE ? x : x * of.rstd;
}

/* Sums over WIDTH neighbours: dy, dy times what is centred, and that. */
__device__ __forceinline__ void add_chunk(const saved &of, const u32 *x, const u32 *dy, float *v) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float d = centred(of, element<X_TYPE>(x, i)), g = element<G_TYPE>(dy, i);
        v[0] += g;
        v[1] = multiply_add(g, d, v[1]);
        if (CORRECT)
            v[2] += d;
    }
}

/* Sums over a warp, of xhat in place of what is centred. */
__device__ __forceinline__ void sums_of_warp(const saved &of, float *v) {
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = sum_over_lanes<32>(v[j], threadIdx.x % 32);
        if (SHORT_RANGE && j > 0)
            v[j] *= of.rstd;
    }
}

/* dx = dy * weight * rstd + what is centred * slope + constant */
struct row_factors {
    float slope, constant;
};

__device__ __forceinline__ row_factors factors_of(const saved &of, const common &c) {
    const float slope = -c.c2 * of.rstd, constant = -c.c1 * of.rstd;
    return {SHORT_RANGE ? slope * of.rstd : slope,
            CORRECT ? multiply_add(-c.delta, slope, constant) : constant};
}

__device__ __forceinline__ float gradient_of(const saved &of, const row_factors &f, float x,
                                             float dy, float w) {
    const float rest = multiply_add(centred(of, x), f.slope, f.constant);
    if (SHORT_WEIGHT)
        return multiply_add(dy, w, rest); /* w has been multiplied by rstd */
    return multiply_add(WEIGHTED ? dy * w : dy, of.rstd, rest);
}

/* Chunks of a segment at once; more take registers that blocks need. */
constexpr int AT_ONCE = 2;

struct chunks_at_once {
    chunk<X_BYTES> x[AT_ONCE];
    chunk<G_BYTES> dy[AT_ONCE];
};

/* Those of a lane from chunk `first` of the block's part on, before `end`. */
__device__ __forceinline__ void load_chunks(const row_place &r, int first, int end, chunks_at_once &c) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        if (first + 32 * j < end) {
            c.x[j] = load_from_shared<X_BYTES>(r.x + (first + 32 * j) * X_BYTES);
            c.dy[j] = load_from_shared<G_BYTES>(r.dy + (first + 32 * j) * G_BYTES);
        }
}

/* Where segment `s` begins and ends, in chunks of the block's part. */
__device__ __forceinline__ void segment_of(int s, int &channel, int &first, int &end) {
    channel = s / SEGMENTS;
    first = (s - channel * SEGMENTS) * PIECE;
    end = channel * CHUNKS + least(first + PIECE, CHUNKS);
    first += channel * CHUNKS;
}

/* Sums of every segment, to sums[3][PART * SEGMENTS]. */
__device__ __forceinline__ void sum_segments(const row_place &r, float *sums) {
    constexpr int ALL = PART * SEGMENTS;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int s = threadIdx.x / 32; s < ALL; s += WARPS) {
        int channel, first, end;
        float v[3] = {0, 0, 0};
        segment_of(s, channel, first, end);
#pragma unroll 1
        for (int c = first + lane; c < end; c += 32 * AT_ONCE) {
            chunks_at_once at;
            load_chunks(r, c, end, at);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (c + 32 * j < end)
                    add_chunk(r.of, at.x[j].word, at.dy[j].word, v);
        }
        __syncwarp();
        sums_of_warp(r.of, v);
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (lane == 0)
                sums[j * ALL + s] = v[j];
    }
}

/* Sums of a channel over its segments. */
template <int COUNT>
__device__ __forceinline__ void sum_of_channel(const float *sums, int d, float *v) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        v[j] = 0;
#pragma unroll 4
        for (int s = d * SEGMENTS; s < (d + 1) * SEGMENTS; s++)
            v[j] += sums[j * (PART * SEGMENTS) + s];
    }
}

struct __align__(16) cluster_room {
    double entries[2][CLUSTER][4];
    u64 byte_barriers[2];
};

/* Adds up the cluster's sums, in the order of its blocks; `round` counts the rows of the block. */
__device__ __forceinline__ void sum_over_cluster(double *v, cluster_room &cluster, u32 round) {
    double(*const entries)[4] = cluster.entries[round & 1];
    const u32 bar = shared_address(cluster.byte_barriers + (round & 1));
    if (threadIdx.x == 0)
        byte_barrier_expect(bar, CLUSTER * 32);
    if (threadIdx.x < CLUSTER) {
        const double mine[4] = {v[0], v[1], v[2], 0};
        send_to_block(shared_address(entries[cluster_rank()]), bar, threadIdx.x, mine);
    }
    byte_barrier_wait(bar, round >> 1 & 1);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = 0;
#pragma unroll
        for (int b = 0; b < CLUSTER; b++)
            v[j] += entries[b][j];
    }
}

__device__ __forceinline__ void write_segments(const row_place &r, const common &c, char *out) {
    const row_factors f = factors_of(r.of, c);
    constexpr int B = WIDTH * bytes_of(D_TYPE);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int s = threadIdx.x / 32; s < PART * SEGMENTS; s += WARPS) {
        int channel, first, end;
        segment_of(s, channel, first, end);
        float w = WEIGHTED ? r.weight[channel] : 1;
        if (SHORT_WEIGHT)
            w *= r.of.rstd;
#pragma unroll 1
        for (int k = first + lane; k < end; k += 32 * AT_ONCE) {
            chunks_at_once at;
            load_chunks(r, k, end, at);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (k + 32 * j >= end)
                    continue;
                float v[WIDTH];
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    v[i] = gradient_of(r.of, f, element<X_TYPE>(at.x[j].word, i),
                                       element<G_TYPE>(at.dy[j].word, i), w);
                store_once<B, D_ACCESS>(out + (i64)(k + 32 * j) * B, pack<D_TYPE, WIDTH>(v));
            }
        }
    }
}

/* The row's sums in every thread. Each warp adds up those of few segments for itself. */
__device__ __forceinline__ void sum_of_row(const row_place &r, const float *sums, double *total) {
    __shared__ double room[WARPS][3];
    constexpr bool BY_WARP = PART * SEGMENTS <= 256;
    constexpr int LANES_BUSY = BY_WARP ? least(32, 2 * power_of_two_up_to(most(PART - 1, 1))) : 32;
    total[0] = total[1] = total[2] = 0;
    for (int d = BY_WARP ? threadIdx.x % 32 : threadIdx.x; d < PART; d += BY_WARP ? 32 : THREADS) {
        float v[3];
        sum_of_channel<CORRECT ? 3 : 2>(sums, d, v);
        const float w = WEIGHTED ? r.weight[d] : 1;
        total[0] += (double)(w * v[0]);
        total[1] += (double)(w * v[1]);
        if (CORRECT)
            total[2] += v[2];
    }
    if constexpr (BY_WARP)
#pragma unroll
        for (int j = 0; j < (CORRECT ? 3 : 2); j++) {
            total[j] = sum_over_lanes<LANES_BUSY>(total[j], threadIdx.x % 32);
            if (LANES_BUSY < 32)
                total[j] = __shfl_sync(EVERY_LANE, total[j], 0);
        }
    else
        sum_over_block<3>(total, room);
}

__device__ __forceinline__ void backward_row(const groups_args &args, i64 row, cluster_room &cluster,
                                             u32 round) {
    constexpr int DY_AT = (int)round_up(PART_ROW * bytes_of(X_TYPE));
    float *sums = (float *)(dynamic_shared + DY_AT + round_up(PART_ROW * bytes_of(G_TYPE)));
    float *weight = sums + 3 * PART * SEGMENTS;
    const i64 image = row / GROUPS;
    const int group = (int)(row - image * GROUPS);
    const int first = group * DEPTH + (CLUSTER > 1 ? (int)cluster_rank() * PART : 0);
    const i64 begin = (i64)first * PIXELS;
    row_place r;
    r.x = shared_address(dynamic_shared);
    r.dy = r.x + DY_AT;
    r.weight = weight;
    fill<X_TYPE, X_ACCESS>(r.x, (const char *)args.x + image * args.x_image + begin * bytes_of(X_TYPE));
    fill<G_TYPE, G_ACCESS>(r.dy,
                           (const char *)args.dy + image * args.dy_image + begin * bytes_of(G_TYPE));
    copy_async_commit();
    r.of = saved_of(args, row);
    if (WEIGHTED)
        for (int d = threadIdx.x; d < PART; d += THREADS)
            weight[d] = weight_of(args, first + d);
    copy_async_wait<0>();
    __syncthreads();
    sum_segments(r, sums);
    __syncthreads();
    double total[3];
    sum_of_row(r, sums, total);
    if (CLUSTER > 1)
        sum_over_cluster(total, cluster, round);
    const common c = common_of(total);
    if constexpr (D_TYPE != NONE)
        write_segments(r, c, (char *)args.out + image * args.out_image + begin * bytes_of(D_TYPE));
    for (int d = threadIdx.x; d < PART; d += THREADS) {
        float v[2];
        sum_of_channel<2>(sums, d, v);
        const i64 at = image * COLS + first + d;
        if (WANT_DWEIGHT)
            args.partial_weight[at] = CORRECT ? multiply_add(-c.delta, v[0], v[1]) : v[1];
        if (WANT_DBIAS)
            args.partial_bias[at] = v[0];
    }
}

/* A row to a block or a cluster at a time. */
__device__ __forceinline__ void backward_rows(const groups_args &args) {
    __shared__ cluster_room cluster;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(cluster.byte_barriers + threadIdx.x));
        cluster_arrive();
        cluster_wait();
    }
    wait_for_stream();
    release_stream();
    u32 round = 0;
    for (i64 row = blockIdx.x / CLUSTER; row < args.images * GROUPS; row += gridDim.x / CLUSTER) {
        backward_row(args, row, cluster, round++);
        __syncthreads(); /* the next row takes this one's place */
    }
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

/* ---- Two reads: where a block and its threads are ---------------------------------------------- */

/* LAST: a block has LANES chunks of channels by a piece of pixels, a thread one chunk and every
 * PLANES-th pixel. Else: a warp has a piece of one channel, a lane every 32nd chunk. */
constexpr bool SAME = !LAST || DEPTH % WIDTH == 0; /* a chunk is of one row */
constexpr int STRIPS = ceil_div(ceil_div(COLS, WIDTH), LANES);

struct piece_place {
    i64 image;
    int piece, lane, plane;
    int channel;           /* first of the thread's chunk */
    int first_pixel, end;  /* of the piece */
    bool active;
};

/* Of the block's number, which may be past the last. */
__device__ __forceinline__ piece_place piece_of(i64 number) {
    piece_place p;
    if constexpr (LAST) {
        p.lane = threadIdx.x % LANES;
        p.plane = threadIdx.x / LANES;
        const i64 all = number / STRIPS;
        p.channel = ((int)(number - all * STRIPS) * LANES + p.lane) * WIDTH;
        p.image = all / PIECES;
        p.piece = (int)(all - p.image * PIECES);
        p.active = p.plane < PLANES && p.channel < COLS;
    } else {
        p.lane = threadIdx.x % 32;
        p.plane = 0;
        const i64 unit = number * WARPS + threadIdx.x / 32, all = unit / COLS;
        p.channel = (int)(unit - all * COLS);
        p.image = all / PIECES;
        p.piece = (int)(all - p.image * PIECES);
        p.active = true;
    }
    p.first_pixel = p.piece * PIECE;
    p.end = least(p.first_pixel + PIECE, PIXELS);
    return p;
}

__device__ __forceinline__ float *sums_of(const groups_args &args, i64 image, int piece, int which) {
    return args.sums + ((image * PIECES + piece) * 3 + which) * COLS;
}

/* Bytes from a tensor's image to a pixel of a channel. */
template <int TYPE> __device__ __forceinline__ i64 byte_of(int channel, int pixel) {
    return (LAST ? (i64)pixel * COLS + channel : (i64)channel * PIXELS + pixel) * bytes_of(TYPE);
}

/* ---- Two reads: sums --------------------------------------------------------------------------- */

/* Channels are dense: sums of each of a thread's WIDTH channels, then over the block's planes. */
__device__ __forceinline__ void sum_pixels(const groups_args &args, const piece_place &p) {
    float *room = (float *)dynamic_shared; /* [3][PLANES][LANES * WIDTH] */
    float v[3][WIDTH], mean[SAME ? 1 : WIDTH], rstd[SAME ? 1 : WIDTH];
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        v[0][i] = v[1][i] = v[2][i] = 0;
        if (!FORWARD && p.active && !(SAME && i > 0)) {
            const i64 row = p.image * GROUPS + (p.channel + i) / DEPTH;
            mean[i] = saved_mean(args, row);
            rstd[i] = saved_rstd(args, row);
        }
    }
    const int begin = p.first_pixel + p.plane;
    constexpr int STEPS = ceil_div(PIECE, PLANES), AT_ONCE = FORWARD ? 6 : 4;
    if (FORWARD && LAYER && p.active) {
        /* Pivots: means of the thread's first pixels, up to 4 and a power of two of them. */
        const int pivots = begin + 3 * PLANES < p.end ? 4 : begin + PLANES < p.end ? 2 : 1;
        for (int k = 0; k < pivots && begin < p.end; k++) {
            const auto c = load_shared_by_rows<X_BYTES, X_ACCESS>(
                x + byte_of<X_TYPE>(p.channel, begin + k * PLANES));
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[0][i] += element<X_TYPE>(c.word, i) * (1.f / (float)pivots);
        }
    }
#pragma unroll 1
    for (int k = 0; k < STEPS; k += AT_ONCE) {
        chunk<X_BYTES> cx[AT_ONCE];
        chunk<G_BYTES> cg[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int pixel = begin + (k + j) * PLANES;
            if (!p.active || pixel >= p.end)
                continue;
            cx[j] = load_shared_by_rows<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, pixel));
            if constexpr (!FORWARD)
                cg[j] = load_shared_by_rows<G_BYTES, G_ACCESS>(dy + byte_of<G_TYPE>(p.channel, pixel));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (!p.active || begin + (k + j) * PLANES >= p.end)
                continue;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                float d = element<X_TYPE>(cx[j].word, i);
                if constexpr (FORWARD) {
                    if (LAYER) {
                        d -= v[0][i];
                        v[1][i] += d;
                    }
                    v[2][i] = multiply_add(d, d, v[2][i]);
                } else {
                    const float g = element<G_TYPE>(cg[j].word, i);
                    if (LAYER)
                        d -= mean[SAME ? 0 : i];
                    d *= rstd[SAME ? 0 : i];
                    v[0][i] += g;
                    v[1][i] = multiply_add(g, d, v[1][i]);
                    if (CORRECT)
                        v[2][i] += d;
                }
            }
        }
    }
    if (p.plane < PLANES)
#pragma unroll
        for (int j = 0; j < 3; j++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                room[(j * PLANES + p.plane) * (LANES * WIDTH) + p.lane * WIDTH + i] = v[j][i];
    __syncthreads();
    const int strip = p.channel - p.lane * WIDTH; /* the block's first channel */
    for (int c = threadIdx.x; c < LANES * WIDTH && strip + c < COLS; c += THREADS) {
        const int planes = least(PLANES, p.end - p.first_pixel); /* that have a pixel */
        float away = 0;
        if (FORWARD && LAYER)
            for (int r = 1; r < planes; r++)
                away += room[r * (LANES * WIDTH) + c] - room[c];
        /* The mean of the planes' pivots, of which any one may be far off. */
        const float pivot = room[c] + away / (float)planes;
        float out[3] = {FORWARD ? pivot : 0, 0, 0};
#pragma unroll
        for (int r = 0; r < PLANES; r++) {
            float part[3];
#pragma unroll
            for (int j = 0; j < 3; j++)
                part[j] = room[(j * PLANES + r) * (LANES * WIDTH) + c];
            const int count = (p.end - p.first_pixel - 1 - r + PLANES) / PLANES;
            if (FORWARD && LAYER && count > 0)
                shift(part[0] - pivot, (float)count, part[1], part[2]);
#pragma unroll
            for (int j = FORWARD ? 1 : 0; j < 3; j++)
                out[j] += part[j];
        }
#pragma unroll
        for (int j = 0; j < 3; j++)
            sums_of(args, p.image, p.piece, j)[strip + c] = out[j];
    }
}

/* Pixels are dense (backward alone): a warp sums a piece of a channel. */
__device__ __forceinline__ void sum_channel(const groups_args &args, const piece_place &p) {
    const i64 row = p.image * GROUPS + p.channel / DEPTH;
    const saved of = saved_of(args, row);
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
    float v[3] = {0, 0, 0};
#pragma unroll 4
    for (int pixel = p.first_pixel + p.lane * WIDTH; pixel < p.end; pixel += 32 * WIDTH)
        add_chunk(
            of, load_shared_by_rows<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, pixel)).word,
            load_shared_by_rows<G_BYTES, G_ACCESS>(dy + byte_of<G_TYPE>(p.channel, pixel)).word, v);
    sums_of_warp(of, v);
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (p.lane == 0)
            sums_of(args, p.image, p.piece, j)[p.channel] = v[j];
}

/* ---- Two reads: moments ------------------------------------------------------------------------ */

/* The group's sums about its first pivot, from those of its channels' pieces. */
__device__ __forceinline__ float merge_group(const groups_args &args, i64 image, int group,
                                             double *v, double (*room)[2]) {
    const float pivot = LAYER ? sums_of(args, image, 0, 0)[group * DEPTH] : 0;
    v[0] = v[1] = 0;
    for (int e = threadIdx.x; e < PIECES * DEPTH; e += THREADS) {
        const int piece = e / DEPTH, channel = group * DEPTH + e - piece * DEPTH;
        double a = sums_of(args, image, piece, 1)[channel];
        double b = sums_of(args, image, piece, 2)[channel];
        if (LAYER) {
            const double d = (double)sums_of(args, image, piece, 0)[channel] - (double)pivot;
            shift(d, (double)least(PIECE, PIXELS - piece * PIECE), a, b);
        }
        v[0] += a;
        v[1] += b;
    }
    sum_over_block<2>(v, room);
    return pivot;
}

/* The sums again, of scaled elements about 0, element by element: for rows beyond float's range. */
__device__ __forceinline__ void scaled_sums(const groups_args &args, i64 image, int group,
                                            float pivot, double scale, double *v,
                                            double (*room)[2]) {
    const char *x = (const char *)args.x + image * args.x_image;
    v[0] = v[1] = 0;
    for (i64 e = threadIdx.x; e < ROW; e += THREADS) {
        const int pixel = (int)(LAST ? e / DEPTH : e % PIXELS);
        const int channel = group * DEPTH + (int)(LAST ? e - (i64)pixel * DEPTH : e / PIXELS);
        const double d =
            ((double)load_element<X_TYPE>(x + byte_of<X_TYPE>(channel, pixel), 0) - pivot) * scale;
        v[0] += d;
        v[1] = multiply_add(d, d, v[1]);
    }
    sum_over_block<2>(v, room);
}

__device__ __forceinline__ void forward_moments(const groups_args &args, i64 row) {
    __shared__ double room[WARPS][2];
    const i64 image = row / GROUPS;
    const int group = (int)(row - image * GROUPS);
    double v[2], back = 1;
    float pivot = merge_group(args, image, group, v, room);
    if (leaves_range(args, v[1])) {
        back = v[1] < 1 ? 0x1p-64 : 0x1p64;
        if (!(pivot - pivot == 0)) /* the first elements' mean is beyond float, too */
            pivot = 0;
        scaled_sums(args, image, group, pivot, 1 / back, v, room);
    }
    const moments m = moments_of(pivot / back, v[0], v[1], back, args.eps);
    if (threadIdx.x == 0) {
        float *to = args.moments + row * 8;
        to[0] = m.mean;
        to[1] = m.rest;
        to[2] = m.rstd;
        save_moments(args, row, m);
    }
}

__device__ __forceinline__ void backward_moments(const groups_args &args, i64 row) {
    __shared__ double room[WARPS][3];
    const i64 image = row / GROUPS;
    const int group = (int)(row - image * GROUPS);
    double total[3] = {0, 0, 0};
    for (int d = threadIdx.x; d < DEPTH; d += THREADS) {
        double v[3] = {0, 0, 0};
        const int channel = group * DEPTH + d;
#pragma unroll 4
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                v[j] += sums_of(args, image, piece, j)[channel];
        const double w = weight_of(args, channel);
        total[0] += w * v[0];
        total[1] += w * v[1];
        total[2] += v[2];
    }
    sum_over_block<3>(total, room);
    const common c = common_of(total);
    if (threadIdx.x == 0) {
        float *to = args.moments + row * 8;
        to[0] = c.c1;
        to[1] = c.c2;
        to[2] = c.delta;
        to[3] = saved_mean(args, row);
        to[4] = saved_rstd(args, row);
    }
    if (WANT_DWEIGHT || WANT_DBIAS)
        for (int d = threadIdx.x; d < DEPTH; d += THREADS) {
            double v[2] = {0, 0};
            const int channel = group * DEPTH + d;
#pragma unroll 4
            for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    v[j] += sums_of(args, image, piece, j)[channel];
            const i64 at = image * COLS + channel;
            if (WANT_DWEIGHT)
                args.partial_weight[at] = (float)(CORRECT ? v[1] - (double)c.delta * v[0] : v[1]);
            if (WANT_DBIAS)
                args.partial_bias[at] = (float)v[0];
        }
}

/* ---- Two reads: output ------------------------------------------------------------------------- */

/* What an element's output needs of its row. */
struct row_common {
    float mean, rstd;
    float a, b; /* forward: distance of the mean, -; backward: c2, delta * c2 - c1 */
};

__device__ __forceinline__ row_common common_of_row(const groups_args &args, i64 row) {
    const float *from = args.moments + row * 8;
    if (FORWARD)
        return {from[0], from[2], from[1], 0};
    return {from[3], from[4], from[1],
            CORRECT ? multiply_add(from[2], from[1], -from[0]) : -from[0]};
}

__device__ __forceinline__ float output_of(float x, float dy, const row_common &c, float w, float b) {
    if (LAYER)
        x -= c.mean;
    if (FORWARD) {
        if (LAYER)
            x -= c.a;
        x *= c.rstd;
        return WEIGHTED && BIASED ? multiply_add(x, w, b) : WEIGHTED ? x * w : BIASED ? x + b : x;
    }
    x *= c.rstd;
    const float g = WEIGHTED ? dy * w : dy;
    return (multiply_add(-x, c.a, g) + (LAYER ? c.b : 0)) * c.rstd;
}

__device__ __forceinline__ void apply_pieces(const groups_args &args, const piece_place &p) {
    constexpr int ROWS = SAME ? 1 : WIDTH, WEIGHTS = LAST ? WIDTH : 1, AT_ONCE = 4;
    const int step = LAST ? PLANES : 32 * WIDTH;
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
    char *out = (char *)args.out + p.image * args.out_image;
    row_common c[ROWS];
    float w[WEIGHTS], b[WEIGHTS];
    if (!p.active)
        return;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        c[i] = common_of_row(args, p.image * GROUPS + (p.channel + i) / DEPTH);
#pragma unroll
    for (int i = 0; i < WEIGHTS; i++) {
        w[i] = weight_of(args, p.channel + i);
        b[i] = bias_of(args, p.channel + i);
    }
#pragma unroll 1
    for (int pixel = p.first_pixel + (LAST ? p.plane : p.lane * WIDTH); pixel < p.end;
         pixel += AT_ONCE * step) {
        chunk<X_BYTES> cx[AT_ONCE];
        chunk<G_BYTES> cg[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = pixel + j * step;
            if (at >= p.end)
                continue;
            cx[j] = load_once<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, at));
            if constexpr (!FORWARD)
                cg[j] = load_once<G_BYTES, G_ACCESS>(dy + byte_of<G_TYPE>(p.channel, at));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int at = pixel + j * step;
            if (at >= p.end)
                continue;
            float v[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[i] = output_of(element<X_TYPE>(cx[j].word, i),
                                 FORWARD ? 0 : element<G_TYPE>(cg[j].word, i), c[SAME ? 0 : i],
                                 w[LAST ? i : 0], b[LAST ? i : 0]);
            store_once<OUT_BYTES, OUT_ACCESS>(out + byte_of<OUT_TYPE>(p.channel, at),
                                              pack<OUT_TYPE, WIDTH>(v));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_groups(const groups_args args) {
    const i64 rows = args.images * GROUPS;
    if constexpr (STAGE == 0) {
        backward_rows(args);
        return;
    }
    wait_for_stream();
    release_stream();
    if constexpr (STAGE == 2) {
        for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
            if constexpr (FORWARD)
                forward_moments(args, row);
            else
                backward_moments(args, row);
        }
    } else {
        const i64 units = args.images * PIECES * (LAST ? STRIPS : COLS);
        const i64 blocks = LAST ? units : (units + WARPS - 1) / WARPS;
        for (i64 turn = blockIdx.x; turn < blocks; turn += gridDim.x) {
            /* The output begins where the sums ended: that is still in the L2. */
            const i64 number = STAGE == 3 ? blocks - 1 - turn : turn;
            piece_place p = piece_of(number);
            if (!LAST && number * WARPS + threadIdx.x / 32 >= units)
                continue;
            if constexpr (STAGE == 3) {
                apply_pieces(args, p);
            } else if constexpr (LAST) {
                sum_pixels(args, p);
                __syncthreads();
            } else {
                sum_channel(args, p);
            }
        }
    }
}
