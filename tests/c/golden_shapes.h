/* The shapes whose plans golden_plans.txt has: the hot ones of the benches on a CPU. */
#ifndef GOLDEN_SHAPES_H
#define GOLDEN_SHAPES_H

#include <stdint.h>

typedef enum layer { LAYER, RMS, CHANNELS, BATCH, GROUPS, GROUPS_SILU } layer;
typedef enum memory { NCHW, NHWC, NHWC_TO_NCHW } memory;
typedef enum types { F32, BF16, BF16_BY_F32, F64 } types;

static const char *const layer_names[] = {"layer", "rms",   "channels",
                                          "batch", "group", "group+silu"};
static const char *const memory_names[] = {"", " nhwc", " nhwc to nchw"};
static const char *const type_names[] = {"f32", "bf16", "bf16, weights f32", "f64"};

/* (rows, cols), (N, C, H, W), or the latter by groups. The pass is forward and backward. */
typedef struct shape {
    layer layer;
    int64_t size[4]; /* the last two 0: rows */
    int64_t groups;
    memory memory;
    types types;
} shape;

static const shape shapes[] = {
    /* python/planish/bench/sweeps.py: table */
    {LAYER, {4096, 1024}, .types = F32},
    {LAYER, {4096, 2048}, .types = F32},
    {LAYER, {4096, 4096}, .types = F32},
    {LAYER, {4096, 15872}, .types = F32},
    /* rows */
    {LAYER, {64, 1024}, .types = F32},
    {LAYER, {64, 1024}, .types = BF16},
    {LAYER, {512, 768}, .types = F32},
    {LAYER, {512, 768}, .types = BF16},
    {LAYER, {4096, 768}, .types = F32},
    {LAYER, {4096, 768}, .types = BF16},
    {LAYER, {2048, 4096}, .types = F32},
    {LAYER, {8192, 1024}, .types = F32},
    {LAYER, {8192, 1024}, .types = BF16},
    {LAYER, {16384, 4096}, .types = F32},
    {LAYER, {65536, 2048}, .types = F32},
    {LAYER, {65536, 2048}, .types = BF16},
    {LAYER, {8192, 1024}, .types = F64},
    /* small */
    {LAYER, {401408, 24}, .types = F32},
    {LAYER, {401408, 24}, .types = BF16},
    {LAYER, {401408, 40}, .types = F32},
    {LAYER, {401408, 64}, .types = F32},
    {LAYER, {401408, 64}, .types = BF16},
    {LAYER, {401408, 96}, .types = F32},
    {LAYER, {401408, 128}, .types = F32},
    {LAYER, {401408, 128}, .types = BF16},
    {LAYER, {401408, 200}, .types = F32},
    {LAYER, {401408, 256}, .types = F32},
    {LAYER, {20000, 96}, .types = F32},
    /* large */
    {LAYER, {2048, 32768}, .types = F32},
    {LAYER, {512, 131072}, .types = F32},
    {LAYER, {256, 262144}, .types = F32},
    {LAYER, {64, 802816}, .types = F32},
    /* decode */
    {LAYER, {1, 1024}, .types = F32},
    {LAYER, {1, 4096}, .types = BF16},
    {LAYER, {16, 4096}, .types = F32},
    {LAYER, {128, 8192}, .types = F32},
    /* switch_shapes.py: vit, swin, bert, onednn */
    {LAYER, {197, 192}, .types = F32},
    {LAYER, {8 * 197, 768}, .types = F32},
    {LAYER, {577, 1024}, .types = F32},
    {LAYER, {25088, 96}, .types = F32},
    {LAYER, {8 * 784, 192}, .types = F32},
    {LAYER, {8192, 320}, .types = F32},
    {LAYER, {4096, 640}, .types = BF16},
    {LAYER, {15, 3}, .types = F32},
    {LAYER, {16384, 3072}, .types = F32},
    {LAYER, {4096, 768}, .types = BF16_BY_F32},
    {RMS, {1, 4096}, .types = F32},
    {RMS, {4 * 512, 2048}, .types = F32},
    {RMS, {32 * 128, 128}, .types = BF16},
    {RMS, {2048, 1024}, .types = F32},
    /* channels of ConvNeXt, Swin, VAN and a diffusion UNet */
    {CHANNELS, {8, 128, 56, 56}, .types = F32},
    {CHANNELS, {8, 128, 56, 56}, .types = BF16},
    {CHANNELS, {8, 96, 56, 56}, .types = F32},
    {CHANNELS, {2, 320, 64, 64}, .types = F32},
    {CHANNELS, {8, 1024, 7, 7}, .types = F32},
    {CHANNELS, {4, 1200, 14, 14}, .types = F32},
    {CHANNELS, {1, 32, 4, 4}, .types = F32},
    /* bench/groups.py, and group norms of switch_shapes.py: U-Nets */
    {GROUPS, {2, 320, 64, 64}, 32, NCHW, F32},
    {GROUPS, {2, 320, 64, 64}, 32, NHWC, F32},
    {GROUPS, {2, 320, 64, 64}, 32, NHWC, BF16},
    {GROUPS, {2, 320, 64, 64}, 32, NHWC_TO_NCHW, F32},
    {GROUPS, {2, 640, 32, 32}, 32, NCHW, F32},
    {GROUPS, {2, 1280, 32, 32}, 32, NHWC, F32},
    {GROUPS, {2, 1280, 8, 8}, 32, NCHW, F32},
    {GROUPS, {2, 1280, 8, 8}, 32, NHWC, F32},
    {GROUPS, {2, 2560, 2, 2}, 80, NCHW, F32},
    {GROUPS, {2, 320, 2, 2}, 32, NHWC, F32},
    {GROUPS_SILU, {2, 320, 64, 64}, 32, NCHW, F32},
    {GROUPS_SILU, {2, 1280, 32, 32}, 32, NHWC, F32},
    /* VAE, ResNet with group norms, PoolFormer */
    {GROUPS, {1, 512, 128, 128}, 32, NCHW, F32},
    {GROUPS, {1, 128, 512, 512}, 32, NHWC, F32},
    {GROUPS, {4, 256, 56, 56}, 32, NCHW, F32},
    {GROUPS, {4, 256, 56, 56}, 32, NCHW, BF16},
    {GROUPS, {4, 256, 56, 56}, 32, NHWC, F32},
    {GROUPS, {4, 256, 56, 56}, 256, NCHW, F32},
    {GROUPS, {4, 256, 56, 56}, 256, NHWC, F32},
    {GROUPS, {8, 2048, 7, 7}, 32, NCHW, F32},
    {GROUPS, {8, 2048, 7, 7}, 32, NHWC, F32},
    {GROUPS, {8, 64, 112, 112}, 32, NHWC, BF16},
    {GROUPS, {8, 768, 14, 14}, 1, NCHW, F32},
    {GROUPS, {32, 128, 7, 7}, 64, NCHW, F32},
    /* batch.py: ResNet-50 */
    {BATCH, {32, 64, 112, 112}, 0, NCHW, F32},
    {BATCH, {32, 64, 112, 112}, 0, NHWC, F32},
    {BATCH, {32, 64, 112, 112}, 0, NHWC, BF16_BY_F32},
    {BATCH, {32, 512, 28, 28}, 0, NCHW, BF16_BY_F32},
    {BATCH, {32, 512, 28, 28}, 0, NHWC, F32},
    {BATCH, {32, 2048, 7, 7}, 0, NCHW, F32},
    {BATCH, {32, 2048, 7, 7}, 0, NHWC, F32},
    {BATCH, {32, 2048, 7, 7}, 0, NHWC, BF16_BY_F32},
    {BATCH, {16, 256, 14, 14}, 0, NHWC, F32},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

#endif
