/* A part of batch.cu: the sums of a unit's steps, by thread and by block. */

/* The middle of three numbers. */
__device__ __forceinline__ float middle_of_three(float a, float b, float c) { return middle_of(a, b, c); }
__device__ __forceinline__ double middle_of_three(double a, double b, double c) {
    return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}

/* The pivot by three means: the middle one, for any one may be far off. EXACT_SUMS: and a little of its way to the nearer
 * of the others. A mean of few digits leaves differences of few digits; the squares of these are odd multiples of a power
 * of two, 1 modulo 8, and all of a long sum's roundings would go one way. */
__device__ __forceinline__ real pivot_by(const real *mean) {
    const real middle = middle_of_three(mean[0], mean[1], mean[2]);
    if (!EXACT_SUMS)
        return middle;
    const real way = middle_of_three(fabs(mean[0] - middle), fabs(mean[1] - middle), fabs(mean[2] - middle));
    return multiply_add(way, (real)0.0123, middle);
}

/* The pivots of a thread's rows by steps [begin, end): by three means of four elements or more, far from each other.
 * All threads of a row have the same. They are asked for first, and found
 * when other loads are on their way. */
struct pivots_of_steps {
    enum { EACH = LAST ? 4 : ceil_div(4, WIDTH), SPAN = LAST ? 1 : WIDTH };
    chunk<X_BYTES> c[3][EACH];

    __device__ __forceinline__ pivots_of_steps(const batch_args &args, const char *x, u32 begin, u32 end) {
        if (FORWARD && LAYER)
#pragma unroll
            for (int k = 0; k < 3 * EACH; k++) {
                const u32 at = begin + (u32)((u64)(2 * k + 1) * (end - begin) / (6 * EACH));
                c[k / EACH][k % EACH] = load_chunk<X_BYTES, X_ACCESS>(x + step_at<X_TYPE>(args, args.x, at));
            }
    }
    __device__ __forceinline__ void find(real *pivot) const {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            pivot[i] = 0;
            if (!FORWARD || !LAYER)
                continue;
            real mean[3];
#pragma unroll
            for (int k = 0; k < 3; k++) {
                real v[EACH * SPAN];
#pragma unroll
                for (int j = 0; j < EACH * SPAN; j++)
                    v[j] = element<X_TYPE>(c[k][j / SPAN].word, LAST ? i : j % SPAN) * ((real)1 / (EACH * SPAN));
                mean[k] = tree_sum<EACH * SPAN>(v);
            }
            pivot[i] = pivot_by(mean);
        }
    }
};

/* What is read of a step. */
struct step_chunks {
    chunk<X_BYTES> x;
    chunk<DY_BYTES> dy;
    chunk<BESIDE_BYTES> beside;
};

/* An element of what is beside. */
__device__ __forceinline__ real beside_of(const step_chunks &s, int i) {
    if constexpr (HAS_BESIDE)
        return element<BESIDE_TYPE>(s.beside.word, i);
    else
        return 0;
}

/* A thread's sums so far; elements of a step have sums of their own, as have rows. */
struct thread_sums {
    real v[SUMS][WIDTH];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < SUMS; j++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[j][i] = 0;
    }
    /* A step, or 0 in its place where it is not `there`; what is left of its dy takes dy's place. */
    __device__ __forceinline__ void add(step_chunks &s, const row_constants *c, bool there) {
        real left[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const row_constants &of = c[BY_PLACE ? i : 0];
            const real x = element<X_TYPE>(s.x.word, i);
            real d = LAYER ? x - of.mean : x;
            if constexpr (FORWARD) {
                d = there ? d : 0;
                if (LAYER)
                    v[0][i] += !EXACT_SUMS ? d : there ? x : 0;
                v[1][i] = multiply_add(d, d, v[1][i]);
            } else {
                real g = gradient_of(element<DY_TYPE>(s.dy.word, i), d, beside_of(s, i), of);
                left[i] = g;
                g = there ? g : 0;
                v[0][i] += g;
                v[1][i] = multiply_add(g, d, v[1][i]);
                if constexpr (FIND_REST)
                    v[2][i] += there ? d : 0;
            }
        }
        if constexpr (LEAVES_GRADIENT)
            s.dy = pack<DY_TYPE, WIDTH>(left);
    }
    /* The sums of `count` steps, all that there are, about the pivots. */
    __device__ __forceinline__ void end(const row_constants *c, u32 count) {
        if constexpr (EXACT_SUMS)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[0][i] = multiply_add(-(real)count, c[BY_PLACE ? i : 0].mean, v[0][i]);
    }
};

/* The steps that a thread has of [begin, end). */
__device__ __forceinline__ u32 steps_of(u32 begin, u32 end, int plane) {
    return begin + plane < end ? (end - begin - plane + PLANES - 1) / PLANES : 0;
}

/* Loads AT_ONCE steps of a thread from its `first`th on; of those past its last the last. What is added behind the
 * norm the sums of a forward do not ask for, and nothing but what they left in daddend the output behind them. */
template <bool ALL, bool SUMMED>
__device__ __forceinline__ void load_steps(const batch_args &args, const row_bases &b, u32 begin, u32 first, u32 count,
                                           step_chunks *s) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        const u32 step = begin + (ALL ? first + j : least_of(first + j, count - 1)) * PLANES;
        s[j].x = load_chunk<X_BYTES, X_ACCESS>(b.x + step_at<X_TYPE>(args, args.x, step));
        if constexpr (LEAVES_GRADIENT && !SUMMED)
            s[j].dy = load_chunk<DY_BYTES, DADDEND_ACCESS>(b.daddend + step_at<DY_TYPE>(args, args.daddend, step));
        else if constexpr (BACKWARD)
            s[j].dy = load_chunk<DY_BYTES, DY_ACCESS>(b.dy + step_at<DY_TYPE>(args, args.dy, step));
        if constexpr (HAS_BESIDE && (BACKWARD ? SUMMED || !LEAVES_GRADIENT : !SUMMED))
            s[j].beside =
                load_chunk<BESIDE_BYTES, BESIDE_ACCESS>(b.beside + step_at<BESIDE_TYPE>(args, args.beside, step));
    }
}

/* ASK_AHEAD: the L2 is asked for what load_steps will load of AT_ONCE steps from the `first`th on, those before `end`. */
template <bool SUMMED>
__device__ __forceinline__ void ask_for_steps(const batch_args &args, const row_bases &b, u32 begin, u32 first,
                                              u32 end) {
    if constexpr (ASK_AHEAD)
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const u32 step = begin + (first + j) * PLANES;
            if (first + j >= end)
                continue;
            prefetch_line(b.x + step_at<X_TYPE>(args, args.x, step));
            if constexpr (LEAVES_GRADIENT && !SUMMED)
                prefetch_line(b.daddend + step_at<DY_TYPE>(args, args.daddend, step));
            else if constexpr (BACKWARD)
                prefetch_line(b.dy + step_at<DY_TYPE>(args, args.dy, step));
            if constexpr (HAS_BESIDE && (BACKWARD ? SUMMED || !LEAVES_GRADIENT : !SUMMED))
                prefetch_line(b.beside + step_at<BESIDE_TYPE>(args, args.beside, step));
        }
}

/* Adds step `k` of a thread, where it has so many, and leaves its gradient. */
template <bool ALL>
__device__ __forceinline__ void add_step(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 k, u32 count, step_chunks &s, thread_sums &sums) {
    sums.add(s, c, ALL || k < count);
    if constexpr (LEAVES_GRADIENT)
        if (ALL || k < count)
            store_chunk<DY_BYTES, DADDEND_ACCESS>(
                b.daddend + step_at<DY_TYPE>(args, args.daddend, begin + k * PLANES), s.dy);
}

/* Asks for x of a thread's steps [first, end). */
__device__ __forceinline__ void prefetch_steps(const batch_args &args, const row_bases &b, u32 begin, u32 first,
                                               u32 end) {
#pragma unroll 1
    for (u32 k = first; k < end; k++)
        prefetch_line(b.x + step_at<X_TYPE>(args, args.x, begin + k * PLANES));
}

template <bool ALL>
__device__ __forceinline__ void add_steps(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                          u32 first, u32 count, thread_sums &sums) {
    step_chunks s[AT_ONCE];
    load_steps<ALL, true>(args, b, begin, first, count, s);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        add_step<ALL>(args, b, c, begin, first + j, count, s[j], sums);
}

/* Sums of a block's rows over it; the first threads of `room` have them. */
constexpr int ROOM = SLAB ? LANES * WIDTH / most(PIXELS, 1) : LANES * COLUMNS;
typedef real block_room[WARPS][SUMS][ROOM];

__device__ __forceinline__ void add_up_block(thread_sums &s, block_room &room) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        if (!LAST)
            s.v[j][0] = tree_sum<WIDTH>(s.v[j]);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const real v = sum_over_planes<LANES, WARP / LANES>(s.v[j][i], lane);
            if (lane < LANES)
                room[warp][j][lane * COLUMNS + i] = v;
        }
    }
    __syncthreads();
}

/* What the constants of a thread's rows are while they are summed: the pivots, or what is given. */
__device__ __forceinline__ void sum_constants(const batch_args &args, i64 row, const real *pivot, row_constants *c) {
    if constexpr (BACKWARD && NEEDS_Z) {
        given_columns(args, row, c);
    } else {
        stored_mean mean[COLUMNS];
        if constexpr (BACKWARD)
            load_numbers<LAYER ? MEAN_TYPE : NONE, ACCESSES[ROLE_MEAN]>(args, args.mean, row, mean);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            c[i] = {BACKWARD ? (real)mean[i] : pivot[i], 1, 0, 0, 0, 1, 1};
    }
}

/* A unit's sums, to memory. `c` has the pivots of the thread's rows. */
__device__ __forceinline__ void leave_sums(const batch_args &args, const unit_place &p, const row_constants *c,
                                           thread_sums &s) {
    __shared__ block_room room;
    __shared__ real pivots[ROOM];
    if (FORWARD && p.plane == 0 && p.active)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            pivots[p.lane * COLUMNS + i] = c[i].mean;
    add_up_block(s, room);
    real *const to = (real *)args.sums + (i64)p.piece * 3 * args.rows;
    const i64 first = p.row - p.lane * COLUMNS;
    for (int e = threadIdx.x; e < ROOM && first + e < args.rows; e += THREADS) {
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            real v = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                v += room[w][j][e];
            to[j * args.rows + first + e] = v;
        }
        if (FORWARD)
            to[2 * args.rows + first + e] = pivots[e];
    }
    __syncthreads();
}

__device__ __forceinline__ void sum_unit(const batch_args &args, const unit_place &p) {
    thread_sums s;
    row_constants c[COLUMNS];
    s.clear();
    if (p.active) {
        const row_bases b = bases_of(args, p.row);
        real pivot[COLUMNS];
        pivots_of_steps(args, b.x, p.begin, p.end).find(pivot);
        sum_constants(args, p.row, pivot, c);
        const u32 count = steps_of(p.begin, p.end, p.plane);
        u32 k = 0;
#pragma unroll 1
        for (; k + AT_ONCE <= count; k += AT_ONCE)
            add_steps<true>(args, b, c, p.begin + p.plane, k, count, s);
        if (k < count)
            add_steps<false>(args, b, c, p.begin + p.plane, k, count, s);
        s.end(c, count);
    }
    leave_sums(args, p, c, s);
}
