/* A part of channels.cu: the forward, sums about pivots and moments of the tiles of a block. */

/* Moves the pivot of the sums of n elements from p + d to p. */
__device__ __forceinline__ void move_pivot(total d, total n, total &a, total &b) {
    total moved = multiply_add(n, d, a);
    b = multiply_add(d, a + moved, b);
    a = moved;
}

/* Sums are made by eights, so that errors do not add up along a long chain. */
constexpr int CHAIN = 8;

/* Lines the pivot is the mean of: a power of two, so that equal values give it exactly. */
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
        const auto c = elements_of<X_TYPE>(p, X_AT, p.plane + e * PLANES);
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

/* Adds lines [begin, end) of a thread's. */
template <bool SCALED>
__device__ __forceinline__ void add_lines(const place &p, const float *scale, pixel_sums &s,
                                          int begin, int end) {
#pragma unroll 1
    for (int first = begin; first < end; first += CHAIN) {
        float part[2][WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            part[0][i] = part[1][i] = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            int line;
            if (first + j >= end || !line_of(p, first + j, line))
                continue;
            const auto c = elements_of<X_TYPE>(p, X_AT, line);
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
        add_lines<false>(p, nullptr, s, PHASE * PHASE_EACH, least(EACH, (PHASE + 1) * PHASE_EACH));
    }
    if constexpr (PHASE + 1 < PHASES)
        sum_phases<PHASE + 1>(p, s);
}

/* One pixel's moments: what the parts of all planes and blocks make, about the mean of their pivots:
 * any one of these may be far off. */
struct pixel_moments {
    total pivot, sum, squares;
};

/* What a block's sums are about is told to the others as a float. */
__device__ __forceinline__ total told(total pivot) { return CLUSTER > 1 ? (float)pivot : pivot; }

/* `from`: an element of a line. */
__device__ __forceinline__ pixel_moments merge_planes(const place &p, const float *from) {
    total away = 0;
    if (LAYER)
#pragma unroll 8
        for (int r = 1; r < PLANES; r++)
            away += (total)from[r * LINE] - (total)from[0];
    pixel_moments m = {told((total)from[0] + away * (total)(1.0 / PLANES)), 0, 0};
#pragma unroll 1
    for (int first = 0; first < PLANES; first += CHAIN) {
        total sum = 0, squares = 0;
#pragma unroll
        for (int j = 0; j < CHAIN; j++) {
            const int r = first + j;
            if (r >= PLANES)
                continue;
            total a = (total)from[(PLANES + r) * LINE], b = (total)from[(2 * PLANES + r) * LINE];
            if (LAYER) {
                const int lines = (CLUSTER > 1 ? p.channels : DEPTH) / LINE_CHANNELS;
                move_pivot((total)from[r * LINE] - m.pivot, (total)((lines - 1 - r) / PLANES + 1), a, b);
            }
            sum += a;
            squares += b;
        }
        m.sum += sum;
        m.squares += squares;
    }
    return m;
}

/* What a pixel's rows have, about the mean of their pivots; whole warps call. */
__device__ __forceinline__ pixel_moments merge_rows(const place &p, pixel_moments m) {
    if (LINE_CHANNELS == 1)
        return m;
    if (LAYER) {
        const total pivot = told(sum_over_rows(m.pivot) * (total)(1.0 / LINE_CHANNELS));
        move_pivot(m.pivot - pivot, (total)((CLUSTER > 1 ? p.channels : DEPTH) / LINE_CHANNELS), m.sum, m.squares);
        m.pivot = pivot;
    }
    m.sum = sum_over_rows(m.sum);
    m.squares = sum_over_rows(m.squares);
    return m;
}

__device__ __forceinline__ pixel_moments merge_blocks(const place &p, int pixel) {
    const total first = entries_of(p, 0, pixel)->value[0];
    total away = 0;
    if (LAYER)
#pragma unroll
        for (int b = 1; b < CLUSTER; b++)
            away += (total)entries_of(p, b, pixel)->value[0] - first;
    pixel_moments m = {first + away * (total)(1.0 / CLUSTER), 0, 0};
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) {
        const entry e = *entries_of(p, b, pixel);
        total sum = e.value[1], squares = e.value[2];
        if (LAYER)
            move_pivot((total)e.value[0] - m.pivot, (total)(b < CLUSTER - 1 ? DEPTH : FEWEST), sum, squares);
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
    wide delta = LAYER ? (wide)m.sum * (wide)(1.0 / count_of(COLS)) : 0;
    wide variance = (LAYER ? multiply_add(-(wide)m.sum, delta, (wide)m.squares) : (wide)m.squares) *
                    (wide)(1.0 / count_of(COLS));
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
    const real rstd = reciprocal_root(with_eps(variance, (wide)args.eps));
    const float mean = (float)(pivot + delta);
    p.moments[pixel] = {mean, -(float)((pivot - mean) + delta) * rstd, rstd,
                        SCALED ? scale : (float)beyond};
    if (p.block == 0 && pixel < p.pixels && (SCALED || !beyond)) {
        const i64 at = p.first_pixel + pixel;
        const i64 mean_at = p.image * args.mean_image +
                            in_next_image(p, pixel, args.mean_image, PIXELS * bytes_of(MEAN_TYPE));
        const i64 rstd_at = p.image * args.rstd_image +
                            in_next_image(p, pixel, args.rstd_image, PIXELS * bytes_of(RSTD_TYPE));
        store_element<MEAN_TYPE>((char *)args.mean + mean_at, at, (real)((double)pivot + (double)delta));
        store_element<RSTD_TYPE>((char *)args.rstd + rstd_at, at, rstd);
    }
    return beyond;
}

/* Sets a pixel's moments where they are wanted; `again`, in shared memory, says that a pixel has to
 * be scaled. */
template <bool SCALED>
__device__ __forceinline__ void finish_pixel(const channels_args &args, const place &p, int pixel,
                                             const pixel_moments &m, int *again) {
    const float was = SCALED ? p.moments[pixel].w : 0;
    if (SCALED && was == 0)
        return;
    const int beyond =
        set_moments<SCALED>(args, p, pixel, m, SCALED ? (was > 0 ? 0x1p-64f : 0x1p64f) : 1);
    if (!SCALED && beyond && pixel < p.pixels)
        *again = 1;
}

/* Merges what the threads summed. */
template <bool SCALED>
__device__ __forceinline__ void merge_pixels(const channels_args &args, place &p, int *again) {
    __syncthreads();
    if (CLUSTER > 1 && threadIdx.x == 0)
        expect_blocks(p);
    for (int i = threadIdx.x; is_in_line(i); i += THREADS) {
        const merged_place at(i);
        const pixel_moments m = merge_rows(p, merge_planes(p, p.parts + at.element));
        const total v[4] = {m.pivot, m.sum, m.squares, 0};
        if (at.is_idle)
            continue;
        if (CLUSTER > 1)
            send_to_blocks(p, at.pixel, v);
        else
            finish_pixel<SCALED>(args, p, at.pixel, m, again);
    }
    if (CLUSTER > 1) {
        wait_for_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE_PIXELS; pixel += THREADS)
            finish_pixel<SCALED>(args, p, pixel, merge_blocks(p, pixel), again);
    }
    p.round++;
    __syncthreads();
}

__device__ __forceinline__ void fill_forward(const channels_args &args, const place &p) {
    const char *x = (const char *)args.x + p.image * args.x_image;
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        fill<X_TYPE, X_ACCESS>(p, p.room + X_AT, x + element_of_tile(p) * bytes_of(X_TYPE), args.x_image,
                               phase_begin(p, phase), phase_begin(p, phase + 1));
        copy_async_commit();
    }
}

__device__ __forceinline__ void forward_unit(const channels_args &args, place &p, int *again) {
    char *y = (char *)args.out + p.image * args.out_image;
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
                const float beyond = p.moments[pixel_of(p, i)].w;
                scale[i] = beyond > 0 ? 0x1p-64f : beyond < 0 ? 0x1p64f : 1;
            }
            begin_sums<true>(p, scale, sums);
            add_lines<true>(p, scale, sums, 0, EACH);
            put_parts(p, sums.v);
        }
        merge_pixels<true>(args, p, again);
    }
    if constexpr (LAST) {
        write_pixels(args, p, y + ((i64)p.first_pixel * COLS + p.first) * bytes_of(Y_TYPE));
    } else {
        char *out = y + element_of_tile(p) * bytes_of(Y_TYPE);
        if (p.has)
            write_channels(args, p,
                           out + first_line<Y_TYPE>(p) +
                               in_next_image(p, p.lane * WIDTH, args.out_image, PIXELS * bytes_of(Y_TYPE)));
        if constexpr (OUT_THROUGH_SHARED) {
            __syncthreads();
            write_held<Y_TYPE, Y_ACCESS>(p, out);
        }
    }
}

__device__ __forceinline__ void forward_units(const channels_args &args, place &p, int *again) {
    /* The compiler asks for weights between the phases: alone in its multiprocessor a block would wait
     * for them all. */
    constexpr bool WEIGHTS_FIRST = CLUSTER > 1 && PHASES > 1;
    i64 unit = blockIdx.x / CLUSTER;
    affine a;
    load_affine(args, p, a);
    if (WEIGHTS_FIRST)
        store_affine(args, p, a);
    set_unit(args, p, unit);
    set_shifts(args, p);
    fill_forward(args, p);
    if (!WEIGHTS_FIRST)
        store_affine(args, p, a); /* in the loop it would be made ready before the copies */
    if (CLUSTER > 1)
        cluster_wait();
    for (;;) {
        forward_unit(args, p, again);
        unit += gridDim.x / CLUSTER;
        if (unit >= args.units)
            break;
        __syncthreads(); /* the next tile takes this one's place */
        set_unit(args, p, unit);
        set_shifts(args, p);
        fill_forward(args, p);
    }
}
