/* A part of forward.cu: rows over COOPERATING_BLOCKS blocks. */

/* Turns a line has room for. A block that sends turn t has taken turn t - DELAY from every other,
 * and each of those had taken turn t - 2 DELAY before it sent that. */
constexpr int LINE = 2 * DELAY + 2;
/* Rows asked for before the first is summed. Each turn asks for one more, into the slot of the row that it
 * puts out, if it does: so a row is waited for no longer than it takes, from the first on. */
constexpr int AHEAD = most(RING_SLOTS - DELAY, 1);
typedef mail<total, COOPERATING_BLOCKS, LINE> cooperative_mail;

struct cooperative_room {
    entry slots[2][WARPS], scaled_slots[WARPS];
    row_moments moments[2];
};

/* The group's pivot and sums, from every block's in their order. */
template <bool SCALED>
__device__ __forceinline__ void merge_mail(const place &p, cooperative_mail &m, u64 *line, i64 turn,
                                           real scale, real &pivot, total &a, total &b) {
    total first = 0;
    a = b = 0;
    m.wait(line, turn, p.lane);
#pragma unroll
    for (int e = 0; e < cooperative_mail::EACH; e++) {
        total v[3] = {0, 0, 0};
        const bool there = m.take(e, p.lane, v);
        if (e == 0)
            first = from_lane(v[0], 0);
        if (there && LAYER) {
            total d = v[0] - first;
            move_pivot(SCALED ? d * scale : d, elements_of_block(e * WARP + p.lane), v[1], v[2]);
        }
        a += v[1];
        b += v[2];
    }
    pivot = (real)first;
    b = sum_over_lanes<WARP>(b, p.lane);
    if (LAYER)
        a = sum_over_lanes<WARP>(a, p.lane);
}

/* Merges a block's warps and sends the result to the group. */
template <bool SCALED>
__device__ __forceinline__ void send_block(const place &p, const entry *slots, u64 *line, i64 turn,
                                           real scale) {
    real pivot;
    total v[3], count = RAGGED ? p.warp_count : (total)(WARP * CHUNKS_PER_THREAD * WIDTH);
    merge_entries<SCALED, WARPS>(p, slots, count, pivot, scale, v[1], v[2]);
    v[0] = pivot;
    if (p.lane == 0)
        cooperative_mail::send(line, turn, p.block_rank, v);
}

/* The extra warp: the moments of the rows whose output is next, and the sums of the newest row. */
__device__ __forceinline__ void exchange_turns(const row_args &args, place &p, cooperative_room &room,
                                               u64 *line, int turns) {
    cooperative_mail m;
    for (int t = 0; t < turns + DELAY; t++) {
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
            u64 *other = line + cooperative_mail::ALL_WORDS;
            cooperative_mail scaled;
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
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        chunk_sums<SCALED>(r.take(p, k), p.has(k), own, scale, a, b);
    merge_in_warp<SCALED>(p, pivot, scale, a, b);
    if (p.lane == 0)
        slots[p.warp] = {{(total)pivot, a, b, 0}};
}

/* The other warps: the sums of the newest row, and the output of an older one. */
__device__ __forceinline__ void row_turns(const row_args &args, place &p, cooperative_room &room,
                                          i64 row, int turns) {
    char *y = (char *)args.y + row * args.y_stride + (i64)p.rank * Y_BYTES;
    int newest = 0, next = AHEAD % most(RING_SLOTS, 1); /* slots; the next is that of the row put out */
    affine early;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (p.has(k))
            load_affine(args, p, k, early.weight[HELD_EARLY ? k : 0], early.bias[HELD_EARLY ? k : 0]);
    for (int t = 0; t < turns + DELAY; t++) {
        row_reader r;
        r.there = true;
        if (t < turns) {
            copy_async_wait<AHEAD - 1>();
            r.slot = p.slot(newest, 0, 0);
            sum_slot<false>(p, r, 1, room.slots[t & 1]);
            newest = newest + 1 == RING_SLOTS ? 0 : newest + 1;
        }
        barrier(1, ALL_THREADS);
        if (t >= DELAY) {
            r.slot = p.slot(next, 0, 0);
            r.first_channel = first_channel_of(row);
            row_moments m = room.moments[t & 1];
            if (WIDE_RANGE && m.beyond) {
                sum_slot<true>(p, r, scale_of(m), room.scaled_slots);
                barrier(2, ALL_THREADS);
                barrier(2, ALL_THREADS);
                m = room.moments[t & 1];
            }
            if (p.rank == 0)
                save_moments(args, row, m);
            /* Else the converted weights stay in registers, and spill. */
#pragma unroll
            for (int k = 0; k < (HELD_EARLY ? CHUNKS_PER_THREAD : 1); k++) {
                for (u32 &w : early.weight[k].word)
                    forget(w, args.zero);
                for (u32 &w : early.bias[k].word)
                    forget(w, args.zero);
            }
            apply(args, p, y, early, &r, &m);
            y += args.y_turn;
            row += args.row_turn;
        }
        fill(args, p, next);
        next = next + 1 == RING_SLOTS ? 0 : next + 1;
    }
}

__device__ __forceinline__ void cooperative_rows(const row_args &args, place &p) {
    __shared__ cooperative_room room;
    const i64 group = blockIdx.x / COOPERATING_BLOCKS, groups = gridDim.x / COOPERATING_BLOCKS;
    const int turns = group < args.rows ? (int)((args.rows - group + groups - 1) / groups) : 0;
    u64 *line = args.mail + group * 2 * cooperative_mail::ALL_WORDS;
    p.next_row = group;
    p.next_x = (const char *)args.x + group * args.x_stride + (i64)p.rank * X_BYTES;
    wait_for_stream();
    release_stream();
    if (p.warp == WARPS) {
        cooperative_mail::clear(line, p.block_rank, p.lane);
        cooperative_mail::clear(line + cooperative_mail::ALL_WORDS, p.block_rank, p.lane);
        grid_barrier_of_warp(p.lane);
        exchange_turns(args, p, room, line, turns);
    } else {
#pragma unroll 1
        for (int s = 0; s < AHEAD; s++)
            fill(args, p, s);
        row_turns(args, p, room, group, turns);
    }
    copy_async_wait<0>();
}
