/*
 * A part of batch.cu: a slab, or some channels that are neighbours (LAST), by a cluster of blocks (or by one), of which
 * each has a piece of the images or pixels. The sums of places become those of channels in an order that the geometry
 * gives; the first HOLD steps of each thread wait in shared memory until then, and what is more is read again, the last
 * first.
 */
constexpr int SENT = SUMS == 2 ? 2 : 4; /* numbers of a row in a message */

/* What blocks of a cluster tell each other: sums of the slab's rows, and of those that are summed again. */
struct slab_mail {
    u64 barriers[2];
    __align__(16) double entries[WIDE_RANGE ? 2 : 1][CLUSTER][ROOM][SENT];
};

/* Sums of a thread's places by the channel that they are of: its first one, the next. */
typedef real slab_room[SUMS][2][WORKERS];

/* The pivots of the slab's rows by all images, as pivots_of_steps has them: by three means of four elements. */
__device__ __forceinline__ void share_pivots(const batch_args &args, i64 first, real *pivots) {
    constexpr int EACH = 4, SAMPLES = 3 * EACH;
    __shared__ real samples[ROOM][SAMPLES];
    for (int e = threadIdx.x; e < ROOM * SAMPLES; e += THREADS) {
        const int row = e / SAMPLES, k = e - row * SAMPLES;
        const u32 step = (u32)((u64)(2 * k + 1) * args.steps / (2 * SAMPLES));
        const int pixel = (2 * k + 1) * PIXELS / (2 * SAMPLES);
        real v = 0;
        if (first + row < rows_of(args))
            v = load_element<X_TYPE>(first_of_row(args, first + row) + step_at<X_TYPE>(args, args.x, step), pixel);
        samples[row][k] = v * ((real)1 / EACH);
    }
    __syncthreads();
    if (threadIdx.x < ROOM) {
        real mean[3];
#pragma unroll
        for (int k = 0; k < 3; k++)
            mean[k] = tree_sum<EACH>(samples[threadIdx.x] + k * EACH);
        pivots[threadIdx.x] = pivot_by(mean);
    }
    __syncthreads();
}

/* The constants of a thread's places while they are summed. */
__device__ __forceinline__ void slab_constants(const batch_args &args, const unit_place &p, const real *pivots,
                                               row_constants *c) {
    real pivot[COLUMNS];
    const place_rows r = rows_of_place(p.lane * WIDTH);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        pivot[i] = FORWARD && LAYER ? pivots[i < r.split ? r.first : r.second] : 0;
    sum_constants(args, p.row, pivot, c);
}

/* A thread's sums, to the room of all. */
__device__ __forceinline__ void share_places(const unit_place &p, const thread_sums &s, slab_room &room) {
    const place_rows r = rows_of_place(p.lane * WIDTH);
    if (p.plane < PLANES) {
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            real v[2][WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                v[0][i] = i < r.split ? s.v[j][i] : 0;
                v[1][i] = i < r.split ? 0 : s.v[j][i];
            }
#pragma unroll
            for (int k = 0; k < 2; k++)
                room[j][k][threadIdx.x] = tree_sum<WIDTH>(v[k]);
        }
    }
    __syncthreads();
}

/* Sends the sums of row r, which a thread has, to block `to`. */
__device__ __forceinline__ void send_row(slab_mail &mail, int round, int r, int to, const double *v) {
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (CLUSTER > 1 && SENT == 2)
        send_two_to_block(shared_address(mail.entries[round][rank][r]), shared_address(mail.barriers + round), to, v);
    else if (CLUSTER > 1)
        send_to_block(shared_address(mail.entries[round][rank][r]), shared_address(mail.barriers + round), to, v);
    else
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            mail.entries[round][0][r][j] = v[j];
}

/* Adds up the block's places by row, a warp for each of them, and tells all blocks. */
__device__ __forceinline__ void send_rows(slab_mail &mail, const slab_room &room) {
    constexpr int SPAN = (PIXELS + WIDTH - 2) / WIDTH + 1; /* chunks that have places of a row, at most */
    const int lane = threadIdx.x % WARP;
    if (CLUSTER > 1)
        cluster_wait();
#pragma unroll 1
    for (int r = threadIdx.x / WARP; r < ROOM; r += WARPS) {
        double v[4] = {0, 0, 0, 0};
        const int from = r * PIXELS / WIDTH;
#pragma unroll 1
        for (int e = lane; e < SPAN * PLANES; e += WARP) {
            const int plane = e / SPAN, chunk = from + e - plane * SPAN;
            const place_rows of = rows_of_place(chunk * WIDTH);
            if (chunk >= LANES || of.first > r)
                continue;
#pragma unroll
            for (int j = 0; j < SUMS; j++)
                v[j] += (double)room[j][of.first < r][plane * LANES + chunk];
        }
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            v[j] = sum_over_lanes<WARP>(v[j], lane);
        if (lane < CLUSTER)
            send_row(mail, 0, r, lane, v);
    }
}

/* The same of channels that are neighbours, whose sums `room` has by warp: neighbouring lanes have a row. */
__device__ __forceinline__ void send_channels(slab_mail &mail, const block_room &room) {
    constexpr int SHARE = least(THREADS / ROOM, WARP);
    const int r = threadIdx.x / SHARE, rank = threadIdx.x % SHARE;
    double v[4] = {0, 0, 0, 0};
    if (CLUSTER > 1)
        cluster_wait();
    if (r >= ROOM) /* whole warps */
        return;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        for (int w = rank; w < WARPS; w += SHARE)
            v[j] += (double)room[w][j][r];
        v[j] = sum_over_lanes<SHARE>(v[j], threadIdx.x % WARP);
    }
    for (int to = rank; to < CLUSTER; to += SHARE)
        send_row(mail, 0, r, to, v);
}

/* The sums of row r over the cluster's blocks, in their order. */
__device__ __forceinline__ void receive_row(const slab_mail &mail, int round, int r, double *v) {
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        v[j] = 0;
#pragma unroll
        for (int b = 0; b < CLUSTER; b++)
            v[j] += mail.entries[round][b][r][j];
    }
}

__device__ __forceinline__ void wait_for_mail(slab_mail &mail, int round) {
    if (CLUSTER > 1)
        byte_barrier_wait(shared_address(mail.barriers + round), 0);
    else
        __syncthreads();
}

/* Rows that leave float's range are summed again, each block's images by itself: no other block reads or writes those,
 * so that y may be in x's place. */
__device__ __forceinline__ void sum_slab_again(const batch_args &args, const unit_place &p, i64 first, slab_mail &mail,
                                               double &pivot, double *v) {
    const bool again = threadIdx.x < ROOM && leaves_range(args, v[1]);
    if (!sum_wide(args, first, p.begin, p.end, pivot, v) || CLUSTER == 1)
        return;
    if (threadIdx.x < ROOM)
        for (int b = 0; b < CLUSTER; b++)
            send_row(mail, WIDE_RANGE, threadIdx.x, b, v);
    wait_for_mail(mail, WIDE_RANGE);
    if (again)
        receive_row(mail, WIDE_RANGE, threadIdx.x, v);
}

/* The constants of the slab's rows, by their sums and what was `known` before; the first block saves what is to be
 * saved. Thread r has row r. */
__device__ __forceinline__ void share_rows(const batch_args &args, const unit_place &p, i64 first,
                                           const known_row &known, double pivot, slab_mail &mail,
                                           constants_room &constants) {
    const bool there = threadIdx.x < ROOM && first + threadIdx.x < rows_of(args), saves = p.piece == 0;
    double v[4] = {0, 0, 0, 0};
    wait_for_mail(mail, 0);
    if (threadIdx.x < ROOM)
        receive_row(mail, 0, threadIdx.x, v);
    if constexpr (WIDE_RANGE)
        sum_slab_again(args, p, first, mail, pivot, v);
    if (there) {
        if constexpr (FORWARD)
            share_constants(constants, threadIdx.x, forward_constants(args, known, pivot, v, saves));
        else
            share_constants(constants, threadIdx.x, backward_constants(args, known, v, saves));
    }
    __syncthreads();
}

/* What is known of the row that a thread has of the slab's, the first of which is `first`. */
__device__ __forceinline__ known_row known_of_slab(const batch_args &args, i64 first) {
    known_row known;
    if (threadIdx.x < ROOM && first + threadIdx.x < rows_of(args))
        known = known_of(args, first + threadIdx.x);
    return known;
}

/* The sums of a block's steps, of which those before HOLD stay, told to all blocks, and the pivots of its rows. Returns
 * what is known of these. */
__device__ __forceinline__ known_row sum_slab(const batch_args &args, const unit_place &p, i64 first,
                                              const row_bases &b, u32 begin, u32 count, real *pivots,
                                              slab_mail &mail) {
    __shared__ slab_room room;
    if (FORWARD && LAYER) {
        prefetch_steps(args, b, begin, 0, least_of(AT_ONCE, count)); /* on their way while pivots are */
        share_pivots(args, first, pivots);
    }
    const known_row known = known_of_slab(args, first);
    row_constants c[COLUMNS];
    thread_sums s;
    s.clear();
    if (p.active) {
        slab_constants(args, p, pivots, c);
        add_all(args, b, c, begin, count, s);
    }
    share_places(p, s, room);
    send_rows(mail, room);
    return known;
}

__device__ __forceinline__ known_row sum_channels(const batch_args &args, const unit_place &p, i64 first,
                                                  const row_bases &b, u32 begin, u32 count, real *pivots,
                                                  slab_mail &mail) {
    __shared__ block_room room;
    thread_sums s;
    s.clear();
    if (p.active) {
        row_constants c[COLUMNS];
        real pivot[COLUMNS];
        const pivots_of_steps of_all(args, b.x, 0, args.steps);
        ask_for_held(args, b, begin, count);
        of_all.find(pivot);
        sum_constants(args, p.row, pivot, c);
        if (p.plane == 0)
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                pivots[p.lane * COLUMNS + i] = pivot[i];
        add_all(args, b, c, begin, count, s);
    }
    add_up_block(s, room);
    send_channels(mail, room);
    return known_of_slab(args, first); /* on its way while mail is */
}

/* What a thread's places are written by. */
__device__ __forceinline__ void constants_of_places(const constants_room &constants, const unit_place &p,
                                                    row_constants *c) {
    if constexpr (LAST) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            c[i] = constants_from(constants, p.lane * COLUMNS + i);
    } else {
        const place_rows r = rows_of_place(p.lane * WIDTH);
        const row_constants one = constants_from(constants, r.first), next = constants_from(constants, r.second);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            c[i] = i < r.split ? one : next;
    }
}

__device__ __forceinline__ void take_slab(const batch_args &args) {
    __shared__ slab_mail mail;
    __shared__ constants_room constants;
    __shared__ real pivots[ROOM];
    if (CLUSTER > 1) {
        if (threadIdx.x < 1 + WIDE_RANGE) {
            byte_barrier_init(shared_address(mail.barriers + threadIdx.x));
            byte_barrier_expect(shared_address(mail.barriers + threadIdx.x),
                                CLUSTER * ROOM * SENT * (int)sizeof(double));
        }
        __syncthreads();
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const i64 slab = blockIdx.x / CLUSTER, first = slab * ROOM;
    const unit_place p = place_of(args, slab, rank);
    const u32 count = p.active ? steps_of(p.begin, p.end, p.plane) : 0, begin = p.begin + p.plane;
    const row_bases b = bases_of(args, p.active ? p.row : 0);
    known_row known;
    if constexpr (LAST)
        known = sum_channels(args, p, first, b, begin, count, pivots, mail);
    else
        known = sum_slab(args, p, first, b, begin, count, pivots, mail);
    const double pivot = FORWARD && LAYER && threadIdx.x < ROOM ? (double)pivots[threadIdx.x] : 0;
    share_rows(args, p, first, known, pivot, mail, constants);
    if (!p.active || !HAS_OUTPUT)
        return;
    row_constants c[COLUMNS];
    constants_of_places(constants, p, c);
    put_back(args, b, c, begin, least_of(HOLD, count), count);
    put_held(args, b, c, begin, count);
}
