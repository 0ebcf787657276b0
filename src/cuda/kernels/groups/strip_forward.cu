/* A part of strips.cu: the forward of a strip, sums about pivots, moments and output. */

constexpr float BACK = 0x1p100f; /* squares of what is left of any row beyond float's range fit */

/* ---- Sums ----------------------------------------------------------------------------------------- */

/* Whether a mean of pivots is made by a product, as of 2^n of them it is the same. */
constexpr bool SHARES = EACH == 1 || (PLANES & (PLANES - 1)) == 0;

/* Where nothing else is added up with a channel's squares, each part's have a sum of their own: one
 * after the other 25 may be off by 6 ULP. */
constexpr bool APART = EACH == 1 && PARTS > 1;

constexpr bool FEW = STEPS <= 4;
/* In a row of few f32 numbers there is little but the roundings of their sums. */
typedef message_of<X_TYPE == F32 && (i64)PIXELS * DEPTH <= 256>::type thread_sum;

/* Sums of a column about its pivot. */
struct column {
    float pivot;
    thread_sum a, b;
};

/* With AHEAD a thread's sums of a strip are begun while the one before it is written. */
struct begun_squares {
    float pivot[COLUMNS];
    thread_sum a[WIDTH], b[WIDTH];
};

/* Sums of the thread's channels about its columns' pivots; SCALED: of elements times scale[column]. */
template <bool SCALED> struct thread_sums {
    const strip_place &p;
    const float *scale;
    column *out;
    thread_sum a[WIDTH], b[WIDTH];

    __device__ __forceinline__ chunk<X_BYTES> load(int k) const {
        return load_from_shared<X_BYTES>(chunk_at<X_BYTES>(shared_address(dynamic_shared), p, k));
    }

    /* Pivots: of few pixels the mean of a power of two of them, of more the mean of the first four's middle
     * two, for any one may be far off. */
    __device__ __forceinline__ void find_pivots(int count) const {
        if (count == 0)
            return;
        float sums[4][COLUMNS];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const auto c = load(least(k, count - 1));
            float v[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[i] = element<X_TYPE>(c.word, i) * (SCALED ? scale[i / EACH] : 1);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                sums[k][j] = tree_sum<EACH>(v + j * EACH) * (.5f / EACH);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const float s0 = sums[0][j], s1 = sums[1][j], s2 = sums[2][j], s3 = sums[3][j];
            if (FEW)
                out[j].pivot = count < 4 ? s0 + s1 : ((s0 + s1) + (s2 + s3)) * .5f;
            else
                out[j].pivot = fmaxf(fminf(s0, s1), fminf(s2, s3)) + fminf(fmaxf(s0, s1), fmaxf(s2, s3));
        }
    }

    /* A chunk, whose squares are added to `squares`. */
    __device__ __forceinline__ void add(const chunk<X_BYTES> &c, thread_sum *squares) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float x = element<X_TYPE>(c.word, i);
            thread_sum d = SCALED ? x * scale[i / EACH] : x;
            if (LAYER) {
                d -= out[i / EACH].pivot;
                a[i] += d;
            }
            squares[i] = multiply_add(d, d, squares[i]);
        }
    }

    /* The loose steps. */
    __device__ __forceinline__ void add_loose(const groups_args &args) {
        if constexpr (HAS_LOOSE) {
            thread_sum own[WIDTH], *const squares = APART ? own : b;
#pragma unroll
            for (int i = 0; APART && i < WIDTH; i++)
                own[i] = 0;
            read_loose<false>(args, p, [&](int, const chunk<X_BYTES> &c, const chunk<DY_BYTES> &) { add(c, squares); });
#pragma unroll
            for (int i = 0; APART && i < WIDTH; i++)
                b[i] += own[i];
        }
    }

    /* A part of `count` held steps, which has come. */
    __device__ __forceinline__ void add_part(int part, int count) {
        if (part == 0 && LAYER)
            find_pivots(count);
        const int end = least(count, (part + 1) * PART);
        thread_sum own[WIDTH], *const squares = APART ? own : b;
#pragma unroll
        for (int i = 0; APART && i < WIDTH; i++)
            own[i] = 0;
#pragma unroll(SCALED ? 1 : 2)
        for (int k = part * PART; k < end; k++) {
            const auto c = load(k);
            add(c, squares);
        }
#pragma unroll
        for (int i = 0; APART && i < WIDTH; i++)
            b[i] += own[i];
    }

    /* Parts [PART_NUMBER, END), as they come. */
    template <int PART_NUMBER, int END> __device__ __forceinline__ void add_parts(int count) {
        if constexpr (PART_NUMBER < END) {
            copy_async_wait<PARTS - 1 - PART_NUMBER>();
            add_part(PART_NUMBER, count);
            add_parts<PART_NUMBER + 1, END>(count);
        }
    }

    __device__ __forceinline__ void leave(begun_squares &begun) const {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            begun.pivot[j] = out[j].pivot;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            begun.a[i] = a[i];
            begun.b[i] = b[i];
        }
    }
    __device__ __forceinline__ void go_on(const begun_squares &begun) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            out[j].pivot = begun.pivot[j];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            a[i] = begun.a[i];
            b[i] = begun.b[i];
        }
    }
};

template <bool SCALED>
__device__ __forceinline__ void sum_thread(const groups_args &args, const strip_place &p, const float *scale,
                                           column *out, const begun_squares &begun) {
    thread_sums<SCALED> s = {p, scale, out, {}, {}};
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        out[j].pivot = 0;
    if (AHEAD && !SCALED)
        s.go_on(begun);
    s.template add_parts<SCALED ? 0 : PARTS_AHEAD, PARTS>(held_of(p));
    s.add_loose(args);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        out[j].a = tree_sum<EACH>(s.a + j * EACH);
        out[j].b = tree_sum<EACH>(s.b + j * EACH);
    }
}

/* The warp's columns, about the mean of the pixels' pivots, of which any one may be far off. All columns'
 * shuffles are under way at once: nothing here branches. */
__device__ __forceinline__ void sum_warp(const strip_place &p, column *own) {
    float *sums = (float *)(dynamic_shared + SUMS_AT) + p.warp * STRIP_COLUMNS * 3;
    const int planes = most(1, least(p.pixels - p.warp * PLANES, PLANES)); /* that have a pixel */
    const int count = p.steps;
    const float share = 1 / (float)planes;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        column &c = own[j];
        thread_sum b = c.b;
        if (LAYER) {
            const float all = sum_over_planes<LANES, PLANES>(c.pivot, p.lane);
            const float pivot = SHARES ? all * share : all / (float)planes;
            thread_sum a = c.a;
            move_pivot(count ? (thread_sum)c.pivot - (thread_sum)pivot : 0, (thread_sum)(count * EACH), a, b);
            c.pivot = pivot;
            c.a = (float)sum_over_planes<LANES, PLANES>(a, p.lane);
        }
        c.b = (float)sum_over_planes<LANES, PLANES>(b, p.lane);
    }
    if (p.lane >= LANES)
        return;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        float *to = sums + (p.chunk * COLUMNS + j) * 3;
        to[0] = own[j].pivot;
        to[1] = own[j].a;
        to[2] = own[j].b;
    }
}

/* A group's moments from its sums about `pivot`. */
template <bool SCALED>
__device__ __forceinline__ void found_moments(const groups_args &args, const strip_place &p,
                                              int group, double pivot, double a, double b) {
    float *found = found_of(group);
    const moments f = moments_of(pivot, a, b, SCALED ? 1 / (double)found[3] : 1, args.eps);
    found[0] = f.mean;
    found[1] = f.rest;
    found[2] = f.rstd;
    if (!SCALED) /* what the elements are to be scaled by */
        found[3] = !leaves_range(args, b) ? 1 : b < 1 ? BACK : 1 / BACK;
    if (p.rank == 0)
        save_moments(args, p.image * GROUPS + p.group + group, f);
}

/* SEND lanes add up a group of the block's and send that; where nobody else has a part of the strip, they
 * are done. */
template <bool SCALED>
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
            move_pivot((double)from[0] - (double)pivot, (double)count, a, b);
        v[0] += a;
        v[1] += b;
    }
    if (LAYER)
        v[0] = sum_over_lanes<SEND>(v[0], p.lane);
    v[1] = sum_over_lanes<SEND>(v[1], p.lane);
    if constexpr (BLOCKS > 1) {
        if (there)
            send_mail(args, m, p, group, round, rank, pivot, v[0], v[1]);
    } else if (there && rank == 0) {
        found_moments<SCALED>(args, p, group, pivot, (message)v[0], (message)v[1]);
    }
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
            move_pivot(t.v[e][0] - pivot, (double)(pixels_of_block(block) * (i64)DEPTH), a, b);
        v[1] += a;
        v[2] += b;
    }
    if (LAYER)
        v[1] = sum_over_lanes<MERGE>(v[1], p.lane);
    v[2] = sum_over_lanes<MERGE>(v[2], p.lane);
    if (lane != 0 || group >= p.groups)
        return;
    found_moments<SCALED>(args, p, group, pivot, v[1], v[2]);
}

/* The strip's moments; weights are asked for while the sums are on their way. */
template <bool SCALED>
__device__ __forceinline__ void find_moments(const groups_args &args, const strip_place &p,
                                             const begun_squares &begun, mailbox &m, u32 round, affine &w) {
    column own[COLUMNS];
    float scale[COLUMNS];
#pragma unroll
    for (int j = 0; SCALED && j < COLUMNS; j++)
        scale[j] = p.steps ? found_of((p.chunk * WIDTH + j * EACH) / DEPTH)[3] : 1;
    expect_mail(m, p, round);
    sum_thread<SCALED>(args, p, scale, own, begun);
    sum_warp(p, own);
    if (CLUSTER > 1)
        cluster_wait();
    __syncthreads();
    for (int g = p.warp * (WARP / SEND); g < p.groups; g += WARPS * (WARP / SEND))
        send_group<SCALED>(args, m, p, g + p.lane / SEND, round);
    if constexpr (BLOCKS > 1) {
        if (!STAGED && !SCALED)
            w = affine_of(args, p);
        wait_for_mail(m, round);
        for (int g = p.warp * (WARP / MERGE); g < p.groups; g += WARPS * (WARP / MERGE))
            merge_group<SCALED>(args, p, g + p.lane / MERGE, round);
    }
    __syncthreads();
}

/* ---- Output --------------------------------------------------------------------------------------- */

template <typename part_taker>
__device__ __forceinline__ void write_forward(const groups_args &args, const strip_place &p,
                                              const affine &w, const filling &next, const part_taker &take) {
    const u32 tile = shared_address(dynamic_shared);
    char *out = (char *)args.out + p.image * args.out_image + first_byte<OUT_TYPE>(p);
    float mean[COLUMNS], scale[WIDTH], bias[WIDTH];
    if (!COOPERATIVE && !p.steps)
        return;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float *found = found_of((p.chunk * WIDTH + i) / DEPTH);
        mean[i / EACH] = found[0];
        scale[i] = WEIGHTED ? found[2] * w.weight[i] : found[2];
        /* The rest of the mean comes in with the bias. */
        bias[i] = LAYER ? multiply_add(-found[1], scale[i], w.bias[i]) : w.bias[i];
    }
    const auto write = [&](int k, const chunk<X_BYTES> &c) {
        float v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float x = element<X_TYPE>(c.word, i);
            if (LAYER)
                x -= mean[i / EACH];
            v[i] = epilogue<true, LAYER || BIASED>(x, scale[i], bias[i]);
        }
        store_chunk<OUT_BYTES, OUT_ACCESS>(out + (i64)k * STEP * COLS * bytes_of(OUT_TYPE),
                                           pack<OUT_TYPE, WIDTH>(v));
    };
    read_loose<true>(args, p, [&](int k, const chunk<X_BYTES> &x, const chunk<DY_BYTES> &) { write(k, x); });
    write_steps(p, next, [&](int k) { write(k, load_from_shared<X_BYTES>(chunk_at<X_BYTES>(tile, p, k))); }, take);
}

/* Begins with the first strip of a block. */
__device__ __forceinline__ void begin_forward(const strip_place &p, begun_squares &begun) {
    column own[COLUMNS] = {};
    thread_sums<false> s = {p, nullptr, own, {}, {}};
    s.add_parts<0, PARTS_AHEAD>(held_of(p));
    s.leave(begun);
}

/* Returns the place in the strip `after` this, of which a block that lives on has asked for its
 * chunks, and what was `begun` of it. */
__device__ __forceinline__ strip_place forward_strip(const groups_args &args, const strip_place &p,
                                                     begun_squares &begun, i64 after, mailbox &m, u32 &round) {
    affine w;
    find_moments<false>(args, p, begun, m, round++, w);
    if constexpr (WIDE_RANGE) {
        bool again = false;
        for (int g = 0; g < p.groups; g++)
            again |= found_of(g)[3] != 1;
        if (again) {
            if (CLUSTER > 1) /* all have taken what came, before anybody sends again */
                cluster_arrive();
            find_moments<true>(args, p, begun, m, round++, w);
        }
    }
    if (STAGED)
        w = affine_of(args, p);
    const strip_place then = place_of(after);
    if constexpr (AHEAD) {
        column own[COLUMNS] = {};
        thread_sums<false> next = {then, nullptr, own, {}, {}};
        write_forward(args, p, w, filling(args, then), [&](int part) { next.add_part(part, held_of(then)); });
        next.leave(begun);
    } else {
        write_forward(args, p, w, filling(args, then), [](int) {});
    }
    return then;
}
