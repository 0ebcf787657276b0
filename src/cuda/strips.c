/*
 * A strip is some groups wide, so that what it has of a pixel is whole sectors of memory and not
 * fewer than two; a cluster of blocks has its pixels, several blocks to a multiprocessor where that
 * holds.
 */
#include "strips.h"

#include "backend.h"
#include "integers.h"

enum {
    LANES = 32,
    SECTOR = 32,
    STRIP_BYTES = 64,  /* of a pixel in a strip, at least; shorter pieces are slow to read */
    LEAST_PIXELS = 64, /* of an image; below, a block is too little work */
    SOME_BLOCKS = 2,   /* to a multiprocessor, if a cluster of up to SOME_CLUSTER gives that */
    SOME_CLUSTER = 8,
    BLOCK_RESERVE = 1 << 10 /* of shared memory, that a block takes beside its own */
};

static int gcd(int a, int b) {
    return b ? gcd(b, a % b) : a;
}

static bool is_backward(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD;
}

size_t strips_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    const size_t chunks = (size_t)c[C_PIECE] * (size_t)c[C_LANES] * (size_t)c[C_WIDTH];
    const size_t tiles =
        round_up(chunks * (size_t)constant_bytes(c, C_X_TYPE)) +
        (is_backward(c) ? round_up(chunks * (size_t)constant_bytes(c, C_G_TYPE)) : 0);
    /* Sums are of columns in the forward, at most channels. */
    const int depth = c[C_DEPTH], width = c[C_WIDTH];
    const int columns = is_backward(c)       ? c[C_TILE]
                        : depth % width == 0 ? c[C_TILE] / width
                        : width % depth == 0 ? c[C_TILE] / depth
                                             : c[C_TILE];
    const size_t sums = round_up((size_t)(3 * c[C_WARPS] * columns) * sizeof(float));
    const size_t groups = (size_t)(c[C_TILE] / depth);
    return tiles + sums + groups * (2 * 32 * (size_t)c[C_CLUSTER] + 4 * sizeof(float));
}

/* Channels of a strip: the fewest that are whole groups and chunks and STRIP_BYTES, best such that
 * strips are alike and end with a sector; 0 where a warp does not hold a pixel of it. */
static int tile_of(const int32_t *c) {
    const int unit = c[C_DEPTH] / gcd(c[C_DEPTH], c[C_WIDTH]) * c[C_WIDTH];
    const int bytes = constant_bytes(c, C_X_TYPE), widest = least(c[C_COLS], LANES * c[C_WIDTH]);
    int found = 0, best = 0;
    for (int tile = unit; tile <= widest; tile += unit) {
        const int merit = 1 + 2 * (c[C_COLS] % tile == 0) + (tile * bytes % SECTOR == 0);
        const bool wide = tile * bytes >= STRIP_BYTES || tile == c[C_COLS];
        if (wide && merit > best) {
            best = merit;
            found = tile;
        }
    }
    return found;
}

bool strips_geometry(cuda_spec *spec, const struct cuda_limits *limits) {
    cuda_spec made = *spec;
    int32_t *c = made.constant;
    const int64_t room = limits->shared_per_block;
    made.kernel = CUDA_STRIPS;
    c[C_TILE] = tile_of(c);
    if (!c[C_TILE] || c[C_PIXELS] < LEAST_PIXELS)
        return false;
    c[C_LANES] = c[C_TILE] / c[C_WIDTH];
    c[C_PLANES] = LANES / c[C_LANES];
    for (int cluster = 1; cluster <= least(16, limits->max_cluster); cluster *= 2) {
        const int piece = ceil_div(c[C_PIXELS], cluster);
        if ((cluster - 1) * piece >= c[C_PIXELS])
            break;
        c[C_CLUSTER] = cluster;
        c[C_PIECE] = piece;
        c[C_WARPS] = 8;
        const int64_t bytes = (int64_t)strips_shared_bytes(&made) + BLOCK_RESERVE;
        const int64_t fit = (room + BLOCK_RESERVE) / bytes;
        if (fit < 1 || (fit < SOME_BLOCKS && cluster < least(SOME_CLUSTER, limits->max_cluster)))
            continue;
        if (fit == 1)
            c[C_WARPS] = 16;
        const bool whole = c[C_DEPTH] % c[C_WIDTH] == 0;
        const int threads = whole && !is_backward(c) ? 1024 : 768;
        c[C_MIN_BLOCKS] = most(1, least((int)least_i64(fit, 16), threads / (32 * c[C_WARPS])));
        *spec = made;
        return (int64_t)strips_shared_bytes(&made) <= room;
    }
    return false;
}

int64_t strips_blocks(const cuda_spec *spec, int64_t images) {
    const int32_t *c = spec->constant;
    return images * ceil_div(c[C_COLS], c[C_TILE]) * c[C_CLUSTER];
}
