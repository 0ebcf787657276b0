/*
 * Forward of dense rows: y = (x - mu) * rstd * (WEIGHT_OFFSET + weight) + bias, one read of x and
 * one write of y. Mapping of elements to threads depends on COLS and the dtypes alone, so a row's
 * result depends on nothing but the row. Knows nothing of strides inside a row.
 *
 * A row is cut into chunks of WIDTH elements. LANES threads of a block share a row: up to 32, or
 * whole warps, then the block is one group. CLUSTER blocks share it where one does not hold it.
 * Thread `rank` of the LANES * CLUSTER holds chunks rank, rank + LANES * CLUSTER, ...: VECS of them.
 * A group takes ROWS rows at once, so that more loads are under way.
 *
 * HOLD says where the row stays between the statistics and the output: 0 registers, 1 shared memory
 * (each thread reads back only its own bytes: no barrier), 2 nowhere: it is read again.
 *
 * Statistics, in one exchange: each thread takes sums about a pivot of its own (the mean of its
 * first chunks), shifts them in f64 to the pivot of the group's first lane, and the shifted sums are
 * added along a fixed tree. The mean stays a pair: pivot + delta.
 *
 * Constants: KIND COLS X_TYPE Y_TYPE W_TYPE B_TYPE MEAN_TYPE RSTD_TYPE WEIGHT_OFFSET WIDTH LANES
 * VECS ROWS WARPS CLUSTER HOLD MIN_BLOCKS X_ACCESS Y_ACCESS W_ACCESS B_ACCESS (alignments in bytes).
 */
struct forward_args {
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    i64 rows, x_stride, y_stride, mean_stride, rstd_stride;
    double eps;
    u32 zero; /* 0, which the compiler cannot know */
};

constexpr bool LAYER = KIND == 0;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE);
constexpr int CHUNKS = COLS / WIDTH;
constexpr int SPREAD = LANES * CLUSTER;
constexpr bool RAGGED = VECS * SPREAD != CHUNKS;
constexpr bool WITHIN_WARP = LANES <= 32;
constexpr int WARP_LANES = least(LANES, 32);
constexpr int PER_WARP = 32 / WARP_LANES;
constexpr int GROUPS = WITHIN_WARP ? WARPS * PER_WARP : 1;
constexpr int THREADS = WARPS * 32;
constexpr int ENTRIES = WARPS * CLUSTER;
/* Chunks the pivot is the mean of: a power of two, so that equal values give it exactly. */
constexpr int PIVOT_VECS =
    power_of_two_up_to(least(HOLD == 0 ? VECS : 4, RAGGED && VECS > 1 ? VECS - 1 : VECS));
/* Squares of f32 and bf16 may leave float's range where the result does not. */
constexpr bool WIDE_RANGE = X_TYPE == F32 || X_TYPE == BF16;

struct entry {
    double pivot, a, b;
};

struct row_moments {
    real pivot, delta, rstd;
};

extern __shared__ u32 dynamic_shared[];

struct row_reader {
    const char *row; /* its first element */
    int first;       /* chunk of this thread's first */
    bool there;
    u32 slot; /* HOLD 1 */

    __device__ __forceinline__ bool has(int k) const {
        return !RAGGED || k < VECS - 1 || first + k * SPREAD < CHUNKS;
    }
    __device__ __forceinline__ const char *at(int k) const {
        return row + (i64)(first + k * SPREAD) * X_BYTES;
    }
    /* Chunk k, zeros where there is none. */
    __device__ __forceinline__ chunk<X_BYTES> take(const chunk<X_BYTES> *held, int k) const {
        if constexpr (HOLD == 0)
            return held[k];
        else if constexpr (HOLD == 1)
            return load_from_shared<X_BYTES>(slot + k * (THREADS * X_BYTES));
        else
            return there && has(k) ? load_once<X_BYTES, X_ACCESS>(at(k)) : zero_chunk<X_BYTES>();
    }
};

constexpr int HELD = HOLD == 0 ? VECS : 1;
constexpr int UNROLL = HOLD == 0 ? VECS : 4;

__device__ __forceinline__ real thread_pivot(const row_reader &r, const chunk<X_BYTES> *held) {
    if (!LAYER)
        return 0;
    real sums[PIVOT_VECS];
#pragma unroll
    for (int k = 0; k < PIVOT_VECS; k++) {
        chunk<X_BYTES> c = r.take(held, k);
        real v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = element<X_TYPE>(c.word, i);
        sums[k] = tree_sum<WIDTH>(v);
    }
    return tree_sum<PIVOT_VECS>(sums) * (real)(1.0 / (PIVOT_VECS * WIDTH));
}

/* Sums of (x - pivot) and of its square over this thread's elements, squared in type S. */
template <typename S>
__device__ __forceinline__ void thread_sums(const row_reader &r, const chunk<X_BYTES> *held,
                                            real pivot, S &sum, S &squares) {
    sum = 0;
    squares = 0;
#pragma unroll UNROLL
    for (int k = 0; k < VECS; k++) {
        chunk<X_BYTES> c = r.take(held, k);
        if (r.has(k)) {
            real d[WIDTH], e[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                d[i] = LAYER ? element<X_TYPE>(c.word, i) - pivot : element<X_TYPE>(c.word, i);
            if constexpr (sizeof(S) > sizeof(real)) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    sum += (S)d[i];
                    squares = multiply_add((S)d[i], (S)d[i], squares);
                }
            } else {
                constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
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
        }
    }
}

/* The number of elements in entry e: those held by one warp of one block. */
__device__ __forceinline__ int elements_of_entry(int e) {
    int lanes = 0;
#pragma unroll 1
    for (int k = 0; k < VECS; k++) {
        int left = CHUNKS - k * SPREAD - e * 32;
        lanes += left < 0 ? 0 : left > 32 ? 32 : left;
    }
    return lanes * WIDTH;
}

/* Sums about p from sums about q of n elements: q - p is exact in f64. */
__device__ __forceinline__ void shift(double p, double q, int n, double &a, double &b) {
    double d = q - p, shifted = a + n * d;
    b += d * (a + shifted);
    a = shifted;
}

/* Merges what each thread of the group has to the group's sums; every thread gets them. */
__device__ __forceinline__ void merge(real &pivot, double &a, double &b, int count, int lane,
                                      int warp, u32 rank_in_cluster, entry *slots) {
    if (LAYER) {
        real p = from_lane(pivot, WARP_LANES == 32 ? 0 : lane - lane % WARP_LANES);
        shift(p, pivot, count, a, b);
        pivot = p;
        a = sum_over_lanes<WARP_LANES>(a, lane);
    }
    b = sum_over_lanes<WARP_LANES>(b, lane);
    if constexpr (ENTRIES > 1 && !WITHIN_WARP) {
        int mine = rank_in_cluster * WARPS + warp;
        if (CLUSTER > 1) {
            if (lane < CLUSTER) {
                u32 at = shared_address(slots + mine);
                store_in_block(at, lane, (double)pivot);
                store_in_block(at + 8, lane, a);
                store_in_block(at + 16, lane, b);
            }
            cluster_arrive();
            cluster_wait();
        } else {
            if (lane == 0)
                slots[mine] = {pivot, a, b};
            __syncthreads();
        }
        double p = slots[0].pivot, total_a = 0, total_b = 0;
#pragma unroll
        for (int e = 0; e < ENTRIES; e += 32) {
            if (e + lane < ENTRIES) {
                entry s = slots[e + lane];
                if (LAYER)
                    shift(p, s.pivot, elements_of_entry(e + lane), s.a, s.b);
                total_a += s.a;
                total_b += s.b;
            }
        }
        constexpr int TREE = ENTRIES >= 32 ? 32 : 2 * power_of_two_up_to(ENTRIES - 1);
        pivot = (real)p;
        a = LAYER ? from_lane(sum_over_lanes<TREE>(total_a, lane), 0) : 0;
        b = from_lane(sum_over_lanes<TREE>(total_b, lane), 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    planish_forward(const forward_args args) {
    __shared__ entry slots[WITHIN_WARP ? 1 : 3][ROWS][WITHIN_WARP ? 1 : ENTRIES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 block_rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (CLUSTER > 1)
        cluster_arrive();
    const bool idle = WITHIN_WARP && lane >= PER_WARP * WARP_LANES;
    const int group = WITHIN_WARP ? warp * PER_WARP + lane / WARP_LANES : 0;
    const int rank = WITHIN_WARP ? lane % WARP_LANES : block_rank * LANES + threadIdx.x;
    const bool has_last = !RAGGED || rank + (VECS - 1) * SPREAD < CHUNKS;
    const int count = WIDTH * (VECS - 1 + has_last);
    const i64 blocks = gridDim.x / CLUSTER;
    bool started = CLUSTER == 1;
    int parity = 0;

    wait_for_stream();
    for (i64 tile = blockIdx.x / CLUSTER; tile * (GROUPS * ROWS) < args.rows; tile += blocks) {
        row_reader reader[ROWS];
        chunk<X_BYTES> held[ROWS][HELD];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            i64 row = (tile * ROWS + u) * GROUPS + group;
            row_reader &r = reader[u];
            r.there = !idle && row < args.rows;
            r.row = (const char *)args.x + row * args.x_stride * bytes_of(X_TYPE);
            r.first = rank;
            r.slot = HOLD == 1 ? shared_address(dynamic_shared) +
                                     (u * VECS * THREADS + threadIdx.x) * X_BYTES
                               : 0;
            if constexpr (HOLD == 0) {
#pragma unroll
                for (int k = 0; k < VECS; k++) {
                    held[u][k] = zero_chunk<X_BYTES>();
                    if (r.there && r.has(k))
                        held[u][k] = load_once<X_BYTES, X_ACCESS>(r.at(k));
                }
            } else if constexpr (HOLD == 1) {
#pragma unroll 4
                for (int k = 0; k < VECS; k++) {
                    bool there = r.there && r.has(k);
                    copy_async<HOLD == 1 ? X_BYTES : 4, HOLD == 1 ? X_ACCESS : 4>(
                        r.slot + k * (THREADS * X_BYTES), there ? r.at(k) : args.x, there);
                }
                copy_async_commit();
            }
        }
        if constexpr (HOLD == 1)
            copy_async_wait<0>();
        if (!started) {
            cluster_wait();
            started = true;
        }

        row_moments moments[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            real pivot = thread_pivot(reader[u], held[u]);
            double a, b;
            if constexpr (HOLD == 0) {
                real sum, squares;
                thread_sums(reader[u], held[u], pivot, sum, squares);
                a = sum;
                b = squares;
            } else {
                thread_sums(reader[u], held[u], pivot, a, b);
            }
            real p = pivot;
            merge(p, a, b, count, lane, warp, block_rank, slots[WITHIN_WARP ? 0 : parity][u]);
            if constexpr (WIDE_RANGE && HOLD == 0 && sizeof(real) < 8) {
                /* Decided by the row alone; the whole group, and no other row, changes. */
                bool out_of_range = !(b < 1e36) || (b < 1e-28 && args.eps < 1e-30);
                if (WITHIN_WARP ? __any_sync(EVERY_LANE, out_of_range) : out_of_range) {
                    double wide_a, wide_b;
                    real wide_p = pivot;
                    thread_sums(reader[u], held[u], pivot, wide_a, wide_b);
                    merge(wide_p, wide_a, wide_b, count, lane, warp, block_rank,
                          slots[WITHIN_WARP ? 0 : 2][u]);
                    if (out_of_range) {
                        a = wide_a;
                        b = wide_b;
                    }
                }
            }
            double delta = LAYER ? a * (1.0 / COLS) : 0;
            double variance = LAYER ? (b - a * delta) * (1.0 / COLS) : b * (1.0 / COLS);
            if (variance < 0)
                variance = 0;
            row_moments &m = moments[u];
            m = {p, (real)delta, reciprocal_root(variance + args.eps)};
            i64 row = (tile * ROWS + u) * GROUPS + group;
            if (reader[u].there && rank == 0) {
                store_element<MEAN_TYPE>(args.mean, row * args.mean_stride,
                                         (real)((double)p + delta));
                store_element<RSTD_TYPE>(args.rstd, row * args.rstd_stride, m.rstd);
            }
        }
        parity ^= 1;
        /* Else the converted row stays in registers over the exchange, and spills. */
#pragma unroll
        for (int u = 0; u < ROWS; u++)
#pragma unroll
            for (int k = 0; k < HELD; k++)
                for (u32 &w : held[u][k].word)
                    forget(w, args.zero);

#pragma unroll UNROLL
        for (int k = 0; k < VECS; k++) {
            int index = rank + k * SPREAD;
            real scale[WIDTH], offset[WIDTH];
            if (idle || !reader[0].has(k))
                continue;
            if constexpr (W_TYPE != NONE) {
                constexpr int B = WIDTH * bytes_of(W_TYPE);
                auto c = load_shared_by_rows<B, W_ACCESS>((const char *)args.weight +
                                                          (i64)index * B);
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    scale[i] = element<W_TYPE>(c.word, i) + (real)WEIGHT_OFFSET;
            }
            if constexpr (B_TYPE != NONE) {
                constexpr int B = WIDTH * bytes_of(B_TYPE);
                auto c = load_shared_by_rows<B, B_ACCESS>((const char *)args.bias + (i64)index * B);
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    offset[i] = element<B_TYPE>(c.word, i);
            }
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                if (!reader[u].there)
                    continue;
                const row_moments &m = moments[u];
                chunk<X_BYTES> c = reader[u].take(held[u], k);
                real out[WIDTH];
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    real v = element<X_TYPE>(c.word, i);
                    if (LAYER)
                        v = (v - m.pivot) - m.delta;
                    v *= m.rstd;
                    if (W_TYPE != NONE && B_TYPE != NONE)
                        v = multiply_add(v, scale[i], offset[i]);
                    else if (W_TYPE != NONE)
                        v *= scale[i];
                    else if (B_TYPE != NONE)
                        v += offset[i];
                    out[i] = v;
                }
                i64 row = (tile * ROWS + u) * GROUPS + group;
                constexpr int Y_BYTES = WIDTH * bytes_of(Y_TYPE);
                store_once<Y_BYTES, Y_ACCESS>(
                    (char *)args.y + (row * args.y_stride + (i64)index * WIDTH) * bytes_of(Y_TYPE),
                    pack<Y_TYPE, WIDTH>(out));
            }
        }
    }
    if (!started)
        cluster_wait();
    release_stream();
}
