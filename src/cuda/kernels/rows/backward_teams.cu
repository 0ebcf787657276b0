/* A part of backward.cu: rows in a warp, a team or a cluster. */

__device__ __forceinline__ void meet_cluster() {
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

/* Makes the rooms of a cluster's exchanges; no block is to send before all have made theirs. */
__device__ __forceinline__ void begin_exchanges(turn_room (*rooms)[WITHIN_WARP ? 1 : TEAMS]) {
    if (CLUSTER > 1) {
        if (threadIdx.x < 2 * TEAMS)
            byte_barrier_init(
                shared_address(&rooms[threadIdx.x / TEAMS][threadIdx.x % TEAMS].byte_barrier));
        meet_cluster();
    }
}

/* Where dsum of row u of a turn is. */
__device__ __forceinline__ auto dsum_of(const row_args &args, const team_state &t, int turn,
                                        int ring_slot, int u) {
    if constexpr (!HAS_DSUM)
        return no_dsum{};
    else if constexpr (RING_HAS_DSUM)
        return dsum_in_ring{ring_slot, u};
    else
        return dsum_in_memory{t.next_s + u * PER_WARP * args.dsum_stride, turn < t.turns[u]};
}

/* Waits for a turn's rows and takes them out of their slot, into which a later turn's are fetched; they stay there
 * where they are read AGAIN. */
__device__ __forceinline__ void take_turn(const row_args &args, team_state &t, int turn, int ring_slot, operands &o) {
    if constexpr (RINGED)
        copy_async_wait<most(RING_SLOTS - 1, 0)>();
    if constexpr (RINGED && !AGAIN)
        take(t, ring_slot, o);
    if constexpr (!AGAIN)
        fetch(args, t, turn + RING_SLOTS, ring_slot, o);
}

/* Fetches what waits for a turn's output to be done with its slot. */
__device__ __forceinline__ void leave_slot(const row_args &args, team_state &t, int turn, int ring_slot, operands &o) {
    if constexpr (AGAIN)
        fetch(args, t, turn + RING_SLOTS, ring_slot, o);
    fetch_dsum(args, t, turn + RING_SLOTS, ring_slot);
    if constexpr (HAS_DSUM && !RING_HAS_DSUM)
        t.next_s += args.dsum_turn;
}

/* The statistics that were asked for, of the turn that they are now wanted for. */
__device__ __forceinline__ void take_statistics(const stored_mean *next_mean, const stored_rstd *next_rstd,
                                                stored_mean *mean, real *rstd) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        mean[u] = next_mean[u];
        rstd[u] = (real)next_rstd[u];
    }
}

/* The sums of a turn's rows, over all threads that share them. */
__device__ __forceinline__ void sums_of_turn(const team_state &t, int turn, int ring_slot, const operands &o,
                                             const gradients &dz, const thread_weights &weights,
                                             const stored_mean *mean, u32 room, u32 block_rank, real (*sum)[4]) {
#pragma unroll
    for (int u = 0; u < ROWS; u++)
        if (SUMS) {
            if constexpr (AGAIN)
                thread_sums(t, row_in_ring{t, ring_slot}, weights, mean[u], sum[u]);
            else if constexpr (ACTIVE)
                thread_sums(t, row_behind_activation{o, dz, u}, weights, mean[u], sum[u]);
            else
                thread_sums(t, row_in_registers{o, u}, weights, mean[u], sum[u]);
            exchange(t, sum[u], room, block_rank, EXCHANGES * turn + EXCHANGES - 1);
        } else {
            sum[u][0] = sum[u][1] = sum[u][2] = 0;
        }
}

/* The output of row u of a turn, which is read where its sums have read it. */
template <typename dsum_source>
__device__ __forceinline__ void output_of_row(const team_state &t, int ring_slot, const operands &o,
                                              const gradients &dz, int u, const thread_weights &weights,
                                              const row_factors &f, real (*dweight)[WIDTH], real (*dbias)[WIDTH],
                                              const dx_in_memory &to, const dsum_source &dsum) {
    if constexpr (AGAIN)
        row_output(t, row_in_ring{t, ring_slot}, weights, f, dweight, dbias, to, dsum);
    else if constexpr (ACTIVE)
        row_output(t, row_behind_activation{o, dz, u}, weights, f, dweight, dbias, to, dsum);
    else
        row_output(t, row_in_registers{o, u}, weights, f, dweight, dbias, to, dsum);
}

/* Turns are the block's: a team without rows takes zeros, so that all meet at the end at once. */
__device__ __forceinline__ void team_rows(const row_args &args, team_state &t, i64 row,
                                          int block_turns, u32 block_rank) {
    __shared__ turn_room rooms[2][WITHIN_WARP ? 1 : TEAMS];
    begin_exchanges(rooms);
    u32 room = shared_address(&rooms[0][WITHIN_WARP ? 0 : t.team]);
    const u32 both_rooms = 2 * room + TEAMS * (u32)sizeof(turn_room);
    char *dx = (char *)args.dx + (LEVELLED ? 0 : row * args.dx_stride) +
               (i64)t.rank * (WIDTH * bytes_of(WANT_DX ? DX_TYPE : F32));

    release_stream();
    wait_for_stream();
    thread_weights weights;
    weights.load(args, t);
    thread_bias bias;
    bias.load(args, t);
    real dweight[CHUNKS_PER_THREAD][WIDTH] = {}, dbias[CHUNKS_PER_THREAD][WIDTH] = {};

    operands o;
    gradients dz;
#pragma unroll
    for (int s = 0; s < RING_SLOTS; s++) {
        fetch(args, t, s, s, o);
        fetch_dsum(args, t, s, s);
    }
    stored_mean next_mean[ROWS];
    stored_rstd next_rstd[ROWS];
    statistics_of(args, t, 0, next_mean, next_rstd);
    row_halves halves;
    halves.begin(args, row);
    halves.ask(args, t, 0);

    int ring_slot = 0;
    for (int turn = 0; turn < block_turns; turn++) {
        take_turn(args, t, turn, ring_slot, o);
        stored_mean mean[ROWS];
        real rstd[ROWS], sum[ROWS][4];
        take_statistics(next_mean, next_rstd, mean, rstd);
        statistics_of(args, t, turn + 1, next_mean, next_rstd);
        halves.take();
        halves.ask(args, t, turn + 1);
        weights.forget_all(args.zero);
        if constexpr (ACTIVE) {
            bias.forget_all(args.zero);
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                const real rest = rest_of_row(t, o, u, mean[u], room, block_rank, turn);
                through_activation_of_row(t, o, u, weights, bias, (real)mean[u], rest, rstd[u], dz);
            }
            if (MEAN_FIRST)
                room = both_rooms - room;
        }
        sums_of_turn(t, turn, ring_slot, o, dz, weights, mean, room, block_rank, sum);
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            const row_factors f = halves.factors(args, u, sum[u], mean[u], rstd[u]);
            halves.put(args, t, turn, u, sum[u], mean[u], rstd[u]);
            dx_in_memory to = {dx + u * PER_WARP * args.dx_stride, turn < t.turns[u]};
            if constexpr (LEVELLED)
                to.first = dx + row_begin(args.levels, row + u * PER_WARP, args.dx_stride, args.dx_jump);
            const auto rest = dsum_of(args, t, turn, ring_slot, u);
            output_of_row(t, ring_slot, o, dz, u, weights, f, dweight, dbias, to, rest);
        }
        leave_slot(args, t, turn, ring_slot, o);
        ring_slot = ring_slot + 1 >= RING_SLOTS ? 0 : ring_slot + 1;
        room = both_rooms - room;
        halves.go_on(args);
        if (LEVELLED)
            row += args.row_turn;
        else
            dx += args.dx_turn;
    }
    copy_async_wait<0>();
    write_column_sums(args, t, dweight, dbias, block_rank);
    meet_cluster();
}
