/* A part of forward.cu: rows in a warp, a block or a cluster. */

/* As they are given, or found, which saves them. */
__device__ __forceinline__ row_moments moments_of_row(const row_args &args, place &p, i64 row,
                                                      row_reader &reader) {
    if constexpr (MOMENTS_GIVEN)
        return given_moments(args, row, reader.there);
    const row_moments m = moments_of(p, reader, row, args);
    if (reader.there && p.rank == 0)
        save_moments(args, row, m);
    return m;
}

/* Nothing is under way any more, nor read by another block. */
__device__ __forceinline__ void end_of_rows() {
    if (COPIES)
        copy_async_wait<0>();
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

__device__ __forceinline__ void block_rows(const row_args &args, place &p) {
    const i64 team = WITHIN_WARP ? (i64)ROW_BLOCK(args) * WARPS + p.warp : ROW_BLOCK(args) / CLUSTER;
    i64 unit_row = team * STEP;                                    /* the team's first row */
    i64 row = unit_row + (WITHIN_WARP ? p.lane / WARP_LANES : 0); /* this thread's */
    char *y = (char *)args.y + (LEVELLED ? 0 : row * args.y_stride) + (i64)p.rank * Y_BYTES;
    p.next_row = row;
    p.next_x = (const char *)args.x + (LEVELLED ? 0 : row * args.x_stride) + (i64)p.rank * X_BYTES;
    wait_for_stream();
    release_stream();
    if constexpr (HOLD == HOLD_IN_REGISTERS && RING_SLOTS > 0) {
#pragma unroll
        for (int s = 0; s < RING_SLOTS; s++)
            fill(args, p, s);
    }
    if (CLUSTER > 1)
        cluster_wait();

    int ring_slot = 0;
    for (; unit_row < args.rows; unit_row += args.row_turn, row += args.row_turn) {
        row_reader reader[ROWS];
        const char *here = (const char *)args.x + row * args.x_stride + (i64)p.rank * X_BYTES;
        if constexpr (HOLD == HOLD_IN_SHARED) {
            fill(args, p, 0);
            copy_async_wait<0>();
        } else if constexpr (RING_SLOTS > 0) {
            copy_async_wait<most(RING_SLOTS - 1, 0)>();
        }
#pragma unroll
        for (int u = 0; u < ROWS; u++) {
            row_reader &r = reader[u];
            r.there = !p.idle && row + u * PER_WARP < args.rows;
            r.first = here + u * PER_WARP * args.x_stride;
            if constexpr (LEVELLED)
                r.first = begun(args, p, row + u * PER_WARP);
            r.slot = p.slot(0, u, 0);
            r.first_channel = first_channel_of(row + u * PER_WARP);
            if constexpr (HOLD == HOLD_IN_REGISTERS) {
#pragma unroll
                for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
                    if constexpr (RING_SLOTS > 0) {
                        r.held[k] = load_from_shared<X_BYTES>(p.slot(ring_slot, u, k));
                    } else {
                        r.held[k] = zero_chunk<X_BYTES>();
                        if (r.there && p.has(k))
                            r.held[k] =
                                load_chunk<X_BYTES, X_ACCESS>(r.first + k * (SPREAD * X_BYTES));
                    }
                }
            }
        }
        if constexpr (HOLD == HOLD_IN_REGISTERS && RING_SLOTS > 0) {
            fill(args, p, ring_slot);
            ring_slot = ring_slot + 1 == RING_SLOTS ? 0 : ring_slot + 1;
        }
        affine early;
        if constexpr (HELD_EARLY)
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                if (!p.idle && p.has(k))
                    load_affine(args, p, k, early.weight[k], early.bias[k]);
        row_moments moments[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; u++)
            moments[u] = moments_of_row(args, p, row + u * PER_WARP, reader[u]);
        if constexpr (MOMENTS_ALONE)
            continue;
        if constexpr (LEVELLED) {
            apply(args, p, bases_of_rows<ROWS>(args.levels, y, row, PER_WARP, args.y_stride, args.y_jump), early,
                  reader, moments);
        } else {
            apply(args, p, y, early, reader, moments);
            y += args.y_turn;
        }
    }
    end_of_rows();
}
