/*
 * A part of groups.cu: the backward in one read of rows that no cluster holds. COOPERATING_BLOCKS blocks anywhere on the
 * device share a row and live on: where a lane has written a chunk of dx it asks for that of the next row. The later
 * half of them begins after the grid's barrier, so that not all read at one time and wait at another.
 */
typedef mail<double, COOPERATING_BLOCKS, 2> row_mail; /* nobody sends a third before all have taken the first */

/* A block's part of a row: its first channel in the image, and its first element. */
struct part_place {
    i64 image, channel, begin;

    __device__ __forceinline__ part_place(i64 row, int member) : image(row / GROUPS) {
        channel = (row - image * GROUPS) * DEPTH + (SPLIT > 1 ? member / SPLIT : member * PART);
        begin = channel * PIXELS + (SPLIT > 1 ? member % SPLIT * (CHUNKS * WIDTH) : 0);
    }
    __device__ __forceinline__ next_part read_from(const groups_args &args) const {
        return {(const char *)args.x + image * args.x_image + begin * bytes_of(X_TYPE),
                (const char *)args.dy + image * args.dy_image + begin * bytes_of(DY_TYPE)};
    }
};

__device__ __forceinline__ void ask_for_part(const row_place &r, const next_part &part) {
#pragma unroll 1
    for (int s = threadIdx.x / WARP; s < PART * SEGMENTS; s += WARPS) {
        int channel, first, end;
        segment_of(r, s, channel, first, end);
#pragma unroll 2
        for (int begin = first; begin < end; begin += WARP * AT_ONCE) {
#pragma unroll
            for (int k = begin + threadIdx.x % WARP, j = 0; j < AT_ONCE; j++, k += WARP)
                if (k < end)
                    part.ask(r, k);
            copy_async_commit();
        }
    }
}

/* What is known of a row beforehand: its moments, and its channels' weights and biases, at `to`. */
__device__ __forceinline__ saved know_row(const groups_args &args, i64 row, int member, float *to) {
    const i64 first = part_place(row, member).channel;
    for (int d = threadIdx.x; d < PART; d += THREADS) {
        to[d] = WEIGHTED ? weight_of(args, first + d) : 1;
        to[PART + d] = BIASED ? bias_of(args, first + d) : 0;
    }
    return saved_of(args, row);
}

/* Sums over the row's blocks of what this one has. */
__device__ __forceinline__ void sum_over_sharers(u64 *line, u32 round, int member, double *v) {
    __shared__ double room[WARPS][3];
    if (threadIdx.x == 0)
        row_mail::send(line, round, member, v);
    v[0] = v[1] = v[2] = 0;
    for (int block = threadIdx.x; block < COOPERATING_BLOCKS; block += THREADS)
        row_mail::add_from(line, round, block, v);
    sum_over_block<3>(v, room);
}

__device__ __forceinline__ void backward_rows_anywhere(const groups_args &args) {
    constexpr i64 DY_AT = round_up(PART_ROW * bytes_of(X_TYPE));
    float *sums = (float *)(dynamic_shared + DY_AT + round_up(PART_ROW * bytes_of(DY_TYPE)));
    float *known = sums + 3 * PART * SEGMENTS; /* of this row and of the next */
    const i64 rows = args.images * GROUPS, step = gridDim.x / COOPERATING_BLOCKS;
    const int member = blockIdx.x % COOPERATING_BLOCKS;
    const bool late = blockIdx.x >= gridDim.x / 2;
    i64 row = blockIdx.x / COOPERATING_BLOCKS;
    u64 *const line = args.mail + row * row_mail::ALL_WORDS;
    row_place r;
    r.x = shared_address(dynamic_shared);
    r.dy = r.x + (u32)DY_AT;
    r.chunks = SPLIT > 1 ? least(CHUNKS, ALL_CHUNKS - member % SPLIT * CHUNKS) : CHUNKS;
    wait_for_stream();
    release_stream();
    if (!late)
        ask_for_part(r, part_place(row, member).read_from(args));
    r.of = know_row(args, row, member, known);
    if (threadIdx.x < WARP)
        row_mail::clear(line, member, threadIdx.x);
    grid_barrier(THREADS);
    if (late)
        ask_for_part(r, part_place(row, member).read_from(args));
#pragma unroll 1
    for (u32 round = 0; row < rows; round++, row += step) {
        if constexpr (!COMES_IN_TURNS) {
            copy_async_commit();
            copy_async_wait<0>();
        }
        __syncthreads();
        r.weight = known + round % 2 * (2 * PART);
        r.bias = r.weight + PART;
        sum_segments(r, sums);
        __syncthreads();
        double total[3];
        sum_of_row(r, sums, total);
        saved of_next = r.of;
        if (row + step < rows)
            of_next = know_row(args, row + step, member, known + (round + 1) % 2 * (2 * PART));
        sum_over_sharers(line, round, member, total);
        const common c = common_of(args, total, r.of.mean, r.of.rest, r.of.rstd);
        const part_place p(row, member);
        next_part next = {nullptr, nullptr};
        if (row + step < rows)
            next = part_place(row + step, member).read_from(args);
        const char *dsum = nullptr;
        if constexpr (HAS_DSUM)
            dsum = (const char *)args.dsum + p.image * args.dsum_image + p.begin * bytes_of(DSUM_TYPE);
        if constexpr (DX_TYPE != NONE)
            write_segments(r, sums, c, p.read_from(args).dy, dsum,
                           (char *)args.out + p.image * args.out_image + p.begin * bytes_of(OUT_TYPE), next);
        else if (next.x)
            ask_for_part(r, next);
        leave_partials(args, sums, c, (p.image * SPLIT + (SPLIT > 1 ? member % SPLIT : 0)) * COLS + p.channel);
        r.of = of_next;
    }
}
