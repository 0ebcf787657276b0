/*
 * Forward of dense rows: y = (x - mu) * rstd * (WEIGHT_OFFSET + weight) + bias, one read of x and
 * one write of y. Mapping of elements to threads depends on COLS and the dtypes alone, so a row's
 * result depends on nothing but the row. Knows nothing of strides inside a row.
 *
 * A row is cut into chunks of WIDTH elements. LANES threads share a row: up to 32, then a warp is a
 * team that takes 32 / LANES * ROWS rows at a time; or whole warps, then the block is the team and
 * takes one. CLUSTER blocks share a row where one does not hold it. Thread `rank` of the LANES *
 * CLUSTER holds chunks rank, rank + LANES * CLUSTER, ...: VECS of them.
 *
 * HOLD says where the row stays between the statistics and the output: 0 registers, 1 shared memory,
 * 2 nowhere: it is read again. With HOLD 0 and STAGES > 0 the rows to come wait in a ring of STAGES
 * slots in shared memory, filled by asynchronous copies while the present one is worked on. A thread
 * reads back from shared memory only the bytes it copied itself, so neither needs a barrier.
 *
 * Statistics, in one exchange: each thread takes sums about a pivot of its own (the mean of its
 * first chunks), shifts them to a pivot of its warp, then to that of the row's first warp, and adds
 * along a fixed tree. The mean stays a pair: pivot + delta. Totals are f32 for 16-bit x (where a
 * thread has 8 elements), else f64. Where squares leave float's range (f32 and bf16) the row is
 * done again, scaled by a power of two.
 *
 * Rows of 16 bits and up to 512 columns go another way (centred_words.cu).
 *
 * EARLY loads weight and bias before the statistics: it takes registers, and pays where the rows are
 * so few that nothing else hides their latency.
 *
 * GROUP > 1 (then HOLD 1 and EARLY 1; a cooperative launch): GROUP blocks anywhere on the device
 * share each row, more groups take further rows. Rows pass through a ring of STAGES slots; a row's
 * output comes DELAY turns after its sums, and in between an extra warp of each block sends them to
 * the others and merges what they sent, so that nobody waits for an exchange.
 *
 * GROUPS > 0: rows are groups of channels, GROUPS of them before the first comes again; weight and bias
 * have an element for each PIXELS of the row, and the row's own.
 *
 * Constants: KIND COLS X_TYPE Y_TYPE W_TYPE B_TYPE MEAN_TYPE RSTD_TYPE WEIGHT_OFFSET WIDTH LANES
 * GROUPS PIXELS
 * VECS ROWS WARPS CLUSTER GROUP HOLD STAGES DELAY EARLY MIN_BLOCKS X_ACCESS Y_ACCESS W_ACCESS
 * B_ACCESS (alignments in bytes).
 */
struct forward_args {
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    i64 rows, x_stride, y_stride, mean_stride, rstd_stride; /* bytes from row to row */
    i64 row_turn, x_turn, y_turn; /* from turn to turn of a team */
    double eps;
    float eps_rounded;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
    u32 zero;         /* 0, which the compiler cannot know */
    u64 *mail;        /* GROUP > 1: two lines for each group */
};

constexpr bool LAYER = KIND == 0;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int Y_BYTES = WIDTH * bytes_of(Y_TYPE);
constexpr int W_BYTES = WIDTH * bytes_of(W_TYPE);
constexpr int B_BYTES = WIDTH * bytes_of(B_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SPREAD = LANES * CLUSTER * GROUP;
constexpr bool WIDE = GROUP > 1;
constexpr bool GROUPED = GROUPS > 0;
constexpr bool RAGGED = VECS * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = LANES <= 32;
constexpr int WARP_LANES = least(LANES, 32);
constexpr int PER_WARP = 32 / WARP_LANES;
constexpr int THREADS = WARPS * 32; /* that hold rows */
constexpr int ALL_THREADS = THREADS + (WIDE ? 32 : 0);
constexpr int STEP = WITHIN_WARP ? PER_WARP * ROWS : ROWS; /* rows a team takes at a time */
constexpr bool COPIES = HOLD == 1 || (HOLD == 0 && STAGES > 0);
/* Chunks the pivot is the mean of: a power of two, so that equal values give it exactly. */
constexpr int PIVOT_VECS =
    power_of_two_up_to(least(HOLD == 0 ? VECS : 4, RAGGED && VECS > 1 ? VECS - 1 : VECS));
constexpr bool WIDE_RANGE = X_TYPE == F32 || X_TYPE == BF16;
constexpr int UNROLL = HOLD == 0 || WIDE ? VECS : 4;

template <bool HALF> struct total_of {
    typedef double type;
};
template <> struct total_of<true> {
    typedef float type;
};
/* A pivot of one element may lie far from the mean, and then f32 totals lose digits. */
typedef total_of<sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && VECS * WIDTH >= 8 &&
                 !(GROUPED && WIDTH == 1)>::type total;

struct __align__(16) entry {
    total value[4]; /* pivot, sum, squares; one unused */
};

constexpr bool CENTRED = WITHIN_WARP && HOLD == 0 && STAGES == 0 && !GROUPED &&
                         sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && COLS <= 512;
/* y from (x - pivot) * rstd - delta * rstd: an instruction less for an element, and a rounding of f32
 * that results of 16 bits do not show. */
constexpr bool FOLDED = LAYER && sizeof(real) == 4 && bytes_of(X_TYPE) == 2 && bytes_of(Y_TYPE) == 2;

extern __shared__ __align__(16) unsigned char dynamic_shared[];

struct place {
    int lane, warp, rank; /* rank in the row */
    u32 block_rank;       /* in the cluster */
    bool idle, has_last;
    u32 ring; /* this thread's first chunk in shared memory */
    total count;                   /* elements this thread holds of a row */
    total warp_count, block_count; /* elements in the entries this lane merges */
    entry (*slots)[WARPS], (*block_slots)[CLUSTER];
    u64 *byte_barriers;
    u32 round; /* exchanges so far */
    /* Of the turn to be fetched next: this thread's first row, and its first chunk in it. */
    i64 next_row;
    const char *next_x;

    __device__ __forceinline__ bool has(int k) const {
        return !RAGGED || k < VECS - 1 || has_last;
    }
    __device__ __forceinline__ u32 slot(int stage, int u, int k) const {
        return ring + ((stage * ROWS + u) * VECS + k) * (THREADS * X_BYTES);
    }
};

/* This thread's chunks of a row, wherever they are. */
struct row_reader {
    chunk<X_BYTES> held[HOLD == 0 ? VECS : 1];
    const char *first; /* HOLD 2 */
    u32 slot;          /* HOLD 1 */
    int first_channel; /* GROUPS > 0: of the row */
    bool there;

    __device__ __forceinline__ chunk<X_BYTES> take(const place &p, int k) const {
        if constexpr (HOLD == 0)
            return held[k];
        else if constexpr (HOLD == 1)
            return load_from_shared<X_BYTES>(slot + k * (THREADS * X_BYTES));
        else
            return there && p.has(k)
                       ? load_once<X_BYTES, X_ACCESS>(first + (i64)k * (SPREAD * X_BYTES))
                       : zero_chunk<X_BYTES>();
    }
};

__device__ __forceinline__ int first_channel_of(i64 row) {
    return GROUPED ? (int)(row % most(GROUPS, 1)) * (COLS / most(PIXELS, 1)) : 0;
}

/* Starts the copies of the next turn's rows to shared memory; zeros for what is not there. */
__device__ __forceinline__ void fill(const forward_args &args, place &p, int stage) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = !p.idle && p.next_row + u * PER_WARP < args.rows;
        const char *from = p.next_x + u * PER_WARP * args.x_stride;
#pragma unroll UNROLL
        for (int k = 0; k < VECS; k++) {
            const char *at = from + (i64)k * (SPREAD * X_BYTES);
            if constexpr (X_ACCESS >= 4 && X_BYTES >= 4)
                copy_async<X_BYTES, X_ACCESS>(p.slot(stage, u, k), at, there && p.has(k));
            else
                store_to_shared<X_BYTES>(p.slot(stage, u, k),
                                         there && p.has(k) ? load_once<X_BYTES, X_ACCESS>(at)
                                                           : zero_chunk<X_BYTES>());
        }
    }
    p.next_row += args.row_turn;
    p.next_x += args.x_turn;
    copy_async_commit();
}

__device__ __forceinline__ real thread_pivot(const place &p, const row_reader &r) {
    if (!LAYER)
        return 0;
    real sums[PIVOT_VECS];
#pragma unroll
    for (int k = 0; k < PIVOT_VECS; k++) {
        chunk<X_BYTES> c = r.take(p, k);
        real v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = element<X_TYPE>(c.word, i);
        sums[k] = tree_sum<WIDTH>(v);
    }
    return tree_sum<PIVOT_VECS>(sums) * (real)(1.0 / (PIVOT_VECS * WIDTH));
}

/* Adds a chunk's sums of (x - pivot) * scale and of its square; nothing where `has` is false. That is
 * a choice of values and no branch: behind a branch the assembler puts the chunk's load, too. */
template <bool SCALED>
__device__ __forceinline__ void chunk_sums(const chunk<X_BYTES> &c, bool has, real pivot,
                                           real scale, total &sum, total &squares) {
    constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
    real d[WIDTH], e[HALF];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        d[i] = LAYER ? element<X_TYPE>(c.word, i) - pivot : element<X_TYPE>(c.word, i);
        if (SCALED)
            d[i] *= scale;
        if (LAYER)
            d[i] = has ? d[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        e[i] = d[i] * d[i];
        if (WIDTH > 1)
            e[i] = multiply_add(d[i + HALF], d[i + HALF], e[i]);
    }
    squares += tree_sum<HALF>(e);
    if (LAYER)
        sum += tree_sum<WIDTH>(d);
}

/* Elements that one warp of the row holds. */
__device__ __forceinline__ total elements_of_warp(int e) {
    int left = CHUNKS - (VECS - 1) * SPREAD - e * 32; /* only the last chunks can be missing */
    return (total)(WIDTH * (32 * (VECS - 1) + (left < 0 ? 0 : left > 32 ? 32 : left)));
}

/* Elements that one block of the row holds. */
__device__ __forceinline__ total elements_of_block(int e) {
    int left = CHUNKS - (VECS - 1) * SPREAD - e * LANES;
    return (total)(WIDTH * (LANES * (VECS - 1) + (left < 0 ? 0 : left > LANES ? LANES : left)));
}

/* From sums about p + d to sums about p, of n elements. */
__device__ __forceinline__ void shift(total d, total n, total &a, total &b) {
    total shifted = multiply_add(n, d, a);
    b = multiply_add(d, a + shifted, b);
    a = shifted;
}

/* Merges COUNT entries, of which lane l of every warp takes entry l with `count` elements. */
template <bool SCALED, int COUNT>
__device__ __forceinline__ void merge_entries(const place &p, const entry *slots, total count,
                                              real &pivot, real scale, total &a, total &b) {
    static_assert(COUNT <= 32, "an entry for each lane");
    constexpr int TREE = COUNT > 1 ? 2 * power_of_two_up_to(COUNT - 1) : 1;
    const total first = slots[0].value[0];
    a = b = 0;
    if (p.lane % TREE < COUNT) {
        entry s = slots[p.lane % TREE];
        a = s.value[1];
        b = s.value[2];
        if (LAYER) {
            total d = s.value[0] - first;
            shift(SCALED ? d * scale : d, count, a, b);
        }
    }
    pivot = (real)first;
    b = sum_over_lanes<TREE>(b, p.lane);
    if (LAYER)
        a = sum_over_lanes<TREE>(a, p.lane);
}

/* What the sums of a warp's lanes are merged about: the middle of three lanes' pivots, for one of
 * them may have met an outlier, and far from the mean f32 totals lose digits. */
__device__ __forceinline__ real warp_pivot(const place &p, real own) {
    constexpr int APART = WARP_LANES / 3;
    const int first = WARP_LANES == 32 ? 0 : p.lane - p.lane % WARP_LANES;
    const real a = from_lane(own, first);
    if constexpr (sizeof(total) == 4 && WARP_LANES >= 8) {
        const real b = from_lane(own, first + APART), c = from_lane(own, first + 2 * APART);
        /* Of the row's last warp, which may hold next to nothing, the first. */
        const bool all = !RAGGED || VECS > 1 || p.rank - p.lane % WARP_LANES + WARP_LANES <= CHUNKS;
        return all ? fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)) : a;
    }
    return a;
}

/* Merges what the lanes of a row in a warp have; each gets their pivot and the sums about it. */
template <bool SCALED>
__device__ __forceinline__ void merge_in_warp(const place &p, real &pivot, real scale, total &a,
                                              total &b) {
    if (LAYER) {
        const real first = warp_pivot(p, pivot);
        total d = (total)pivot - (total)first;
        shift(SCALED ? d * scale : d, p.count, a, b);
        pivot = first;
        a = sum_over_lanes<WARP_LANES>(a, p.lane);
    }
    b = sum_over_lanes<WARP_LANES>(b, p.lane);
}

/* Merges what each thread of the row has; every thread gets the row's pivot and sums about it. */
template <bool SCALED>
__device__ __forceinline__ void merge(place &p, real &pivot, real scale, total &a, total &b) {
    merge_in_warp<SCALED>(p, pivot, scale, a, b);
    if constexpr (!WITHIN_WARP && WARPS > 1) {
        entry *slots = p.slots[p.round & 1];
        if (p.lane == 0)
            slots[p.warp] = {{(total)pivot, a, b, 0}};
        __syncthreads();
        total count = RAGGED ? p.warp_count : (total)(32 * VECS * WIDTH);
        merge_entries<SCALED, WARPS>(p, slots, count, pivot, scale, a, b);
    }
    if constexpr (CLUSTER > 1) {
        entry *slots = p.block_slots[p.round & 1];
        u32 bar = shared_address(p.byte_barriers + (p.round & 1));
        if (p.warp == 0) {
            total v[4] = {(total)pivot, a, b, 0};
            if (p.lane == 0)
                byte_barrier_expect(bar, CLUSTER * sizeof(entry));
            if (p.lane < CLUSTER)
                send_to_block(shared_address(slots + p.block_rank), bar, p.lane, v);
        }
        byte_barrier_wait(bar, p.round >> 1 & 1);
        total count = RAGGED ? p.block_count : (total)(LANES * VECS * WIDTH);
        merge_entries<SCALED, CLUSTER>(p, slots, count, pivot, scale, a, b);
    }
    p.round++;
}

struct row_moments {
    real pivot, delta, rstd;
    int beyond; /* float's range: 1 above, -1 below, and then to be summed again, scaled */
};

/* Whether a row's squares, which add up to b, leave float's range. */
__device__ __forceinline__ int leaves_range(total b, const forward_args &args) {
    return !(b < 1e36f) ? 1 : args.eps_is_small && b < 1e-28f ? -1 : 0;
}

/* The moments of a row from its sums about a pivot. */
__device__ __forceinline__ row_moments moments_from(real pivot, total a, total b,
                                                    const forward_args &args) {
    total delta = LAYER ? a * (total)(1.0 / COLS) : 0;
    total variance = (LAYER ? multiply_add(-a, delta, b) : b) * (total)(1.0 / COLS);
    row_moments m = {pivot, (real)delta,
                     reciprocal_root((variance < 0 ? 0 : variance) +
                                     (sizeof(total) == 4 ? (total)args.eps_rounded
                                                         : (total)args.eps)),
                     0};
    if constexpr (WIDE_RANGE && sizeof(real) == 4)
        m.beyond = leaves_range(b, args);
    return m;
}

__device__ __forceinline__ real scale_of(const row_moments &m) {
    return m.beyond > 0 ? 0x1p-64f : 0x1p64f;
}

/* The same from sums of scaled values. */
__device__ __forceinline__ void correct_moments(row_moments &m, total a, total b,
                                                const forward_args &args) {
    double back = m.beyond > 0 ? 0x1p64 : 0x1p-64, wide = a * (1.0 / COLS);
    double v = (LAYER ? b - a * wide : (double)b) * (1.0 / COLS);
    m.delta = LAYER ? (real)(wide * back) : 0;
    m.rstd = reciprocal_root((v < 0 ? 0 : v) * back * back + args.eps);
}

/* The moments of a row whose first chunk of this thread is at x, from scaled values about a pivot of
 * the thread, if m.beyond says so. From memory: to keep the row in registers for this would cost every
 * row. */
__device__ __forceinline__ void sum_scaled(place &p, bool there, const char *x, real own,
                                           row_moments &m, const forward_args &args) {
    const real scale = scale_of(m);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll 1
    for (int k = 0; k < VECS; k++)
        if (there && p.has(k))
            chunk_sums<true>(load_once<X_BYTES, X_ACCESS>(x + (i64)k * (SPREAD * X_BYTES)), true,
                             own, scale, a, b);
    merge<true>(p, pivot, scale, a, b);
    if (m.beyond) {
        m.pivot = pivot;
        correct_moments(m, a, b, args);
    }
}

/* The moments of row `row`. */
__device__ __forceinline__ row_moments moments_of(place &p, row_reader &r, i64 row,
                                                  const forward_args &args) {
    const real own = thread_pivot(p, r);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll UNROLL
    for (int k = 0; k < VECS; k++) {
        chunk<X_BYTES> c = r.take(p, k);
        chunk_sums<false>(c, p.has(k), own, 1, a, b);
    }
    /* Else the converted row stays in registers over the exchange, and spills. */
    if constexpr (HOLD == 0 && bytes_of(X_TYPE) == 2)
#pragma unroll
        for (int k = 0; k < VECS; k++)
            for (u32 &w : r.held[k].word)
                forget(w, args.zero);
    merge<false>(p, pivot, 1, a, b);
    row_moments m = moments_from(pivot, a, b, args);
    if constexpr (WIDE_RANGE && sizeof(real) == 4) {
        /* Decided by the row alone: its whole team, and no other row, takes the scaled sums. */
        if (WITHIN_WARP ? __any_sync(EVERY_LANE, m.beyond) : m.beyond)
            sum_scaled(p, r.there, (const char *)args.x + row * args.x_stride + (i64)p.rank * X_BYTES,
                       own, m, args);
    }
    return m;
}

/* Adding 0 would be an addition: it changes -0. */
__device__ __forceinline__ real plus_offset(real w) {
    return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w;
}

/* Weight and bias of chunk k of a row that is a group of channels. */
__device__ __forceinline__ void load_channels(const forward_args &args, const place &p, int k,
                                              int first_channel, real *scale, real *offset) {
    const int column = (p.rank + k * SPREAD) * WIDTH;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (i > 0 && PIXELS % WIDTH == 0) {
            scale[i] = scale[0];
            offset[i] = offset[0];
            continue;
        }
        const int channel = first_channel + (column + i) / most(PIXELS, 1);
        if constexpr (W_TYPE != NONE)
            scale[i] = plus_offset(load_element<W_TYPE>(args.weight, channel));
        if constexpr (B_TYPE != NONE)
            offset[i] = load_element<B_TYPE>(args.bias, channel);
    }
}

struct affine {
    chunk<W_BYTES> weight[EARLY ? VECS : 1];
    chunk<B_BYTES> bias[EARLY ? VECS : 1];
};

__device__ __forceinline__ void load_affine(const forward_args &args, const place &p, int k,
                                            chunk<W_BYTES> &weight, chunk<B_BYTES> &bias) {
    if (GROUPED) /* a row has its own */
        return;
    const i64 index = p.rank + k * SPREAD;
    if constexpr (W_TYPE != NONE)
        weight = load_shared_by_rows<W_BYTES, W_ACCESS>((const char *)args.weight + index * W_BYTES);
    if constexpr (B_TYPE != NONE)
        bias = load_shared_by_rows<B_BYTES, B_ACCESS>((const char *)args.bias + index * B_BYTES);
}

__device__ __forceinline__ real normalized(real x, const row_moments &m) {
    if (FOLDED)
        return multiply_add(x - m.pivot, m.rstd, -m.delta * m.rstd);
    return (LAYER ? (x - m.pivot) - m.delta : x) * m.rstd;
}

__device__ __forceinline__ real scaled(real v, real scale, real offset) {
    if (W_TYPE != NONE && B_TYPE != NONE)
        return multiply_add(v, scale, offset);
    return W_TYPE != NONE ? v * scale : B_TYPE != NONE ? v + offset : v;
}

/* What chunk k is multiplied by, and what is added to it; not of rows that have their own. */
__device__ __forceinline__ void affine_of(const forward_args &args, const place &p,
                                          const affine &early, int k, real *scale, real *offset) {
    chunk<W_BYTES> weight = early.weight[EARLY ? k : 0];
    chunk<B_BYTES> bias = early.bias[EARLY ? k : 0];
    if (!EARLY)
        load_affine(args, p, k, weight, bias);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        scale[i] = W_TYPE == NONE ? 1 : plus_offset(element<W_TYPE>(weight.word, i));
        offset[i] = B_TYPE == NONE ? 0 : element<B_TYPE>(bias.word, i);
    }
}

/* The output of a team's rows. */
__device__ __forceinline__ void apply(const forward_args &args, const place &p, char *y,
                                      const affine &early, const row_reader *reader,
                                      const row_moments *moments) {
#pragma unroll UNROLL
    for (int k = 0; k < VECS; k++) {
        real scale[WIDTH], offset[WIDTH];
        if (p.idle || !p.has(k))
            continue;
        if (!GROUPED)
            affine_of(args, p, early, k, scale, offset);
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            if (!reader[u].there)
                continue;
            const row_moments &m = moments[u];
            chunk<X_BYTES> c = reader[u].take(p, k);
            real out[WIDTH];
            if constexpr (GROUPED)
                load_channels(args, p, k, reader[u].first_channel, scale, offset);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                out[i] = scaled(normalized(element<X_TYPE>(c.word, i), m), scale[i], offset[i]);
            }
            store_once<Y_BYTES, Y_ACCESS>(y + u * PER_WARP * args.y_stride + k * (SPREAD * Y_BYTES),
                                          pack<Y_TYPE, WIDTH>(out));
        }
    }
}

/* ---- Rows over GROUP blocks -------------------------------------------------------------------- */

/* Turns a line has room for. A block that sends turn t has taken turn t - DELAY from every other,
 * and each of those had taken turn t - 2 DELAY before it sent that. */
constexpr int LINE = 2 * DELAY + 2;
typedef mail<total, GROUP, LINE> group_mail;

struct wide_room {
    entry slots[2][WARPS], scaled_slots[WARPS];
    row_moments moments[2];
};

/* The group's pivot and sums, from every block's in their order. */
template <bool SCALED>
__device__ __forceinline__ void merge_mail(const place &p, group_mail &m, u64 *line, i64 turn,
                                           real scale, real &pivot, total &a, total &b) {
    total first = 0;
    a = b = 0;
#pragma unroll
    for (int e = 0; e < group_mail::EACH; e++) {
        total v[3] = {0, 0, 0};
        const bool there = m.take(line, turn, e, p.lane, v);
        __syncwarp();
        if (e == 0)
            first = from_lane(v[0], 0);
        if (there && LAYER) {
            total d = v[0] - first;
            shift(SCALED ? d * scale : d, elements_of_block(e * 32 + p.lane), v[1], v[2]);
        }
        a += v[1];
        b += v[2];
    }
    pivot = (real)first;
    b = sum_over_lanes<32>(b, p.lane);
    if (LAYER)
        a = sum_over_lanes<32>(a, p.lane);
}

/* Merges a block's warps and sends the result to the group. */
template <bool SCALED>
__device__ __forceinline__ void send_block(const place &p, const entry *slots, u64 *line, i64 turn,
                                           real scale) {
    real pivot;
    total v[3], count = RAGGED ? p.warp_count : (total)(32 * VECS * WIDTH);
    merge_entries<SCALED, WARPS>(p, slots, count, pivot, scale, v[1], v[2]);
    v[0] = pivot;
    if (p.lane == 0)
        group_mail::send(line, turn, p.block_rank, v);
}

/* The extra warp: the moments of the rows whose output is next, and the sums of the newest row. */
__device__ __forceinline__ void exchange_turns(const forward_args &args, place &p, wide_room &room,
                                               u64 *line, i64 turns) {
    group_mail m;
    for (i64 t = 0; t < turns + DELAY; t++) {
        row_moments now = {0, 0, 0, 0};
        if (t >= DELAY) {
            real pivot;
            total a, b;
            merge_mail<false>(p, m, line, t - DELAY, 1, pivot, a, b);
            now = moments_from(pivot, a, b, args);
            if (p.lane == 0)
                room.moments[t & 1] = now;
        }
        if (t + 1 >= DELAY && t + 1 < turns + DELAY)
            m.ask(line, t + 1 - DELAY, p.lane);
        barrier(1, ALL_THREADS);
        if (t < turns)
            send_block<false>(p, room.slots[t & 1], line, t, 1);
        if (WIDE_RANGE && now.beyond) {
            u64 *other = line + group_mail::ALL_WORDS;
            group_mail scaled;
            real pivot;
            total a, b;
            barrier(2, ALL_THREADS);
            send_block<true>(p, room.scaled_slots, other, t - DELAY, scale_of(now));
            scaled.ask(other, t - DELAY, p.lane);
            merge_mail<true>(p, scaled, other, t - DELAY, scale_of(now), pivot, a, b);
            correct_moments(now, a, b, args);
            if (p.lane == 0)
                room.moments[t & 1] = now;
            barrier(2, ALL_THREADS);
        }
    }
}

/* One warp's part of a row's sums, to `slots`. */
template <bool SCALED>
__device__ __forceinline__ void sum_slot(const place &p, const row_reader &r, real scale,
                                         entry *slots) {
    const real own = thread_pivot(p, r);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll UNROLL
    for (int k = 0; k < VECS; k++)
        chunk_sums<SCALED>(r.take(p, k), p.has(k), own, scale, a, b);
    merge_in_warp<SCALED>(p, pivot, scale, a, b);
    if (p.lane == 0)
        slots[p.warp] = {{(total)pivot, a, b, 0}};
}

/* The other warps: the sums of the newest row, and the output of an older one. */
__device__ __forceinline__ void row_turns(const forward_args &args, place &p, wide_room &room,
                                          i64 row, i64 turns) {
    char *y = (char *)args.y + row * args.y_stride + (i64)p.rank * Y_BYTES;
    int newest = 0, oldest = 0; /* slots */
    affine early;
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (p.has(k))
            load_affine(args, p, k, early.weight[EARLY ? k : 0], early.bias[EARLY ? k : 0]);
    for (i64 t = 0; t < turns + DELAY; t++) {
        row_reader r;
        r.there = true;
        if (t < turns) {
            copy_async_wait<STAGES - 1 - DELAY>();
            r.slot = p.slot(newest, 0, 0);
            sum_slot<false>(p, r, 1, room.slots[t & 1]);
            newest = newest + 1 == STAGES ? 0 : newest + 1;
        }
        barrier(1, ALL_THREADS);
        if (t < DELAY)
            continue;
        r.slot = p.slot(oldest, 0, 0);
        r.first_channel = first_channel_of(row);
        row_moments m = room.moments[t & 1];
        if (WIDE_RANGE && m.beyond) {
            sum_slot<true>(p, r, scale_of(m), room.scaled_slots);
            barrier(2, ALL_THREADS);
            barrier(2, ALL_THREADS);
            m = room.moments[t & 1];
        }
        if (p.rank == 0) {
            store_element<MEAN_TYPE>((char *)args.mean + row * args.mean_stride, 0,
                                     m.pivot + m.delta);
            store_element<RSTD_TYPE>((char *)args.rstd + row * args.rstd_stride, 0, m.rstd);
        }
        /* Else the converted weights stay in registers, and spill. */
#pragma unroll
        for (int k = 0; k < (EARLY ? VECS : 1); k++) {
            for (u32 &w : early.weight[k].word)
                forget(w, args.zero);
            for (u32 &w : early.bias[k].word)
                forget(w, args.zero);
        }
        apply(args, p, y, early, &r, &m);
        fill(args, p, oldest);
        oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
        y += args.y_turn;
        row += args.row_turn;
    }
}

__device__ __forceinline__ void wide_rows(const forward_args &args, place &p) {
    __shared__ wide_room room;
    const i64 group = blockIdx.x / GROUP, groups = gridDim.x / GROUP;
    const i64 turns = group < args.rows ? (args.rows - group + groups - 1) / groups : 0;
    u64 *line = args.mail + group * 2 * group_mail::ALL_WORDS;
    p.next_row = group;
    p.next_x = (const char *)args.x + group * args.x_stride + (i64)p.rank * X_BYTES;
    wait_for_stream();
    release_stream();
    if (p.warp == WARPS) {
        group_mail::clear(line, p.block_rank, p.lane);
        group_mail::clear(line + group_mail::ALL_WORDS, p.block_rank, p.lane);
        grid_barrier_of_warp(p.lane);
        exchange_turns(args, p, room, line, turns);
    } else {
#pragma unroll 1
        for (int s = 0; s < STAGES; s++)
            fill(args, p, s);
        row_turns(args, p, room, group, turns);
    }
    copy_async_wait<0>();
}

/* ---- Rows in a warp, a block or a cluster ------------------------------------------------------ */

__device__ __forceinline__ void block_rows(const forward_args &args, place &p) {
    const i64 team = WITHIN_WARP ? (i64)blockIdx.x * WARPS + p.warp : blockIdx.x / CLUSTER;
    i64 unit_row = team * STEP;                                    /* the team's first row */
    i64 row = unit_row + (WITHIN_WARP ? p.lane / WARP_LANES : 0); /* this thread's */
    char *y = (char *)args.y + row * args.y_stride + (i64)p.rank * Y_BYTES;
    p.next_row = row;
    p.next_x = (const char *)args.x + row * args.x_stride + (i64)p.rank * X_BYTES;
    wait_for_stream();
    release_stream();
    if constexpr (HOLD == 0 && STAGES > 0) {
#pragma unroll
        for (int s = 0; s < STAGES; s++)
            fill(args, p, s);
    }
    if (CLUSTER > 1)
        cluster_wait();

    int stage = 0;
    for (; unit_row < args.rows; unit_row += args.row_turn, row += args.row_turn) {
        row_reader reader[ROWS];
        const char *here = (const char *)args.x + row * args.x_stride + (i64)p.rank * X_BYTES;
        if constexpr (HOLD == 1) {
            fill(args, p, 0);
            copy_async_wait<0>();
        } else if constexpr (STAGES > 0) {
            copy_async_wait<most(STAGES - 1, 0)>();
        }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            row_reader &r = reader[u];
            r.there = !p.idle && row + u * PER_WARP < args.rows;
            r.first = here + u * PER_WARP * args.x_stride;
            r.slot = p.slot(0, u, 0);
            r.first_channel = first_channel_of(row + u * PER_WARP);
            if constexpr (HOLD == 0) {
#pragma unroll
                for (int k = 0; k < VECS; k++) {
                    if constexpr (STAGES > 0) {
                        r.held[k] = load_from_shared<X_BYTES>(p.slot(stage, u, k));
                    } else {
                        r.held[k] = zero_chunk<X_BYTES>();
                        if (r.there && p.has(k))
                            r.held[k] =
                                load_once<X_BYTES, X_ACCESS>(r.first + k * (SPREAD * X_BYTES));
                    }
                }
            }
        }
        if constexpr (HOLD == 0 && STAGES > 0) {
            fill(args, p, stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        affine early;
        if constexpr (EARLY)
#pragma unroll
            for (int k = 0; k < VECS; k++)
                if (!p.idle && p.has(k))
                    load_affine(args, p, k, early.weight[k], early.bias[k]);
        row_moments moments[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const row_moments m = moments[u] = moments_of(p, reader[u], row + u * PER_WARP, args);
            if (reader[u].there && p.rank == 0) {
                const i64 at = row + u * PER_WARP;
                store_element<MEAN_TYPE>((char *)args.mean + at * args.mean_stride, 0,
                                         m.pivot + m.delta);
                store_element<RSTD_TYPE>((char *)args.rstd + at * args.rstd_stride, 0, m.rstd);
            }
        }
        apply(args, p, y, early, reader, moments);
        y += args.y_turn;
    }
    if (COPIES)
        copy_async_wait<0>();
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

#include "centred_words.cu"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, MIN_BLOCKS)
    planish_forward(const forward_args args) {
    __shared__ entry slots[2][WITHIN_WARP ? 1 : WARPS], block_slots[2][CLUSTER];
    __shared__ u64 byte_barriers[2];
    place p;
    p.lane = threadIdx.x % 32;
    p.warp = threadIdx.x / 32;
    p.block_rank = WIDE ? blockIdx.x % GROUP : CLUSTER > 1 ? cluster_rank() : 0;
    p.rank = WITHIN_WARP ? p.lane % WARP_LANES : p.block_rank * LANES + threadIdx.x;
    p.idle = WITHIN_WARP && p.lane >= PER_WARP * WARP_LANES;
    p.has_last = !RAGGED || p.rank + (VECS - 1) * SPREAD < CHUNKS;
    p.count = (total)(WIDTH * (VECS - 1 + p.has_last));
    p.slots = (entry(*)[WARPS])slots;
    p.block_slots = block_slots;
    p.byte_barriers = byte_barriers;
    p.round = 0;
    p.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    if (!WITHIN_WARP && RAGGED) {
        constexpr int TREE = WARPS > 1 ? 2 * power_of_two_up_to(WARPS - 1) : 1;
        constexpr int BLOCKS = CLUSTER > 1 ? 2 * power_of_two_up_to(CLUSTER - 1) : 1;
        p.warp_count = elements_of_warp(p.block_rank * WARPS + p.lane % TREE);
        p.block_count = elements_of_block(p.lane % BLOCKS);
    }
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(byte_barriers + threadIdx.x));
        cluster_arrive();
    }
    if constexpr (WIDE)
        wide_rows(args, p);
    else if constexpr (CENTRED)
        centred_rows(args, p);
    else
        block_rows(args, p);
}
