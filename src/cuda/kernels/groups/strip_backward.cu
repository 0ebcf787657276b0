/* A part of strips.cu: the backward of a strip, dx and its parts of dweight and dbias. */

/* The saved moments of the thread's columns. */
struct saved {
    float mean[COLUMNS], rest[EXACT_MEAN ? COLUMNS : 1], rstd[COLUMNS];
};

__device__ __forceinline__ saved saved_of(const groups_args &args, const strip_place &p) {
    saved out;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        if constexpr (STAGED) {
            const int g = (p.chunk * WIDTH + j * EACH) / DEPTH;
            out.mean[j] = staged_rows(0)[g];
            if (EXACT_MEAN)
                out.rest[j] = staged_rows(1)[g];
            out.rstd[j] = staged_rows(2)[g];
        } else {
            const i64 row = p.image * GROUPS + (p.channel + j * EACH) / DEPTH;
            out.mean[j] = p.steps ? saved_mean(args, row) : 0;
            if (EXACT_MEAN)
                out.rest[j] = p.steps ? saved_rest(args, row) : 0;
            out.rstd[j] = p.steps ? saved_rstd(args, row) : 0;
        }
    return out;
}

/* Where nothing leaves float's range rstd is multiplied by last, once and not for every element. */
constexpr bool SCALES_LAST = X_TYPE == F16 && DY_TYPE == F16;

/* xhat, or what it is made of by rstd. */
__device__ __forceinline__ float deviation_of(float x, const saved &s, int i) {
    x = less_mean(x, s.mean[i / EACH], EXACT_MEAN ? s.rest[i / EACH] : 0);
    return SCALES_LAST ? x : x * s.rstd[i / EACH];
}

__device__ __forceinline__ float *channel_sums(int which, int warp) {
    return (float *)(dynamic_shared + SUMS_AT) + (which * WARPS + warp) * TILE_CHANNELS;
}

/* Adds a chunk's to sums of dy, dy * xhat and xhat of each of the thread's channels; `g`: dy as it comes to the norm.
 * `w`: of what deviation_of gives. */
__device__ __forceinline__ void add_gradient(const chunk<X_BYTES> &x, const chunk<DY_BYTES> &dy, const saved &s,
                                             const affine &w, float (*v)[WIDTH], float *g) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float d = deviation_of(element<X_TYPE>(x.word, i), s, i);
        g[i] = gradient_behind(element<DY_TYPE>(dy.word, i), d, w.weight[i], w.bias[i]);
        v[0][i] += g[i];
        v[1][i] = multiply_add(g[i], d, v[1][i]);
        if (CORRECT)
            v[2][i] += d;
    }
}

/* A thread's sums of a strip. With AHEAD those of its first parts are made while the strip before it is written. */
struct begun_gradients {
    float v[3][WIDTH];
    affine w; /* of what deviation_of gives */

    __device__ __forceinline__ void begin(const saved &s, const affine &of) {
        w = of;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            v[0][i] = v[1][i] = v[2][i] = 0;
            if (ACTIVE && SCALES_LAST)
                w.weight[i] *= s.rstd[i / EACH];
        }
    }
    /* A part of the held steps, which has come. */
    __device__ __forceinline__ void add(const strip_place &p, const saved &s, int part) {
        const u32 tile = shared_address(dynamic_shared);
        const int end = least(held_of(p), (part + 1) * PART);
#pragma unroll(TIGHT && KEPT ? 1 : 2)
        for (int k = part * PART; k < end; k++) {
            const auto x = load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k));
            const auto dy = load_from_shared<DY_BYTES>(chunk_at<DY_BYTES>(tile + DY_AT, p, k));
            float g[WIDTH];
            add_gradient(x, dy, s, w, v, g);
            if constexpr (KEPT)
                store_to_shared<DY_BYTES>(chunk_at<DY_BYTES>(tile + DY_AT, p, k), pack<DY_TYPE, WIDTH>(g));
        }
    }
};

/* Parts [PART_NUMBER, END), as they come. */
template <int PART_NUMBER, int END>
__device__ __forceinline__ void add_gradients(const strip_place &p, const saved &s, begun_gradients &sums) {
    if constexpr (PART_NUMBER < END) {
        copy_async_wait<PARTS - 1 - PART_NUMBER>();
        sums.add(p, s, PART_NUMBER);
        add_gradients<PART_NUMBER + 1, END>(p, s, sums);
    }
}

/* The sums of each of the warp's channels, from those that were begun. */
__device__ __forceinline__ void sum_channels(const groups_args &args, const strip_place &p, const saved &s,
                                             begun_gradients &sums) {
    float(&v)[3][WIDTH] = sums.v;
    add_gradients<PARTS_AHEAD, PARTS>(p, s, sums);
    read_loose<false>(args, p, [&](int, const chunk<X_BYTES> &x, const chunk<DY_BYTES> &dy) {
        float g[WIDTH];
        add_gradient(x, dy, s, sums.w, v, g);
    });
#pragma unroll
    for (int j = 0; j < (CORRECT ? 3 : 2); j++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (SCALES_LAST && j > 0)
                v[j][i] *= s.rstd[i / EACH];
            v[j][i] = sum_over_planes<LANES, PLANES>(v[j][i], p.lane);
        }
    if (p.lane >= LANES)
        return;
#pragma unroll
    for (int j = 0; j < (CORRECT ? 3 : 2); j++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            channel_sums(j, p.warp)[p.chunk * WIDTH + i] = v[j][i];
}

/* One of a channel's sums over the block. */
__device__ __forceinline__ float sum_of_warps(int which, int channel) {
    float v = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        v += channel_sums(which, w)[channel];
    return v;
}

/* What a group's elements have in common, from its sums. */
__device__ __forceinline__ void found_common(const groups_args &args, const strip_place &p, int group,
                                             const double *v) {
    const i64 row = p.image * GROUPS + p.group + group;
    float mean = 0, rest = 0, rstd = 0;
    if constexpr (CORRECT && STAGED) {
        mean = staged_rows(0)[group];
        rest = HAS_REST ? staged_rows(1)[group] : 0;
        rstd = staged_rows(2)[group];
    } else if constexpr (CORRECT) {
        mean = saved_mean(args, row);
        rest = saved_rest(args, row);
        rstd = saved_rstd(args, row);
    } else if constexpr (L2) {
        rstd = saved_rstd(args, row);
    }
    const common c = common_of(args, v, mean, rest, rstd);
    float *found = found_of(group);
    found[0] = c.c1;
    found[1] = c.c2;
    found[2] = c.delta;
}

/* SEND lanes add up a group of the block's and send that; where nobody else has a part of the strip, they
 * are done. */
__device__ __forceinline__ void send_gradients(const groups_args &args, mailbox &m,
                                               const strip_place &p, int group, u32 round) {
    const int rank = p.lane % SEND;
    double v[3] = {0, 0, 0};
    for (int d = rank; d < DEPTH && group < p.groups; d += SEND) {
        const int channel = group * DEPTH + d;
        const float w = STAGED ? staged_channels(0)[channel] : weight_of(args, p.group * DEPTH + channel);
        v[0] += (double)(w * sum_of_warps(0, channel));
        v[1] += (double)(w * sum_of_warps(1, channel));
        if (CORRECT)
            v[2] += (double)sum_of_warps(2, channel);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j < 2 || CORRECT)
            v[j] = sum_over_lanes<SEND>(v[j], p.lane);
    if constexpr (BLOCKS > 1) {
        if (group < p.groups)
            send_mail(args, m, p, group, round, rank, v[0], v[1], v[2]);
    } else if (group < p.groups && rank == 0) {
        const double all[3] = {(message)v[0], (message)v[1], (message)v[2]};
        found_common(args, p, group, all);
    }
}

/* MERGE lanes find what a group's elements have in common. */
__device__ __forceinline__ void merge_gradients(const groups_args &args, const strip_place &p,
                                                int group, u32 round) {
    const int lane = p.lane % MERGE;
    const taken t(args, p, group, round, lane);
    const double v[3] = {t.sum(0, p.lane), t.sum(1, p.lane), CORRECT ? t.sum(2, p.lane) : 0};
    if (lane == 0 && group < p.groups)
        found_common(args, p, group, v);
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

/* What dx is made by: dx = rstd * (weight * dy - c1 - (xhat - delta) * c2), as dy * a + (xhat * b + c). */
struct dx_factors {
    float a[WIDTH], b[COLUMNS], c[COLUMNS];
};

/* dx of one chunk, to which that of dsum is added, where there is one. */
template <bool IS_KEPT, typename... dsum_chunk>
__device__ __forceinline__ void write_dx(const chunk<X_BYTES> &x, const chunk<DY_BYTES> &dy, const saved &s,
                                         const affine &w, const dx_factors &f, char *out, int k,
                                         const dsum_chunk &...dsum) {
    if constexpr (DX_TYPE != NONE) {
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float d = deviation_of(element<X_TYPE>(x.word, i), s, i);
            float g = element<DY_TYPE>(dy.word, i);
            if (!IS_KEPT)
                g = gradient_behind(g, d, SCALES_LAST ? f.a[i] : w.weight[i], w.bias[i]);
            v[i] = multiply_add(g, f.a[i], multiply_add(d, f.b[i / EACH], f.c[i / EACH]));
            ((v[i] += element<DSUM_TYPE>(dsum.word, i)), ...);
        }
        store_chunk<OUT_BYTES, OUT_ACCESS>(out + (i64)k * STEP * COLS * bytes_of(OUT_TYPE), pack<OUT_TYPE, WIDTH>(v));
    }
}

/* The same of one that is held. */
template <typename... dsum_chunk>
__device__ __forceinline__ void write_held_dx(const strip_place &p, const saved &s, const affine &w,
                                              const dx_factors &f, char *out, int k, const dsum_chunk &...dsum) {
    if constexpr (DX_TYPE != NONE) {
        const u32 tile = shared_address(dynamic_shared);
        write_dx<KEPT>(load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k)),
                       load_from_shared<DY_BYTES>(chunk_at<DY_BYTES>(tile + DY_AT, p, k)), s, w, f, out, k, dsum...);
    }
}

template <typename part_taker>
__device__ __forceinline__ void write_backward(const groups_args &args, const strip_place &p,
                                               const saved &s, const affine &w,
                                               const filling &next, const part_taker &take) {
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    dx_factors f;
    if (!COOPERATIVE && !p.steps)
        return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        f.a[i] = w.weight[i] * s.rstd[i / EACH];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const float *found = found_of((p.chunk * WIDTH + j * EACH) / DEPTH);
        f.b[j] = -found[1] * s.rstd[j] * (SCALES_LAST ? s.rstd[j] : 1);
        f.c[j] = LAYER ? (CORRECT ? multiply_add(found[2], found[1], -found[0]) : -found[0]) * s.rstd[j]
                       : 0;
    }
    if constexpr (DX_TYPE != NONE)
        read_loose<true>(args, p, [&](int k, const chunk<X_BYTES> &x, const chunk<DY_BYTES> &dy) {
            if constexpr (HAS_DSUM)
                write_dx<false>(x, dy, s, w, f, out, k, loose_dsum(args, p, k));
            else
                write_dx<false>(x, dy, s, w, f, out, k);
        });
    if constexpr (HAS_DSUM)
        write_steps_with_dsum(args, p, next, [&](int k, const chunk<DSUM_BYTES> &dsum) {
            write_held_dx(p, s, w, f, out, k, dsum);
        }, take);
    else
        write_steps(p, next, [&](int k) { write_held_dx(p, s, w, f, out, k); }, take);
}

/* Begins with the first strip of a block. */
__device__ __forceinline__ void begin_backward(const groups_args &args, const strip_place &p, const saved &s,
                                               begun_gradients &sums) {
    sums.begin(s, ACTIVE ? affine_of(args, p) : affine());
    add_gradients<0, PARTS_AHEAD>(p, s, sums);
}

/* Returns the place in the strip `after` this, whose moments `s` becomes, and `sums` what was begun of it. */
__device__ __forceinline__ strip_place backward_strip(const groups_args &args, const strip_place &p,
                                                      saved &s, begun_gradients &sums, i64 after, mailbox &m,
                                                      u32 &round) {
    affine w;
    expect_mail(m, p, round);
    if constexpr (HAS_DSUM)
        prefetch_dsum(args, p);
    if (!AHEAD) {
        if (ACTIVE) /* else they are asked for while the sums are on their way */
            w = affine_of(args, p);
        sums.begin(s, w);
    }
    sum_channels(args, p, s, sums);
    if (CLUSTER > 1)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (WARP / SEND); g < p.groups; g += WARPS * (WARP / SEND))
        send_gradients(args, m, p, g + p.lane / SEND, round);
    if (AHEAD || (!STAGED && !ACTIVE))
        w = affine_of(args, p);
    const strip_place then = place_of(after);
    const saved next = COOPERATIVE ? saved_of(args, then) : s;
    if constexpr (BLOCKS > 1) {
        wait_for_mail(m, round);
        for (int g = p.warp * (WARP / MERGE); g < p.groups; g += WARPS * (WARP / MERGE))
            merge_gradients(args, p, g + p.lane / MERGE, round);
    }
    __syncthreads();
    round++;
    if (STAGED) /* again, if there is an activation: in between others take their registers */
        w = affine_of(args, p);
    if (AHEAD)
        sums.begin(next, ACTIVE ? affine_of(args, then) : affine());
    write_backward(args, p, s, w, filling(args, then), [&](int part) { sums.add(then, next, part); });
    if (WANT_DWEIGHT || WANT_DBIAS) {
        write_partials(args, p);
        if (COOPERATIVE && after != NO_STRIP)
            __syncthreads();
    }
    s = next;
    return then;
}
