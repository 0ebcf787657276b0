/*
 * A part of strips.cu: the mail by which the blocks of a strip tell each other their sums of a group:
 * between the shared memories of a cluster, or through global memory.
 */
struct mailbox {
    u64 byte_barriers[2];
};

/* Entries of a group, one of each block: in a cluster, in shared memory. The next round's take their place. */
__device__ __forceinline__ message (*entries_of(int group))[4] {
    message(*all)[4] = (message(*)[4])(dynamic_shared + MAIL_AT);
    return all + group * CLUSTER;
}

/* Blocks anywhere on the device post theirs in global memory. A word has 32 bits of the last two
 * values, 16 of the first, and 16 that say which round it is of; there is room for two rounds, as
 * nobody posts a third before all have taken the first. */
constexpr int HALVES = sizeof(message) / 4;
constexpr int WORDS = 2 * HALVES;
constexpr i64 LINE_WORDS = (i64)2 * STRIP_GROUPS * BLOCKS * WORDS;

__device__ __forceinline__ u64 *post_of(const groups_args &args, u32 round, int group, int block) {
    const i64 entry = ((i64)(round % 2) * STRIP_GROUPS + group) * BLOCKS + block;
    return args.mail + blockIdx.x / COOPERATING_BLOCKS * LINE_WORDS + entry * WORDS;
}
__device__ __forceinline__ u64 mark_of(u32 round) { return round % 0xffff + 1; }
__device__ __forceinline__ u64 bits_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ u64 bits_of(double v) { return (u64)__double_as_longlong(v); }
__device__ __forceinline__ void from_bits(u64 bits, float &v) { v = __uint_as_float((u32)bits); }
__device__ __forceinline__ void from_bits(u64 bits, double &v) {
    v = __hiloint2double((int)(u32)(bits >> 32), (int)(u32)bits);
}

__device__ __forceinline__ void post_mail(u64 *to, u32 round, const message *v) {
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const u64 value = bits_of(v[1 + j / HALVES]) >> 32 * (j % HALVES) & 0xffffffffu;
        post_word(to + j, mark_of(round) << 48 | (bits_of(v[0]) >> 16 * j & 0xffff) << 32 | value);
    }
}

/* Looks whether an entry is there. */
__device__ __forceinline__ bool look_at_post(const u64 *from, u32 round, u64 *word) {
    bool all = true;
#pragma unroll
    for (int j = 0; j < WORDS; j += 2) {
        look_at_words(from + j, word[j], word[j + 1]);
        all = all && word[j] >> 48 == mark_of(round) && word[j + 1] >> 48 == mark_of(round);
    }
    return all;
}

__device__ __forceinline__ void read_post(const u64 *word, message *v) {
    u64 bits[3];
    bits[0] = bits[1] = bits[2] = 0;
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        bits[0] |= (word[j] >> 32 & 0xffff) << 16 * j;
        bits[1 + j / HALVES] |= (word[j] & 0xffffffffu) << 32 * (j % HALVES);
    }
#pragma unroll
    for (int j = 0; j < 3; j++)
        from_bits(bits[j], v[j]);
}

/* Before anybody posts: no mark of an earlier launch is left. */
__device__ __forceinline__ void clear_mail(const groups_args &args, const strip_place &p) {
    for (int i = threadIdx.x; i < 2 * STRIP_GROUPS * WORDS; i += THREADS) {
        const int entry = i / WORDS;
        post_word(post_of(args, entry / STRIP_GROUPS, entry % STRIP_GROUPS, p.rank) + i % WORDS, 0);
    }
    grid_barrier(THREADS);
}

__device__ __forceinline__ void expect_mail(mailbox &m, const strip_place &p, u32 round) {
    if (CLUSTER > 1 && threadIdx.x == 0)
        byte_barrier_expect(shared_address(m.byte_barriers + (round & 1)),
                            p.groups * CLUSTER * MESSAGE_BYTES);
}

/* SEND lanes add up what a block has of a group and send it: as many as there are entries, up to a
 * warp. */
constexpr int ENTRIES = WARPS * GROUP_COLUMNS;
constexpr int SEND = least(WARP, round_to_power(FORWARD ? ENTRIES : DEPTH));

/* SEND neighbouring lanes, of which this is the `lane`th, give three values of a group to every
 * block. */
__device__ __forceinline__ void send_mail(const groups_args &args, mailbox &m, const strip_place &p,
                                          int group, u32 round, int lane, double a, double b,
                                          double c) {
    const message mine[4] = {(message)a, (message)b, (message)c, 0};
    if constexpr (COOPERATIVE) {
        if (lane == 0)
            post_mail(post_of(args, round, group, p.rank), round, mine);
    } else {
        message *const to = entries_of(group)[p.rank];
        for (int block = lane; block < CLUSTER; block += SEND)
            send_to_block(shared_address(to), shared_address(m.byte_barriers + (round & 1)), block, mine);
    }
}

__device__ __forceinline__ void wait_for_mail(mailbox &m, u32 round) {
    if (CLUSTER > 1)
        byte_barrier_wait(shared_address(m.byte_barriers + (round & 1)), round >> 1 & 1);
}

/* MERGE lanes add up what the blocks sent of a group. */
constexpr int MERGE = least(WARP, round_to_power(BLOCKS));
constexpr int MERGE_EACH = ceil_div(BLOCKS, MERGE);

struct taken {
    message v[MERGE_EACH][3];

    __device__ __forceinline__ taken(const groups_args &args, const strip_place &p, int group,
                                     u32 round, int lane) {
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++)
            v[e][0] = v[e][1] = v[e][2] = 0;
        if constexpr (COOPERATIVE) {
            wait_for_posts(args, p, group, round, lane);
            return;
        }
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++) {
            const int block = lane + e * MERGE;
            if (group >= p.groups || block >= BLOCKS)
                continue;
#pragma unroll
            for (int j = 0; j < 3; j++)
                v[e][j] = entries_of(group)[block][j];
        }
    }
    /* Looks at all of a lane's entries together, until all are there. */
    __device__ __forceinline__ void wait_for_posts(const groups_args &args, const strip_place &p, int group,
                                                   u32 round, int lane) {
        u64 word[MERGE_EACH][WORDS];
        if (group >= p.groups)
            return;
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int e = 0; e < MERGE_EACH; e++)
                if (lane + e * MERGE < BLOCKS)
                    all &= look_at_post(post_of(args, round, group, lane + e * MERGE), round, word[e]);
        }
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++)
            if (lane + e * MERGE < BLOCKS)
                read_post(word[e], v[e]);
    }
    __device__ __forceinline__ double sum(int j, int lane) const {
        double all = 0;
#pragma unroll
        for (int e = 0; e < MERGE_EACH; e++)
            all += (double)v[e][j];
        return sum_over_lanes<MERGE>(all, lane);
    }
};
