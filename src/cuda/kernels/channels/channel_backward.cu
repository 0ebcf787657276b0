/* A part of channels.cu: the backward, dx of the tiles of a block and its sums for dweight and dbias. */

/* What a thread's lines add to dweight and dbias. */
struct gradients {
    float weight[FORWARD ? 1 : EACH], bias[FORWARD ? 1 : EACH];
};

/* Copies a float to shared memory, asynchronously where it is one. */
template <int TYPE>
__device__ __forceinline__ void copy_float(float *to, const void *from, i64 at) {
    if constexpr (TYPE == F32)
        copy_async<4, 4>(shared_address(to), (const float *)from + at, true);
    else
        *to = load_element<TYPE>(from, at);
}

/* Starts to bring a phase of a unit's tiles, with the first its pixels' saved moments. */
__device__ __forceinline__ void fill_phase(const channels_args &args, const place &p, u32 room,
                                           float *saved, int phase) {
    const i64 at = element_of_tile(p);
    fill<X_TYPE, X_ACCESS>(p, room + X_AT,
                           (const char *)args.x + p.image * args.x_image + at * bytes_of(X_TYPE),
                           args.x_image, phase_begin(p, phase), phase_begin(p, phase + 1));
    fill<DY_TYPE, DY_ACCESS>(p, room + DY_AT,
                           (const char *)args.dy + p.image * args.dy_image + at * bytes_of(DY_TYPE),
                           args.dy_image, phase_begin(p, phase), phase_begin(p, phase + 1));
    if (phase == 0)
#pragma unroll(CROWDED || SPANS ? 1 : 4)
        for (int pixel = threadIdx.x; pixel < p.pixels; pixel += THREADS) {
            const char *mean = (const char *)args.mean + p.image * args.mean_image;
            const char *rstd = (const char *)args.rstd + p.image * args.rstd_image;
            mean += in_next_image(p, pixel, args.mean_image, PIXELS * bytes_of(MEAN_TYPE));
            rstd += in_next_image(p, pixel, args.rstd_image, PIXELS * bytes_of(RSTD_TYPE));
            if constexpr (LAYER && MEAN_TYPE != NONE)
                copy_float<MEAN_TYPE>(saved + pixel, mean, p.first_pixel + pixel);
            copy_float<RSTD_TYPE>(saved + TILE_PIXELS + pixel, rstd, p.first_pixel + pixel);
        }
}

/* Starts to bring a unit to a slot of the ring. */
__device__ __forceinline__ void fill_slot(const channels_args &args, place p, i64 unit, int ring_slot) {
    const bool there = unit < args.units;
    if (there)
        set_unit(args, p, unit);
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        if (there)
            fill_phase(args, p, p.room + ring_slot * SLOT_BYTES, p.saved + ring_slot * (2 * TILE_PIXELS), phase);
        copy_async_commit();
    }
}

/* A thread's pixels in the backward. */
struct pixel_gradients {
    float mean[WIDTH], rstd[WIDTH];
    float sums[3][WIDTH]; /* of g, g * xhat and xhat over its lines */
    float rest[EXACT_MEAN ? WIDTH : 1]; /* what a float leaves of the mean */
};

/* Where the saved mean of a pixel of the tile is. */
__device__ __forceinline__ const char *saved_mean_at(const channels_args &args, const place &p, int pixel) {
    const i64 at = (p.first_pixel + pixel) * (i64)bytes_of(MEAN_TYPE);
    return (const char *)args.mean + p.image * args.mean_image +
           in_next_image(p, pixel, args.mean_image, PIXELS * bytes_of(MEAN_TYPE)) + at;
}

__device__ __forceinline__ void begin_gradients(const channels_args &args, const place &p,
                                                pixel_gradients &t) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        t.sums[0][i] = t.sums[1][i] = t.sums[2][i] = 0;
        t.mean[i] = LAYER ? p.saved[pixel_of(p, i)] : 0;
        t.rstd[i] = p.saved[TILE_PIXELS + pixel_of(p, i)];
        if constexpr (EXACT_MEAN)
            t.rest[i] = rest_of(
                load_chunk<8, 8>(saved_mean_at(args, p, least(pixel_of(p, i), p.pixels - 1))));
    }
}

/* With f16 x no product leaves float's range whichever comes first: rstd is multiplied in once for a
 * sum, and with dy, in place of each element of x. Tiles that a cluster shares would spill. */
constexpr bool SHORT_RANGE = X_TYPE == F16 && (FLAT || CLUSTER == 1);

/* x - mean, and times rstd but for SHORT_RANGE. */
__device__ __forceinline__ float centred(const pixel_gradients &t, int i, float x) {
    if (LAYER)
        x -= t.mean[i];
    if (EXACT_MEAN)
        x -= t.rest[EXACT_MEAN ? i : 0];
    return SHORT_RANGE ? x : x * t.rstd[i];
}

/* An element of dy as it comes to the norm, through the activation behind it; `x` is centred. */
__device__ __forceinline__ float gradient_behind(const place &p, const pixel_gradients &t, int i, float dy,
                                                 float x, const of_channels<WEIGHTED> &w,
                                                 const of_channels<BIASED> &b) {
    if constexpr (!ACTIVE)
        return dy;
    return through_activation(dy, affine_of_xhat(SHORT_RANGE ? x * t.rstd[i] : x, w.at(p, i), b.at(p, i)));
}

/* Adds lines [begin, end) of a thread's. */
__device__ __forceinline__ void add_gradients(const place &p, pixel_gradients &t, int begin, int end) {
#pragma unroll(ACTIVE ? 2 : 4)
    for (int e = begin; e < end; e++) {
        int line;
        if (!line_of(p, e, line))
            continue;
        const auto c = elements_of<X_TYPE>(p, X_AT, line);
        const auto d = elements_of<DY_TYPE>(p, DY_AT, line);
        const of_channels<WEIGHTED> w(p, p.weight, line);
        const of_channels<BIASED> b(p, p.bias, line);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float x = centred(t, i, element<X_TYPE>(c.word, i));
            float g = gradient_behind(p, t, i, element<DY_TYPE>(d.word, i), x, w, b);
            if (WEIGHTED)
                g *= w.at(p, i);
            t.sums[1][i] = multiply_add(g, x, t.sums[1][i]);
            if (LAYER)
                t.sums[0][i] += g;
            if (CORRECT)
                t.sums[2][i] += x;
        }
    }
}

/* The sums of the unit that is in the ring's present slot, phase after phase as they come. */
template <int PHASE>
__device__ __forceinline__ void sum_gradients(const channels_args &args, const place &p, pixel_gradients &t) {
    copy_async_wait<(PHASES > 1 ? PHASES - 1 - PHASE : RING_SLOTS - 1)>();
    __syncthreads();
    if (p.has) {
        if constexpr (PHASE == 0)
            begin_gradients(args, p, t);
        add_gradients(p, t, PHASE * PHASE_EACH, least(EACH, (PHASE + 1) * PHASE_EACH));
    }
    if constexpr (PHASE + 1 < PHASES)
        sum_gradients<PHASE + 1>(args, p, t);
}

/* c1, c2 and what the saved mean of a pixel leaves of xhat (saved_mean.cu), from its sums. */
__device__ __forceinline__ void set_common(const channels_args &args, const place &p, int pixel, const total *v) {
    total delta = CORRECT ? v[2] * (total)(1.0 / count_of(COLS)) : 0;
    if constexpr (CORRECT && MEAN_IS_EXACT)
        delta = pixel < p.pixels
                    ? rest_of(load_chunk<8, 8>(saved_mean_at(args, p, pixel))) * p.saved[TILE_PIXELS + pixel]
                    : 0;
    else if (CORRECT && !is_rounding<float>((float)delta, p.saved[pixel], p.saved[TILE_PIXELS + pixel]))
        delta = 0;
    const total both = multiply_add(-delta, v[0], v[1]) * (total)(1.0 / count_of(COLS));
    const total c2 = c2_of(both, L2 ? p.saved[TILE_PIXELS + pixel] : 0, args.clamped);
    const total c1 = v[0] * (total)(1.0 / count_of(COLS));
    p.moments[pixel] = {(float)c1, (float)c2, (float)delta, 0};
}

__device__ __forceinline__ void merge_gradients(const channels_args &args, place &p) {
    __syncthreads();
    if (CLUSTER > 1 && threadIdx.x == 0)
        expect_blocks(p);
    for (int i = threadIdx.x; is_in_line(i); i += THREADS) {
        const merged_place at(i);
        total v[4] = {0, 0, 0, 0};
#pragma unroll(CROWDED ? 4 : 8)
        for (int r = 0; r < PLANES; r++)
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                v[j] += (total)p.parts[(j * PLANES + r) * LINE + at.element];
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            v[j] = sum_over_rows(v[j]);
        if (at.is_idle)
            continue;
        if (CLUSTER > 1)
            send_to_blocks(p, at.pixel, v);
        else
            set_common(args, p, at.pixel, v);
    }
    if (CLUSTER > 1) {
        wait_for_blocks(p);
        for (int pixel = threadIdx.x; pixel < TILE_PIXELS; pixel += THREADS) {
            total v[3] = {0, 0, 0};
#pragma unroll(CLUSTER > 8 ? 8 : CLUSTER) /* more at a time spill on sm_90 */
            for (int b = 0; b < CLUSTER; b++)
#pragma unroll
                for (int j = 0; j < PARTS; j++)
                    v[j] += (total)entries_of(p, b, pixel)->value[j];
            set_common(args, p, pixel, v);
        }
    }
    p.round++;
    __syncthreads();
}

/* What lane's `row` + 1 adds to dweight and dbias where a lane's elements begin in `row`. */
__device__ __forceinline__ float *cut_of(int row, int line) {
    return (float *)(dynamic_shared + CUT_AT) + (row * LINES + line) * 2;
}

/* dx = dy * weight * rstd + what is centred * slope + constant */
struct pixel_factors {
    float slope[WIDTH], constant[WIDTH], delta[WIDTH];
};

__device__ __forceinline__ void set_factors(const place &p, const pixel_gradients &t,
                                            pixel_factors &f) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const four_floats common = p.moments[pixel_of(p, i)];
        f.slope[i] = -common.y * t.rstd[i];
        if (SHORT_RANGE)
            f.slope[i] *= t.rstd[i];
        f.constant[i] = LAYER ? -common.x * t.rstd[i] : 0;
        f.delta[i] = SHORT_RANGE && CORRECT ? common.z / t.rstd[i] : common.z;
    }
}

/* dx of lines [begin, end) of a thread's, and what they add to dweight and dbias; `out`: of the
 * thread's first line. */
__device__ __forceinline__ void write_gradients(const place &p, const pixel_gradients &t,
                                                const pixel_factors &f, char *out, dsum_lines &dsum,
                                                gradients &sums, int begin, int end) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line;
        if constexpr (HAS_DSUM)
            if (e >= begin && e < end && (e - begin) % DSUM_LINES == 0)
                dsum.ask(p, e, end);
        if (e < begin || e >= end || !line_of(p, e, line))
            continue;
        const auto x = elements_of<X_TYPE>(p, X_AT, line);
        const auto d = elements_of<DY_TYPE>(p, DY_AT, line);
        const of_channels<WEIGHTED> w_of(p, p.weight, line);
        const of_channels<BIASED> b_of(p, p.bias, line);
        float v[WIDTH], cut_weight = 0, cut_bias = 0;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float xhat = centred(t, i, element<X_TYPE>(x.word, i)); /* SHORT_RANGE: over rstd */
            const float dy = gradient_behind(p, t, i, element<DY_TYPE>(d.word, i), xhat, w_of, b_of);
            if (CORRECT)
                xhat -= f.delta[i];
            const float both = SHORT_RANGE ? dy * t.rstd[i] : dy;
            if (!is_first(p, i)) {
                cut_weight = multiply_add(both, xhat, cut_weight);
                cut_bias += dy;
            } else if (is_there(p, i)) {
                if (WANT_DWEIGHT)
                    sums.weight[e] = multiply_add(both, xhat, sums.weight[e]);
                if (WANT_DBIAS)
                    sums.bias[e] += dy;
            }
            const float rest = multiply_add(xhat, f.slope[i], f.constant[i]);
            const float w = WEIGHTED ? w_of.at(p, i) : 1;
            v[i] = SHORT_RANGE ? multiply_add(both, w, rest) : multiply_add(dy * w, t.rstd[i], rest);
            if constexpr (HAS_DSUM)
                v[i] += element<DSUM_TYPE>(dsum.held[(e - begin) % DSUM_LINES].word, i);
        }
        if (LINE_CHANNELS > 1 && (WANT_DWEIGHT || WANT_DBIAS) && is_cut(p)) {
            float *cut = cut_of(p.row, line);
            cut[0] += cut_weight;
            cut[1] += cut_bias;
        }
        if constexpr (DX_TYPE != NONE) {
            const auto packed = pack<WRITTEN_TYPE, WIDTH>(v);
            if constexpr (OUT_THROUGH_SHARED)
                hold_output<WRITTEN_TYPE>(p, line, packed);
            else
                write_output<WRITTEN_TYPE, WRITTEN_ACCESS>(p, out + next_lines<WRITTEN_TYPE>(e), packed);
        }
    }
}

/* Whether each phase of a unit makes room for the next unit's. */
constexpr bool ROLLING = PHASES > 1 && !OUT_THROUGH_SHARED;

/* Works on the unit that is in the ring's present slot, where p.room is. */
__device__ __forceinline__ void backward_unit(const channels_args &args, place &p, gradients &sums,
                                              i64 next) {
    pixel_gradients t;
    pixel_factors f;
    if constexpr (HAS_DSUM)
        prefetch_dsum(args, p);
    sum_gradients<0>(args, p, t);
    if (p.has) {
        if (SHORT_RANGE)
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                t.sums[1][i] *= t.rstd[i];
                t.sums[2][i] *= t.rstd[i];
            }
        put_parts(p, t.sums);
    }
    merge_gradients(args, p);
    if (p.has)
        set_factors(p, t, f);
    char *out = (char *)args.out + p.image * args.out_image + element_of_tile(p) * bytes_of(WRITTEN_TYPE) +
                in_next_image(p, p.lane * WIDTH, args.out_image, PIXELS * bytes_of(WRITTEN_TYPE));
    dsum_lines dsum(args, p);
    const bool more = ROLLING && next < args.units;
    if (more)
        set_unit(args, p, next);
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
        if (p.has)
            write_gradients(p, t, f, out + first_line<WRITTEN_TYPE>(p), dsum, sums, phase * PHASE_EACH,
                            (phase + 1) * PHASE_EACH);
        if (more) {
            __syncthreads();
            fill_phase(args, p, p.room, p.saved, phase);
            copy_async_commit();
        }
    }
    if constexpr (!ROLLING)
        __syncthreads();
    if constexpr (OUT_THROUGH_SHARED && DX_TYPE != NONE) {
        write_held<WRITTEN_TYPE, WRITTEN_ACCESS>(p, out);
        __syncthreads();
    }
}

/* The tiles of a block, each brought while the one before it is worked on. */
__device__ __forceinline__ void backward_units(const channels_args &args, place &p, gradients &sums) {
    constexpr bool AHEAD = RING_SLOTS > 1 || ROLLING;
    const i64 step = gridDim.x / CLUSTER;
    const place first = p;
    int ring_slot = 0;
    i64 unit = blockIdx.x / CLUSTER;
    affine a;
    load_affine(args, p, a);
    fill_slot(args, first, unit, 0);
    store_affine(args, p, a);
    if (CLUSTER > 1)
        cluster_wait();
    for (; unit < args.units; unit += step) {
        const int next = RING_SLOTS > 1 ? ring_slot ^ 1 : 0;
        if (RING_SLOTS > 1)
            fill_slot(args, first, unit + step, next);
        set_unit(args, p, unit);
        set_shifts(args, p);
        p.room = first.room + ring_slot * SLOT_BYTES;
        p.saved = first.saved + ring_slot * (2 * TILE_PIXELS);
        backward_unit(args, p, sums, unit + step);
        if (!AHEAD)
            fill_slot(args, first, unit + step, 0);
        ring_slot = next;
    }
    copy_async_wait<0>();
}

/* A block's sums over its pixels' lanes, in their order, to its row of partial sums; `cut`: which of
 * a pair of cut_of(). */
__device__ __forceinline__ void write_partials(const place &p, const float *sums, int cut, float *to) {
    constexpr int STEP = LINES | 1;          /* odd, so that a warp's lanes meet other banks */
    float *room = (float *)dynamic_shared; /* [LANES][STEP] in the place of the tiles and parts */
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line;
        if (p.active && line_of(p, e, line))
            room[p.lane * STEP + line] = sums[e];
    }
    __syncthreads();
    for (int channel = threadIdx.x; channel < p.channels; channel += THREADS) {
        const int line = channel / LINE_CHANNELS, row = channel % LINE_CHANNELS;
        const int begin = LINE_CHANNELS > 1 ? ceil_div(row * TILE_PIXELS, WIDTH) : 0;
        const int end = LINE_CHANNELS > 1 ? ceil_div((row + 1) * TILE_PIXELS, WIDTH) : LANES;
        float v = LINE_CHANNELS > 1 && row > 0 ? cut_of(row - 1, line)[cut] : 0;
#pragma unroll 8
        for (int l = begin; l < end; l++)
            v += room[l * STEP + line];
        to[(i64)(blockIdx.x / CLUSTER) * COLS + p.first + channel] = v;
    }
    __syncthreads();
}
