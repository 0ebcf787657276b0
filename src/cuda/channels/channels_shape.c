/* What is said here of a specialisation, its kernel says of itself (kernels/channel_tiles.cu): the
 * two change together. */
#include "cuda/channels/channels_shape.h"

#include "cuda/common/integers.h"

enum { SPANNING_CHANNELS = 128 }; /* fewest of forward tiles that go on in the next image */

bool channels_is_shifted(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    return c->tile_pixels != c->pixels && !c->last && c->pixels % 2 &&
           role_bytes(spec, ROLE_X) == 2 &&
           (spec->pass == PLANISH_FORWARD || role_bytes(spec, ROLE_DY) == 2);
}

bool channels_is_spanning(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int bytes = role_bytes(spec, ROLE_X);
    const bool few = spec->pass == PLANISH_FORWARD && c->cols < SPANNING_CHANNELS;
    return !few && c->pixels > c->tile_pixels && c->pixels % c->tile_pixels && spec->cluster == 1 &&
           !c->last && !channels_is_shifted(spec) && c->pixels * bytes % SECTOR == 0 &&
           c->tile_pixels * bytes % SECTOR == 0;
}

static size_t tile_bytes(const cuda_spec *spec, int element_bytes) {
    const channels_constants *c = &spec->channels;
    const size_t pixels = (size_t)c->tile_pixels * (size_t)element_bytes;
    const size_t channel = channels_is_shifted(spec) ? round_up(pixels + 14) : pixels;
    return ((size_t)c->depth * channel + LINE - 1) / LINE * LINE;
}

/* Sums of a pixel. */
static int parts_of(const cuda_spec *spec) {
    return spec->pass == PLANISH_FORWARD || spec->correct ? 3 : 2;
}

int64_t channels_message_bytes(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int64_t entry = (parts_of(spec) == 3 ? 4 : 2) * (int64_t)sizeof(float);
    return spec->cluster > 1 ? spec->cluster * entry * c->tile_pixels : 0;
}

size_t channels_shared_bytes(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const size_t tile = (size_t)c->tile_pixels, depth = (size_t)c->depth;
    const size_t rows = (size_t)c->line_channels, ring = (size_t)c->ring_slots;
    const size_t parts = (size_t)parts_of(spec);
    size_t bytes = tile_bytes(spec, role_bytes(spec, ROLE_X));
    if (backward)
        bytes += tile_bytes(spec, role_bytes(spec, ROLE_DY));
    const size_t room = spec->cluster == 1 && c->tile_pixels != c->pixels ? 3 : parts;
    bytes = ring * bytes + round_up(room * (size_t)c->planes * rows * tile * 4) + 16 * tile;
    if (backward)
        bytes += round_up(ring * 2 * tile * 4);
    if (spec->type[ROLE_WEIGHT] != DTYPE_NONE)
        bytes += round_up(depth * 4);
    if (spec->type[ROLE_BIAS] != DTYPE_NONE) /* backward: with an activation */
        bytes += round_up(depth * 4);
    if (backward)
        bytes += round_up((rows - 1) * (depth / rows) * 8);
    return bytes + 2 * (size_t)channels_message_bytes(spec);
}
