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
    const float mean = saved_mean(args, row), rest = saved_rest(args, row), rstd = saved_rstd(args, row);
    const common c = common_of(total, mean, rest, rstd);
    if (threadIdx.x == 0) {
        float *to = args.moments + row * 8;
        to[0] = c.c1;
        to[1] = c.c2;
        to[2] = c.delta;
        to[3] = mean;
        to[4] = rstd;
        to[5] = rest;
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
