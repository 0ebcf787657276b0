/* A part of groups.cu: of two reads, what the sums of a group's channels come to. */

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
            move_pivot(d, (double)least(PIECE, PIXELS - piece * PIECE), a, b);
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

/* Neighbouring channels that a warp's lanes share out; those of one channel have every EACH-th piece of it. Where
 * pieces are few, many channels at once: each round of them waits for its loads. */
__device__ constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }
constexpr int MERGED = power_below(least(DEPTH, PIECES > 64 ? 8 : WARP)), EACH = THREADS / MERGED;

/* The sums of channels [first, first + MERGED) of a group over their pieces: in each thread those of one of them. */
__device__ __forceinline__ void merge_channels(const groups_args &args, i64 image, int group, int first, double *v,
                                               double (*room)[3][MERGED]) {
    const int lane = threadIdx.x % WARP, own = lane % MERGED;
    const int channel = group * DEPTH + least(first + own, DEPTH - 1);
    v[0] = v[1] = v[2] = 0;
#pragma unroll 4
    for (int piece = threadIdx.x / MERGED; piece < PIECES; piece += EACH)
#pragma unroll
        for (int j = 0; j < 3; j++)
            v[j] += sums_of(args, image, piece, j)[channel];
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = sum_over_planes<MERGED, WARP / MERGED>(v[j], lane);
        if (lane < MERGED)
            room[threadIdx.x / WARP][j][lane] = v[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[j] += room[w][j][own];
    }
    __syncthreads();
}

/* A channel's part of dweight and dbias, by the sums of dy and dy * xhat. */
__device__ __forceinline__ void write_partials(const groups_args &args, i64 image, int channel, const double *v,
                                               double delta) {
    const i64 at = image * COLS + channel;
    if (WANT_DWEIGHT)
        args.partial_weight[at] = (float)(CORRECT ? v[1] - delta * v[0] : v[1]);
    if (WANT_DBIAS)
        args.partial_bias[at] = (float)v[0];
}

__device__ __forceinline__ void backward_moments(const groups_args &args, i64 row) {
    __shared__ double channels_room[WARPS][3][MERGED], room[WARPS][3];
    const i64 image = row / GROUPS;
    const int group = (int)(row - image * GROUPS);
    double total[3] = {0, 0, 0}, v[3];
    for (int first = 0; first < DEPTH; first += MERGED) {
        const int channel = group * DEPTH + first + (int)threadIdx.x;
        merge_channels(args, image, group, first, v, channels_room);
        if (threadIdx.x >= MERGED || first + (int)threadIdx.x >= DEPTH)
            continue;
        const double w = weight_of(args, channel);
        total[0] += w * v[0];
        total[1] += w * v[1];
        total[2] += v[2];
        if (!CORRECT)
            write_partials(args, image, channel, v, 0);
    }
    sum_over_block<3>(total, room);
    const float mean = saved_mean(args, row), rest = saved_rest(args, row), rstd = saved_rstd(args, row);
    const common c = common_of(args, total, mean, rest, rstd);
    if (threadIdx.x == 0) {
        float *to = args.moments + row * 8;
        to[0] = c.c1;
        to[1] = c.c2;
        to[2] = c.delta;
        to[3] = mean;
        to[4] = rstd;
        to[5] = rest;
    }
    /* What is mended of the mean is in dweight, too. */
    for (int first = 0; CORRECT && (WANT_DWEIGHT || WANT_DBIAS) && first < DEPTH; first += MERGED) {
        merge_channels(args, image, group, first, v, channels_room);
        if (threadIdx.x < MERGED && first + (int)threadIdx.x < DEPTH)
            write_partials(args, image, group * DEPTH + first + (int)threadIdx.x, v, c.delta);
    }
}
