/* What is said here of a specialisation, its kernel says of itself (kernels/channel_tiles.cu): the
 * two change together. */
#include "channels_shape.h"

#include "integers.h"

enum { SPANNING_CHANNELS = 128 }; /* fewest of forward tiles that go on in the next image */

bool channels_is_shifted(const int32_t *c) {
    return c[C_TILE] != c[C_PIXELS] && !c[C_LAST] && c[C_PIXELS] % 2 &&
           constant_bytes(c, C_X_TYPE) == 2 &&
           (c[C_PASS] == PLANISH_FORWARD || constant_bytes(c, C_G_TYPE) == 2);
}

bool channels_is_spanning(const int32_t *c) {
    const int bytes = constant_bytes(c, C_X_TYPE);
    const bool few = c[C_PASS] == PLANISH_FORWARD && c[C_COLS] < SPANNING_CHANNELS;
    return !few && c[C_PIXELS] > c[C_TILE] && c[C_PIXELS] % c[C_TILE] && c[C_CLUSTER] == 1 &&
           !c[C_LAST] && !channels_is_shifted(c) && c[C_PIXELS] * bytes % SECTOR == 0 &&
           c[C_TILE] * bytes % SECTOR == 0;
}

static size_t tile_bytes(const int32_t *c, int element_bytes) {
    const size_t pixels = (size_t)c[C_TILE] * (size_t)element_bytes;
    const size_t channel = channels_is_shifted(c) ? round_up(pixels + 14) : pixels;
    return ((size_t)c[C_DEPTH] * channel + LINE - 1) / LINE * LINE;
}

/* Sums of a pixel. */
static int parts_of(const int32_t *c) {
    return c[C_PASS] == PLANISH_FORWARD || c[C_CORRECT] ? 3 : 2;
}

int64_t channels_message_bytes(const int32_t *c) {
    const int64_t entry = (parts_of(c) == 3 ? 4 : 2) * (int64_t)sizeof(float);
    return c[C_CLUSTER] > 1 ? c[C_CLUSTER] * entry * c[C_TILE] : 0;
}

size_t channels_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const size_t tile = (size_t)c[C_TILE], depth = (size_t)c[C_DEPTH];
    const size_t rows = (size_t)c[C_ROWS], stages = (size_t)c[C_STAGES];
    const size_t parts = (size_t)parts_of(c);
    size_t bytes = tile_bytes(c, constant_bytes(c, C_X_TYPE));
    if (backward)
        bytes += tile_bytes(c, constant_bytes(c, C_G_TYPE));
    const size_t room = c[C_CLUSTER] == 1 && c[C_TILE] != c[C_PIXELS] ? 3 : parts;
    bytes = stages * bytes + round_up(room * (size_t)c[C_PLANES] * rows * tile * 4) + 16 * tile;
    if (backward)
        bytes += round_up(stages * 2 * tile * 4);
    if (c[C_W_TYPE] != DTYPE_NONE)
        bytes += round_up(depth * 4);
    if (c[C_B_TYPE] != DTYPE_NONE) /* backward: with an activation */
        bytes += round_up(depth * 4);
    if (backward)
        bytes += round_up((rows - 1) * (depth / rows) * 8);
    return bytes + 2 * (size_t)channels_message_bytes(c);
}
