#include "bits_cases.h"

static const struct {
    int64_t rows, cols;
} shapes[] = {
    {40, 1},   {70, 24}, {4099, 8}, {150, 1000}, {64, 1024}, {5, 4097}, {2, 9001}, {1, 33},
    {33, 769}, {43, 40}, {27, 200}, {70, 53},    {37, 29},   {41, 96},  {26, 121},
};

static const struct {
    element x, y, weight, grad, stats;
} mixes[] = {
    {F32, F32, F32, F32, F32},    {BF16, BF16, BF16, BF16, F32}, {F16, F16, F16, F16, F32},
    {F16, F32, F32, F32, F32},    {F32, BF16, BF16, F32, F32},   {F64, F64, F64, F64, F64},
    {BF16, BF16, F32, F32, BF16},
};

static numbers numbers_of(int turn) {
    static const numbers of[] = {NORMAL, MEAN_100, MEAN_1E4, SCALE_BIG, SCALE_TINY, BEGINNING};
    return of[turn % (int)(sizeof of / sizeof *of)];
}

/* Calls `each` for every pass, some kinds, every shape and mix of dtypes: every `step`th of them.
 * An activation follows those that are `fused`. */
static void every_row(planish_kind first, planish_kind last, int step, bool fused,
                      void (*each)(const norm_case *c)) {
    int turn = 0;
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD_STATISTICS; pass++)
        for (planish_kind kind = first; kind <= last; kind++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
                    if (turn++ % step)
                        continue;
                    norm_case c = rows_case(pass, kind, shapes[s].rows, shapes[s].cols);
                    if (fused && (pass == PLANISH_BACKWARD_FROM_Y || pass == PLANISH_STATISTICS ||
                                  pass == PLANISH_BACKWARD_STATISTICS))
                        continue;
                    if (fused)
                        c.op.activation = (planish_activation)(PLANISH_SILU + turn % 6);
                    c.x = c.dx = mixes[m].x;
                    c.y = mixes[m].y;
                    c.weight = mixes[m].weight;
                    c.grad = mixes[m].grad;
                    c.stats = mixes[m].stats;
                    c.numbers = numbers_of(turn);
                    c.op.weight_offset = turn / 3 % 2;
                    c.given = turn % 5 == 2 ? RANDOM : OWN_BY_F32;
                    c.seed = (uint64_t)turn;
                    if (kind == PLANISH_L2 && turn / step % 2)
                        case_set_length(&c);
                    each(&c);
                }
}

void every_case(int step, void (*each)(const norm_case *c)) {
    every_row(PLANISH_LAYER, PLANISH_RMS, step, false, each);
    every_row(PLANISH_L2, PLANISH_L2, 2 * step, false, each);
}

void every_fused(int step, void (*each)(const norm_case *c)) {
    every_row(PLANISH_LAYER, PLANISH_RMS, step, true, each);
    every_row(PLANISH_L2, PLANISH_L2, 2 * step, true, each);
}

static const struct {
    image_layer layer;
    int64_t batch, channels, height, width, groups;
} images[] = {
    {CHANNEL_NORM, 3, 24, 7, 7, 1},   {CHANNEL_NORM, 2, 96, 20, 31, 1},
    {CHANNEL_NORM, 2, 1200, 5, 9, 1}, {CHANNEL_NORM, 5, 3, 1, 2, 1},
    {GROUP_NORM, 3, 24, 7, 7, 4},     {GROUP_NORM, 2, 32, 40, 33, 2},
    {INSTANCE_NORM, 3, 5, 30, 37, 1}, {GROUP_NORM, 2, 6, 3, 2, 1},
};

static void images_of(planish_kind first, planish_kind last, int step,
                      void (*each)(const norm_case *c)) {
    static const layout layouts[][2] = {{DENSE, DENSE},
                                        {CHANNELS_LAST, CHANNELS_LAST},
                                        {DENSE, CHANNELS_LAST},
                                        {CHANNELS_LAST, DENSE}};
    int turn = 0;
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD_STATISTICS; pass++)
        for (planish_kind kind = first; kind <= last; kind++)
            for (size_t s = 0; s < sizeof images / sizeof *images; s++)
                for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
                    if (turn++ % step)
                        continue;
                    norm_case c =
                        image_case(pass, kind, images[s].layer, images[s].batch, images[s].channels,
                                   images[s].height, images[s].width, images[s].groups);
                    c.x = c.dx = mixes[m].x;
                    c.y = mixes[m].y;
                    c.weight = mixes[m].weight;
                    c.grad = mixes[m].grad;
                    c.stats = mixes[m].stats;
                    c.numbers = numbers_of(turn / 3);
                    if (pass != PLANISH_BACKWARD_FROM_Y && pass <= PLANISH_APPLY && turn % 5 % 2)
                        c.op.activation = turn % 5 == 1 ? PLANISH_SILU : PLANISH_RELU;
                    c.op.weight_offset = turn / 3 % 2;
                    c.in = layouts[turn / 2 % 4][0];
                    c.out = layouts[turn / 2 % 4][1];
                    c.given = turn % 5 == 2 ? RANDOM : OWN_BY_F32;
                    c.seed = (uint64_t)turn;
                    if (kind == PLANISH_L2 && turn / step % 2)
                        case_set_length(&c);
                    each(&c);
                }
}

void every_image(int step, void (*each)(const norm_case *c)) {
    images_of(PLANISH_LAYER, PLANISH_RMS, step, each);
    images_of(PLANISH_L2, PLANISH_L2, 2 * step, each);
}
