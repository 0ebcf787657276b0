/* A part of strips.cu: how dsum comes to the backward of a strip, which adds it to dx. It waits nowhere but in the L2
 * and, for a few steps at a time, in registers. */

/* Asks for what the block will read of it to be brought to the L2, while it finds its sums: of each pixel a run of
 * bytes. */
__device__ __forceinline__ void prefetch_dsum(const groups_args &args, const strip_place &p) {
    constexpr int B = bytes_of(DSUM_TYPE);
    const i64 first = ((i64)p.first * COLS + p.group * DEPTH) * B;
    const char *from = (const char *)args.dsum + p.image * args.dsum_image + first;
    for (int pixel = threadIdx.x; pixel < p.pixels; pixel += THREADS)
        prefetch_run(from + (i64)pixel * COLS * B, p.groups * DEPTH * B);
}

/* write_steps() of what takes a step's chunk of dsum, too: write(k, chunk). */
template <typename step_writer, typename part_taker>
__device__ __forceinline__ void write_steps_with_dsum(const groups_args &args, const strip_place &p,
                                                      const filling &next, const step_writer &write,
                                                      const part_taker &take) {
    constexpr int ASKED = DSUM_BYTES > 8 || COOPERATIVE ? 2 : 4;
    const char *from = (const char *)args.dsum + p.image * args.dsum_image + first_byte<DSUM_TYPE>(p);
    const int held = held_of(p), steps = COOPERATIVE ? most(held, held_of(next.p)) : held;
#pragma unroll 1
    for (int part = 0; part < (COOPERATIVE ? PARTS : 1); part++) {
        const int end = COOPERATIVE ? least(steps, (part + 1) * PART) : steps;
#pragma unroll 1
        for (int k = part * PART; k < end; k += ASKED) {
            chunk<DSUM_BYTES> s[ASKED];
#pragma unroll
            for (int j = 0; j < ASKED; j++)
                if (k + j < least(end, held))
                    s[j] = load_chunk<DSUM_BYTES, DSUM_ACCESS>(from + (i64)(k + j) * STEP * COLS *
                                                                          bytes_of(DSUM_TYPE));
#pragma unroll
            for (int j = 0; j < ASKED; j++) {
                if (k + j < least(end, held))
                    write(k + j, s[j]);
                if (COOPERATIVE && k + j < end)
                    next.ask(k + j);
            }
        }
        if (COOPERATIVE)
            take_part_before(part, take);
    }
}

/* The chunk of a loose step. */
__device__ __forceinline__ chunk<DSUM_BYTES> loose_dsum(const groups_args &args, const strip_place &p, int k) {
    const char *from = (const char *)args.dsum + p.image * args.dsum_image + first_byte<DSUM_TYPE>(p);
    return load_chunk<DSUM_BYTES, DSUM_ACCESS>(from + (i64)k * STEP * COLS * bytes_of(DSUM_TYPE));
}
