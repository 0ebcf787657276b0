/*
 * Where torch's own group norm on the CPU is faster; see group_faster.h. Each row was measured by
 * `planish bench switch --only group` (docs/performance.md, "No switch makes a norm slower"), and
 * holds on the CPUs named there.
 */
#include "group_faster.h"

#include "../cpu/identify.h"
#include "aoti.h"

typedef enum pass { FORWARD = 1, BACKWARD = 2, BOTH = 3 } pass;
typedef enum memory_format { NCHW, CHANNELS_LAST } memory_format;

/* On which CPUs it holds: Intel's were timed by a Xeon, the others by AMD's Zen 3, 4 and 5. */
typedef enum maker { ANY, NOT_INTEL, ZEN4 } maker;

/* All bounds are inclusive; 0: none. */
typedef struct rule {
    maker cpu;
    memory_format format;
    pass passes;
    int bits; /* of an element of x; 0: any */
    int64_t least_pixels, most_pixels;
    int64_t least_depth, most_depth;    /* bytes of a group's channels of one pixel */
    int64_t least_elements, most_bytes; /* of x */
    bool few;                           /* groups of all images, fewer than threads */
} rule;

/* From here on the pages of a new result count for more than the kernel
 * (docs/guide/pytorch-details.md, "Large results"). */
enum { LARGE = 32 << 20 };

static const rule rules[] = {
    /* Few pixels: torch takes the image as a whole, planish a strip of its groups. */
    {ANY, CHANNELS_LAST, BOTH, 32, 0, 16, 64, 0, 0, 0, false},
    {ANY, CHANNELS_LAST, BOTH, 16, 0, 16, 32, 0, 0, 0, false},
    {NOT_INTEL, CHANNELS_LAST, BOTH, 32, 0, 4, 40, 63, 0, 0, false},
    /* torch sums many pixels in vectors whatever the groups, and fewer where a group's channels
     * fill a good part of a vector. */
    {ANY, CHANNELS_LAST, FORWARD, 0, 1024, 0, 0, 0, 32769, LARGE - 1, false},
    {ANY, CHANNELS_LAST, FORWARD, 0, 0, 0, 17, 0, 32769, LARGE - 1, false},
    {NOT_INTEL, CHANNELS_LAST, BACKWARD, 32, 2304, 0, 64, 0, 2000000, 0, false},
    {NOT_INTEL, CHANNELS_LAST, BACKWARD, 16, 17, 0, 32, 32, 16384, 0, false},
    /* Channels of four 16-bit numbers are converted one by one. */
    {ANY, NCHW, BACKWARD, 16, 0, 4, 0, 0, 1024, 0, false},
    {ANY, NCHW, FORWARD, 32, 0, 4, 160, 0, 1024, 0, false},
    /* Channels of a few vectors. */
    {ANY, NCHW, BACKWARD, 32, 13, 16, 0, 0, 4096, 0, false},
    {NOT_INTEL, NCHW, BACKWARD, 32, 17, 144, 0, 0, 100000, 0, false},
    {NOT_INTEL, NCHW, BACKWARD, 32, 145, 256, 240, 0, 100000, 0, false},
    {ZEN4, NCHW, BACKWARD, 32, 145, 256, 120, 239, 1000000, 0, false},
    /* Half a line of each of many pixels, up to where torch's own takes several times as long. */
    {ZEN4, CHANNELS_LAST, BACKWARD, 32, 9217, 0, 32, 39, 0, 20 << 20, false},
    {ZEN4, CHANNELS_LAST, BACKWARD, 32, 17, 64, 160, 160, 131072, 1 << 20, false},
    /* A group is one thread's. torch shares its channels and pixels out among all. */
    {ANY, CHANNELS_LAST, BACKWARD, 32, 0, 0, 0, 0, 100000, 0, true},
    {ANY, NCHW, BACKWARD, 32, 0, 0, 0, 0, 100000, 0, true},
    {ZEN4, CHANNELS_LAST, BACKWARD, 16, 0, 0, 0, 0, 100000, 0, true},
};

/* With two threads or more, where torch shares short work out better. */
static const rule rules_of_threads[] = {
    {ZEN4, CHANNELS_LAST, FORWARD, 0, 17, 64, 32, 0, 16384, 0, false},
    {ZEN4, CHANNELS_LAST, BACKWARD, 32, 17, 64, 64, 64, 16384, 240000, false},
    /* Depths of whole vectors: torch takes the parts of others one by one. */
    {ZEN4, CHANNELS_LAST, BACKWARD, 16, 17, 196, 64, 64, 65536, 700000, false},
    {ZEN4, CHANNELS_LAST, BACKWARD, 16, 17, 196, 128, 128, 65536, 700000, false},
    {ZEN4, CHANNELS_LAST, BACKWARD, 16, 17, 196, 160, 160, 65536, 700000, false},
    {ZEN4, NCHW, BACKWARD, 32, 145, 256, 120, 239, 500000, 0, false},
    /* Little work, of which half is the start of a second thread. */
    {ZEN4, NCHW, FORWARD, 0, 0, 4, 40, 128, 2560, 0, false},
    {ZEN4, NCHW, FORWARD, 0, 5, 64, 0, 0, 16384, 200000, false},
    {ZEN4, NCHW, BACKWARD, 16, 5, 64, 0, 0, 16384, 2 << 20, false},
    {ZEN4, NCHW, BACKWARD, 32, 13, 256, 0, 128, 16384, 4 << 20, false},
    /* Results of more than LARGE, too: from memory the kernel is held up by its sums. */
    {ZEN4, CHANNELS_LAST, FORWARD, 16, 1024, 0, 0, 16, 32769, 0, false},
};

static bool is_between(int64_t value, int64_t least, int64_t most) {
    return value >= least && (!most || value <= most);
}

static bool holds_here(maker cpu) {
    const cpu_microarchitecture here = cpu_identify().microarchitecture;
    return cpu == ANY || (cpu == ZEN4 ? here == CPU_ZEN4 : !cpu_is_intel(here));
}

/* Whether one of `count` rules holds for x, or for x and dy. */
static bool any_holds(const rule rules[], size_t count, const group *g, pass passes) {
    const int bits = g->x.dtype.bits;
    const int64_t depth = g->sizes.channels / g->sizes.groups * (bits / 8);
    const int64_t elements = view_elements(&g->x);
    const bool are_few = g->sizes.batch * g->sizes.groups < torch_threads();
    for (size_t i = 0; i < count; i++) {
        const rule *r = &rules[i];
        if ((r->format == CHANNELS_LAST) == g->channels_last && r->passes & passes &&
            (!r->bits || r->bits == bits) &&
            is_between(g->sizes.pixels, r->least_pixels, r->most_pixels) &&
            is_between(depth, r->least_depth, r->most_depth) &&
            is_between(elements, r->least_elements, 0) &&
            is_between(elements * (bits / 8), 0, r->most_bytes) && (!r->few || are_few) &&
            holds_here(r->cpu))
            return true;
    }
    return false;
}

bool torch_is_faster(const group *g, const DLTensor *dy) {
    const pass passes = dy ? BACKWARD : FORWARD;
    /* torch's backward takes both as they lie in memory. */
    if (!group_is_laid_out(g, &g->x) || (dy && !group_is_laid_out(g, dy)))
        return false;
    return any_holds(rules, sizeof rules / sizeof *rules, g, passes) ||
           (torch_threads() > 1 &&
            any_holds(rules_of_threads, sizeof rules_of_threads / sizeof *rules_of_threads, g,
                      passes));
}
