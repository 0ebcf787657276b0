/* A part of backward.cu: rows over COOPERATING_BLOCKS blocks. */

/* As in forward_cooperative.cu. */
constexpr int LINE = 2 * DELAY + 2;
/* The row that is put out next waits in registers, so that its slot is filled a turn earlier. */
constexpr bool HELD = HOLD == HOLD_THE_NEXT;
constexpr int AHEAD = most(RING_SLOTS - DELAY + HELD, 1);
typedef mail<real, COOPERATING_BLOCKS, LINE> cooperative_mail;

struct cooperative_room {
    entry slots[2][WARPS], sums[2];
};

/* The extra warp: the sums of the rows whose output is next, and those of the newest row. */
__device__ __forceinline__ void exchange_turns(const team_state &t, cooperative_room &room, u64 *line,
                                               int member) {
    const int turns = t.turns[0];
    cooperative_mail m;
    for (int turn = 0; turn < turns + DELAY; turn++) {
        if (turn >= DELAY) {
            real sum[3] = {0, 0, 0};
            m.wait(line, turn - DELAY, t.lane);
#pragma unroll
            for (int e = 0; e < cooperative_mail::EACH; e++) {
                real v[3] = {0, 0, 0};
                m.take(e, t.lane, v);
#pragma unroll
                for (int j = 0; j < 3; j++)
                    sum[j] += v[j];
            }
            sum_in_warp(t, sum);
            if (t.lane == 0)
                room.sums[turn & 1] = {sum[0], sum[1], sum[2], 0};
        }
        if (turn + 1 >= DELAY && turn + 1 < turns + DELAY)
            m.ask(line, turn + 1 - DELAY, t.lane);
        barrier(1, ALL_THREADS);
        if (turn < turns) {
            real sum[4];
            add_entries<WARPS>(t, shared_address(&room.slots[turn & 1][0]), sum);
            if (t.lane == 0)
                cooperative_mail::send(line, turn, member, sum);
        }
    }
}

/* The saved statistics of a group's row of turn `turn`: addresses made anew take no registers between turns. */
__device__ __forceinline__ void statistics_of_turn(const row_args &args, i64 row, int turn,
                                                   stored_mean *mean, stored_rstd *rstd) {
    if (LAYER)
        *mean = load_mean((const char *)args.mean + row * args.mean_stride + turn * args.mean_turn);
    if (rstd)
        *rstd = load_rstd((const char *)args.rstd + row * args.rstd_stride + turn * args.rstd_turn);
}

/* dsum of the row put out next: asked for a turn before it is used. */
template <bool THERE> struct held_dsum : no_dsum {
    __device__ __forceinline__ void ask(const row_args &, const team_state &, i64, int) {}
};
template <> struct held_dsum<true> {
    enum { AT_ONCE = 1 };
    chunk<DSUM_BYTES> held[CHUNKS_PER_THREAD];
    __device__ __forceinline__ chunk<DSUM_BYTES> at(const team_state &, int k) const { return held[k]; }
    __device__ __forceinline__ void ask(const row_args &args, const team_state &t, i64 row, int turn) {
        const dsum_in_memory from = {(const char *)args.dsum + row * args.dsum_stride +
                                         turn * args.dsum_turn + (i64)t.rank * DSUM_BYTES,
                                     true};
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            held[k] = from.at(t, k);
    }
};

/* The other warps: the sums of the newest row, and the output of an older one. */
__device__ __forceinline__ void row_turns(const row_args &args, team_state &t, cooperative_room &room,
                                          int member, i64 row) {
    const int turns = t.turns[0];
    operands o, held;
    int newest = 0, next = AHEAD % most(RING_SLOTS, 1); /* slots; the next is that of the row put out */
    thread_weights weights;
    weights.load(args, t);
    real dweight[CHUNKS_PER_THREAD][WIDTH] = {}, dbias[CHUNKS_PER_THREAD][WIDTH] = {};
    /* Statistics come a turn before they are used. */
    stored_mean next_mean = 0, mean = 0;
    held_dsum<HAS_DSUM> dsum;
    stored_rstd rstd = 0;
    if (turns > 0)
        statistics_of_turn(args, row, 0, &next_mean, nullptr);
    for (int turn = 0; turn < turns + DELAY; turn++) {
        weights.forget_all(args.zero);
        if (turn < turns) {
            real sum[4];
            const real now = (real)next_mean;
            if (turn + 1 < turns)
                statistics_of_turn(args, row, turn + 1, &next_mean, nullptr);
            copy_async_wait<AHEAD - 1>();
            take(t, newest, o);
            thread_sums(t, row_in_registers{o, 0}, weights, now, sum);
            store_warp_sums(t, sum, shared_address(&room.slots[turn & 1][threadIdx.x / WARP]));
            newest = newest + 1 == RING_SLOTS ? 0 : newest + 1;
        }
        barrier(1, ALL_THREADS);
        if (turn >= DELAY) {
            const entry s = room.sums[turn & 1];
            const row_factors f = factors_of(args, s.sum, mean, (real)rstd);
            char *dx = (char *)args.dx + row * args.dx_stride + (turn - DELAY) * args.dx_turn +
                       (i64)t.rank * (WIDTH * bytes_of(WANT_DX ? DX_TYPE : F32));
            if constexpr (HELD)
                row_output(t, row_in_registers{held, 0}, weights, f, dweight, dbias, dx_in_memory{dx, true}, dsum);
            else
                row_output(t, row_in_ring{t, next}, weights, f, dweight, dbias, dx_in_memory{dx, true}, dsum);
        }
        if (turn + 1 >= DELAY && turn + 1 < turns + DELAY) {
            statistics_of_turn(args, row, turn + 1 - DELAY, &mean, &rstd);
            dsum.ask(args, t, row, turn + 1 - DELAY);
            if (HELD)
                take(t, next, held);
        }
        fetch(args, t, turn + AHEAD, next, o);
        next = next + 1 == RING_SLOTS ? 0 : next + 1;
    }
    copy_async_wait<0>();
    write_column_sums(args, t, dweight, dbias, member);
}

__device__ __forceinline__ void cooperative_rows(const row_args &args, team_state &t) {
    __shared__ __align__(16) cooperative_room room;
    const i64 group = blockIdx.x / COOPERATING_BLOCKS;
    const int member = blockIdx.x % COOPERATING_BLOCKS;
    u64 *line = args.mail + group * cooperative_mail::ALL_WORDS;
    const bool exchanger = threadIdx.x >= THREADS;
    release_stream();
    wait_for_stream();
    if (exchanger) {
        cooperative_mail::clear(line, member, t.lane);
        grid_barrier_of_warp(t.lane);
        exchange_turns(t, room, line, member);
    } else {
        operands o;
#pragma unroll 1
        for (int s = 0; s < AHEAD; s++)
            fetch(args, t, s, s, o);
        row_turns(args, t, room, member, group);
    }
}
