/* Chunks and lanes of a row. */
#include "cuda/common/lanes.h"

#include "cuda/common/integers.h"

int in_warps(int chunks, int vecs) {
    return WARP * ceil_div(chunks, WARP * vecs);
}

int chunk_width(int64_t cols, int bytes, int most_elements) {
    int width = least(16 / bytes, most_elements);
    while (cols % width)
        width /= 2;
    return width;
}

int lanes_within_warp(int chunks, int width, int chunk_bytes, int most_elements, int roomy,
                      int fixed, int each, int *vecs) {
    int fewest = least(chunks, least(WARP, ceil_div(SEGMENT_BYTES, chunk_bytes)));
    int best = 0;
    double best_cost = 0;
    for (int lanes = fewest; lanes <= WARP; lanes++) {
        int v = ceil_div(chunks, lanes);
        if (v * width > most_elements || (v > 1 && (v - 1) * lanes >= chunks))
            continue;
        double uneven = lanes & (lanes - 1) ? 1.1 : 1.0; /* longer trees */
        /* Many columns in a thread take its registers, and so warps. */
        double crowded = v * width <= roomy ? 1 : v * width <= roomy * 3 / 2 ? 1.15 : 1.125;
        const int rows_of_warp = WARP / lanes;
        double cost = crowded * (fixed * uneven + each * v * width) / rows_of_warp;
        if (!best || cost < best_cost) {
            best = lanes;
            best_cost = cost;
            *vecs = v;
        }
    }
    return best;
}

int lanes_of_block(int chunks, int width, int cluster, int most_elements, int most_lanes,
                   int *vecs) {
    int most_vecs = most(1, most_elements / width);
    int fewest = ceil_div(chunks, cluster * most_vecs * WARP), best = 0;
    double best_cost = 0;
    for (int warps = most(fewest, 1); warps <= most_lanes / WARP && warps <= 2 * fewest; warps++) {
        int v = ceil_div(chunks, cluster * warps * WARP);
        double waste = (double)v * cluster * warps * WARP / chunks;
        double cost = waste + 0.01 * (warps - fewest);
        if (!best || cost < best_cost) {
            best = WARP * warps;
            best_cost = cost;
            *vecs = v;
        }
    }
    return best;
}

int run_words(int cols, int lanes) {
    return ceil_div(cols, 2 * lanes) | 1;
}
