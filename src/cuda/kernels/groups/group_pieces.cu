/*
 * A part of groups.cu: of two reads, where a block and its threads are, and the sums of a piece's
 * channels.
 */

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
        p.lane = threadIdx.x % WARP;
        p.plane = 0;
        const i64 unit = number * WARPS + threadIdx.x / WARP, all = unit / COLS;
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

/* Adds a pixel of each of a thread's channels. */
__device__ __forceinline__ void add_pixel(const saved *of, const channel_affine *a, const chunk<X_BYTES> &x,
                                          const chunk<DY_BYTES> &dy, float (*v)[WIDTH]) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float d = element<X_TYPE>(x.word, i);
        if constexpr (FORWARD) {
            if (LAYER) {
                d -= v[0][i];
                v[1][i] += d;
            }
            v[2][i] = multiply_add(d, d, v[2][i]);
        } else {
            const saved &s = of[SAME ? 0 : i];
            d = less_mean(d, s.mean, s.rest) * s.rstd;
            const float g =
                gradient_behind(element<DY_TYPE>(dy.word, i), d, a[i].weight, a[i].bias);
            v[0][i] += g;
            v[1][i] = multiply_add(g, d, v[1][i]);
            if (CORRECT)
                v[2][i] += d;
        }
    }
}

/* Puts a thread's sums to [3][PLANES][LANES * WIDTH]. */
__device__ __forceinline__ void leave_sums(const piece_place &p, const float (*v)[WIDTH], float *room) {
    if (p.plane < PLANES)
#pragma unroll
        for (int j = 0; j < 3; j++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                room[(j * PLANES + p.plane) * (LANES * WIDTH) + p.lane * WIDTH + i] = v[j][i];
}

/* Channels are dense: sums of each of a thread's WIDTH channels, then over the block's planes. */
__device__ __forceinline__ void sum_pixels(const groups_args &args, const piece_place &p) {
    float *room = (float *)dynamic_shared; /* [3][PLANES][LANES * WIDTH] */
    float v[3][WIDTH];
    saved of[SAME ? 1 : WIDTH];
    channel_affine a[WIDTH];
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        v[0][i] = v[1][i] = v[2][i] = 0;
        if (!FORWARD && p.active && !(SAME && i > 0))
            of[i] = saved_of(args, p.image * GROUPS + (p.channel + i) / DEPTH);
        if (!FORWARD && ACTIVE && p.active)
            a[i] = {weight_of(args, p.channel + i), bias_of(args, p.channel + i)};
    }
    const int begin = p.first_pixel + p.plane;
    constexpr int STEPS = ceil_div(PIECE, PLANES), AT_ONCE = FORWARD ? 6 : 4;
    if (FORWARD && LAYER && p.active) {
        /* Pivots: means of the thread's first pixels, up to 4 and a power of two of them. */
        const int pivots = begin + 3 * PLANES < p.end ? 4 : begin + PLANES < p.end ? 2 : 1;
        for (int k = 0; k < pivots && begin < p.end; k++) {
            const auto c = load_chunk<X_BYTES, X_ACCESS>(
                x + byte_of<X_TYPE>(p.channel, begin + k * PLANES));
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[0][i] += element<X_TYPE>(c.word, i) * (1.f / (float)pivots);
        }
    }
#pragma unroll 1
    for (int k = 0; k < STEPS; k += AT_ONCE) {
        chunk<X_BYTES> cx[AT_ONCE];
        chunk<DY_BYTES> cg[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int pixel = begin + (k + j) * PLANES;
            if (!p.active || pixel >= p.end)
                continue;
            cx[j] = load_chunk<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, pixel));
            if constexpr (!FORWARD)
                cg[j] = load_chunk<DY_BYTES, DY_ACCESS>(dy + byte_of<DY_TYPE>(p.channel, pixel));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (!p.active || begin + (k + j) * PLANES >= p.end)
                continue;
            add_pixel(of, a, cx[j], cg[j], v);
        }
    }
    leave_sums(p, v, room);
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
                move_pivot(part[0] - pivot, (float)count, part[1], part[2]);
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
    const channel_affine a =
        affine_behind(of, weight_of(args, p.channel), bias_of(args, p.channel));
    const char *x = (const char *)args.x + p.image * args.x_image;
    const char *dy = (const char *)args.dy + p.image * args.dy_image;
    float v[3] = {0, 0, 0}, g[WIDTH];
#pragma unroll 4
    for (int pixel = p.first_pixel + p.lane * WIDTH; pixel < p.end; pixel += WARP * WIDTH)
        add_chunk(
            of, a, load_chunk<X_BYTES, X_ACCESS>(x + byte_of<X_TYPE>(p.channel, pixel)).word,
            load_chunk<DY_BYTES, DY_ACCESS>(dy + byte_of<DY_TYPE>(p.channel, pixel)).word, v, g);
    sums_of_warp(of, v);
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (p.lane == 0)
            sums_of(args, p.image, p.piece, j)[p.channel] = v[j];
}
