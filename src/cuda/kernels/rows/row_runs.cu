/*
 * A part of forward.cu and backward.cu: rows of 16 bits in tiles (row_tiles.cu), of which a lane
 * takes a run of an odd number of 4-byte words (ROWS_IN_RUNS), so that lanes of a row meet in no bank.
 * THREADS_PER_ROW is a power of two.
 *
 * Every second row of an odd length begins inside a word: its words are shifted into place as they
 * are read, RUN + 1 words for RUN, and back as they are written. So a column is the same lane's
 * whatever the row, and the same element of its run.
 *
 * The row may end inside a run. The elements behind its end are whatever lies there; sums are kept
 * in two parts, of the TAIL that this run has and of the others, in place of a mask for each
 * element. Lanes behind that one read what it reads, and add nothing.
 */
constexpr bool RUNS = VARIANT == ROWS_IN_RUNS;
constexpr bool ODD_COLS = COLS % 2 != 0;
constexpr int RUN = RUNS ? ceil_div(COLS, 2 * WARP_LANES) | 1 : 1; /* words */
constexpr int RUN_COLS = 2 * RUN;
constexpr int WHOLE_RUNS = COLS / RUN_COLS, TAIL = COLS % RUN_COLS;
constexpr int LAST_RUN = TAIL ? WHOLE_RUNS : WHOLE_RUNS - 1;
/* Of a tile, with what lanes read behind its end. */
constexpr int TILE_ROOM = RUNS ? ceil_div(TILE_BYTES + 4 * RUN + 4, 16) * 16 : TILE_BYTES;

/* A lane's run of a row in shared memory. */
struct run_place {
    u32 at; /* of the first element, in bytes */
    bool odd, whole, there;

    __device__ __forceinline__ run_place(u32 row, int rank)
        : at(row + least(rank, LAST_RUN) * (RUN_COLS * 2)), odd(ODD_COLS && row & 2),
          whole(rank < WHOLE_RUNS), there(rank <= LAST_RUN) {}
};

__device__ __forceinline__ void load_run(const run_place &p, u32 *word) {
    const u32 first = p.at & ~3u, shift = p.odd ? 16 : 0;
    u32 there[RUN + 1];
#pragma unroll
    for (int j = 0; j < RUN + ODD_COLS; j++)
        there[j] = load_from_shared<4>(first + 4 * j).word[0];
#pragma unroll
    for (int j = 0; j < RUN; j++)
        word[j] = ODD_COLS ? __funnelshift_r(there[j], there[j + 1], shift) : there[j];
}

/* Writes what the row has of the run. A half of a word is written as such: the other half is
 * another lane's, or another row's. */
__device__ __forceinline__ void store_run(const run_place &p, const u32 *word) {
    constexpr int PART = TAIL / 2; /* the word that the row's end is in, or behind */
    const u32 first = p.at & ~3u, shift = p.odd ? 16 : 0;
    if (!p.there)
        return;
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        const chunk<4> c = {
            {ODD_COLS ? __funnelshift_l(j ? word[j - 1] : 0, word[j], shift) : word[j]}};
        if ((j > 0 || !p.odd) && (j < PART || p.whole || (j == PART && p.odd)))
            store_to_shared<4>(first + 4 * j, c);
    }
    if constexpr (ODD_COLS) {
        if (p.odd)
            store_to_shared<2>(p.at, chunk<2>{{word[0]}});
        if (p.odd == p.whole)
            store_to_shared<2>(p.at + 2 * (p.whole ? RUN_COLS - 1 : TAIL - 1),
                               chunk<2>{{p.whole ? word[RUN - 1] >> 16 : word[PART]}});
    }
}

template <int TYPE> __device__ __forceinline__ void run_elements(const u32 *word, real *v) {
#pragma unroll
    for (int i = 0; i < RUN_COLS; i++)
        v[i] = element<TYPE>(word, i);
}

/* Two neighbouring columns of a weight or bias that lies in shared memory as it does in memory. */
template <int TYPE> __device__ __forceinline__ void load_two(u32 array, int column, real *v) {
    const auto c = load_from_shared<2 * bytes_of(TYPE)>(array + column * bytes_of(TYPE));
#pragma unroll
    for (int i = 0; i < 2; i++)
        v[i] = element<TYPE>(c.word, i);
}

/* Starts to bring an array of a row's length to shared memory, in whole pieces. */
template <int TYPE, int ACCESS>
__device__ __forceinline__ void bring_array(const void *from, u32 to) {
    constexpr int BYTES = COLS * bytes_of(TYPE);
    const char *p = (const char *)from;
    if constexpr (TYPE != NONE)
#pragma unroll 1
        for (int at = threadIdx.x * 16; at <= BYTES - 16; at += THREADS * 16)
            copy_in<16, ACCESS>(to + at, p + at, true);
}
/* The elements behind the last whole piece, two bytes a thread: asked for before anything else, so
 * that nobody waits for them by themselves. */
template <int TYPE> struct array_end {
    static constexpr int BYTES = TYPE == NONE ? 0 : COLS * bytes_of(TYPE), PIECES = BYTES / 16 * 16;
    chunk<2> c;

    __device__ __forceinline__ array_end(const void *from) {
        if (PIECES + (int)threadIdx.x * 2 < BYTES)
            c = load_chunk<2, 2>((const char *)from + PIECES + threadIdx.x * 2);
    }
    __device__ __forceinline__ void store(u32 to) const {
        if (PIECES + (int)threadIdx.x * 2 < BYTES)
            store_to_shared<2>(to + PIECES + threadIdx.x * 2, c);
    }
};

/* Room for such an array, with what lanes read behind its end. */
template <int TYPE> struct __align__(16) run_array {
    unsigned char
        bytes[TYPE == NONE ? 16 : ceil_div((LAST_RUN + 1) * RUN_COLS * bytes_of(TYPE), 16) * 16];
};

template <int COUNT> __device__ __forceinline__ real sum_of_some(const real *v) {
    if constexpr (COUNT == 0)
        return 0;
    else
        return tree_sum<COUNT>(v);
}
template <int COUNT>
__device__ __forceinline__ real products_of_some(const real *a, const real *b) {
    constexpr int PARTS = most(least(COUNT, 4), 1);
    real part[PARTS] = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        part[i % PARTS] = i < PARTS ? a[i] * b[i] : multiply_add(a[i], b[i], part[i % PARTS]);
    return tree_sum<PARTS>(part);
}

/* This lane's part of a row's sum, and of a sum of products. */
__device__ __forceinline__ real run_sum(const run_place &p, const real *v) {
    const real has = sum_of_some<TAIL>(v), rest = sum_of_some<RUN_COLS - TAIL>(v + TAIL);
    return p.whole ? has + rest : p.there ? has : 0;
}
__device__ __forceinline__ real run_products(const run_place &p, const real *a, const real *b) {
    const real has = products_of_some<TAIL>(a, b);
    const real rest = products_of_some<RUN_COLS - TAIL>(a + TAIL, b + TAIL);
    return p.whole ? has + rest : p.there ? has : 0;
}
