/* A part of vocabulary.cu: blocks that run at the same time (cooperative launch), and words of memory
 * that others write, too. */

/* The largest word of a warp's lanes, in all of them. */
__device__ __forceinline__ u32 largest_of_warp(u32 v) {
    u32 most;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(v));
    return most;
}

/* Asks for a line of 128 bytes to be brought to the L2. */
__device__ __forceinline__ void prefetch_line(const char *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

/* Asks for the lines of bytes that will be read, ahead of loads that wait in registers: thread `rank` of `count` that
 * do. */
__device__ __forceinline__ void prefetch_run(const char *from, int bytes, int rank = 0, int count = 1) {
    for (int at = rank * 128; at < bytes; at += count * 128)
        prefetch_line(from + at);
}

/* Makes a word of memory at least v, whoever else does so. */
__device__ __forceinline__ void raise_to(u32 *address, u32 v) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
/* A word that other blocks may raise: what it was lately. */
__device__ __forceinline__ u32 latest_word(const u32 *address) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}

/* The word that the driver keeps for the barriers of a cooperative launch, as cooperative groups
 * have it: private to the launch, its lower 31 bits 0 whenever no barrier is under way. */
__device__ __forceinline__ u32 *grid_barrier_word() {
    u32 high, low;
    asm("mov.u32 %0, %%envreg1;" : "=r"(high));
    asm("mov.u32 %0, %%envreg2;" : "=r"(low));
    return (u32 *)((u64)high << 32 | low) + 1;
}
__device__ __forceinline__ u32 add_and_release(u32 *address, u32 v) {
    u32 before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(v)
                 : "memory");
    return before;
}
__device__ __forceinline__ u32 load_and_acquire(const u32 *address) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}
/* One thread of every block of a cooperative launch waits for the others. The first block adds what
 * the others leave to 2^31, so that the top bit turns when all are there and the other bits are as
 * they were. */
__device__ __forceinline__ void meet_other_blocks() {
    u32 *word = grid_barrier_word();
    const u32 before = add_and_release(word, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1);
    while (((before ^ load_and_acquire(word)) & 0x80000000u) == 0)
        ;
}
/* Waits for every block, of which `threads` threads or one warp call; what these wrote before is
 * seen after. */
__device__ __forceinline__ void grid_barrier(int threads) {
    barrier(0, threads);
    if (threadIdx.x == 0)
        meet_other_blocks();
    barrier(0, threads);
}
__device__ __forceinline__ void grid_barrier_of_warp(int lane) {
    __syncwarp();
    if (lane == 0)
        meet_other_blocks();
    __syncwarp();
}

/* Words that running blocks hand to each other. Each is read and written at once, so one that holds
 * a value and the turn it belongs to needs no flag and no order among words. */
__device__ __forceinline__ void post_word(u64 *address, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}
__device__ __forceinline__ void look_at_words(const u64 *address, u64 &a, u64 &b) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(address)
                 : "memory");
}
/* Half a value and its turn in one word. */
__device__ __forceinline__ void post(u64 *to, u32 turn, float v) {
    post_word(to, (u64)turn << 32 | __float_as_uint(v));
}
__device__ __forceinline__ void post(u64 *to, u32 turn, double v) {
    const u64 bits = (u64)__double_as_longlong(v);
    post_word(to, (u64)turn << 32 | (u32)bits);
    post_word(to + 1, (u64)turn << 32 | bits >> 32);
}
__device__ __forceinline__ void posted(const u64 *word, float &v) {
    v = __uint_as_float((u32)word[0]);
}
__device__ __forceinline__ void posted(const u64 *word, double &v) {
    v = __hiloint2double((int)(u32)word[1], (int)(u32)word[0]);
}

/*
 * A line that three values of each of COUNT blocks go through, turn after turn: room for LINE turns,
 * one entry of a turn for each block. A lane takes every WARP-th entry. The first two words of all
 * entries lie together, then the next two, so that a warp which looks at them reads whole sectors.
 */
template <typename T, int COUNT, int LINE> struct mail {
    static constexpr int WORDS = sizeof(T) == 4 ? 4 : 6; /* of an entry; whole pairs */
    static constexpr int HALVES = sizeof(T) / 4;
    static constexpr int EACH = ceil_div(COUNT, WARP);
    static constexpr i64 ALL_WORDS = (i64)LINE * COUNT * WORDS;

    u64 word[EACH][WORDS];

    __device__ __forceinline__ static u64 *entry(u64 *line, i64 turn, int block) {
        return line + (i64)((u32)turn % LINE) * (COUNT * WORDS) + 2 * block;
    }
    /* Of a word, from its entry on. */
    __device__ __forceinline__ static int place(int word) { return word / 2 * (2 * COUNT) + word % 2; }
    __device__ __forceinline__ static u32 mark(i64 turn) { return (u32)turn + 1; }

    /* Before the grid's first barrier: no mark of an earlier launch is left. One warp calls. */
    __device__ __forceinline__ static void clear(u64 *line, int block, int lane) {
        for (int i = lane; i < LINE * WORDS; i += WARP)
            post_word(entry(line, i / WORDS, block) + place(i % WORDS), 0);
    }
    __device__ __forceinline__ static void send(u64 *line, i64 turn, int block, const T *v) {
        u64 *to = entry(line, turn, block);
#pragma unroll
        for (int j = 0; j < 3; j++)
            post(to + place(j * HALVES), mark(turn), v[j]);
    }
    /* Waits for a block's entry and adds it. */
    __device__ __forceinline__ static void add_from(u64 *line, i64 turn, int block, T *v) {
        u64 word[WORDS];
        const u64 *from = entry(line, turn, block);
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int j = 0; j < WORDS; j += 2)
                look_at_words(from + place(j), word[j], word[j + 1]);
#pragma unroll
            for (int j = 0; j < 3 * HALVES; j++)
                all = all && (u32)(word[j] >> 32) == mark(turn);
        }
#pragma unroll
        for (int j = 0; j < 3; j++) {
            T one;
            posted(word + j * HALVES, one);
            v[j] += one;
        }
    }
    __device__ __forceinline__ void look_at(u64 *line, i64 turn, int e, int lane) {
        u64 *from = entry(line, turn, e * WARP + lane);
#pragma unroll
        for (int j = 0; j < WORDS; j += 2)
            look_at_words(from + place(j), word[e][j], word[e][j + 1]);
    }
    /* Asks for a turn's entries; nothing waits for them yet. */
    __device__ __forceinline__ void ask(u64 *line, i64 turn, int lane) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (e * WARP + lane < COUNT)
                look_at(line, turn, e, lane);
    }
    /* Whether entry e of this lane has come, if there is one. */
    __device__ __forceinline__ bool has_come(i64 turn, int e, int lane) const {
        bool all = true;
#pragma unroll
        for (int j = 0; j < 3 * HALVES; j++)
            all = all && (u32)(word[e][j] >> 32) == mark(turn);
        return all || e * WARP + lane >= COUNT;
    }
    /* Waits for this lane's entries. All that have not come are looked at again at once: a look takes a trip to the
     * L2, behind what the multiprocessor asked for before. */
    __device__ __forceinline__ void wait(u64 *line, i64 turn, int lane) {
        for (bool all = false; !all;) {
            bool come[EACH];
            all = true;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                come[e] = has_come(turn, e, lane);
                all = all && come[e];
            }
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (!come[e])
                    look_at(line, turn, e, lane);
        }
        __syncwarp();
    }
    /* Takes entry e of this lane, which has come; false past the last. */
    __device__ __forceinline__ bool take(int e, int lane, T *v) const {
        if (e * WARP + lane >= COUNT)
            return false;
#pragma unroll
        for (int j = 0; j < 3; j++)
            posted(word[e] + j * HALVES, v[j]);
        return true;
    }
};
