/*
 * What a CPU kernel is given and the table of kernels of one tier. A kernel runs on a block of
 * dense rows with constant pitch; who cuts a problem into such blocks, and on which thread, is
 * cpu/run.c's affair.
 */
#ifndef PLANISH_CPU_KERNELS_H
#define PLANISH_CPU_KERNELS_H

#include "cpu/common/stats.h"
#include "norm_rule.h"

/* Where the data of a pass lies, by its size. */
typedef enum traffic {
    TRAFFIC_CACHED, /* in a near cache */
    TRAFFIC_AHEAD,  /* beyond: the next rows are prefetched while these are written */
    TRAFFIC_STREAM, /* and the output is larger than the cache: non-temporal stores */
    TRAFFIC_LINES   /* the same, each line as it is made: a kernel's own choice */
} traffic;

/* How kernels are to go about it where there are two ways or more: for speed alone. Made from the
 * CPU's row of cpu/tuning.c and the problem (cpu/hints.c), one for all blocks of a plan. */
typedef struct cpu_hints {
    /* Of rows. */
    bool far;            /* rows lie well beyond a near cache, and outputs are not streamed */
    bool alone;          /* forward takes rows one at a time */
    bool in_turn;        /* the next rows' moments come before these rows' y */
    bool prefetch_y;     /* y, before it is made */
    bool prefetch_steps; /* the next step's rows, where rows go in steps */
    bool prefetch_sums;  /* the next rows while these are summed, and not only later */
    int rows_ahead;      /* how many rows before they are taken those are prefetched; 0: a step */
    bool stream_lines;   /* non-temporal stores may go a line at a time, as it is made, */
    bool stream_runs;    /* and where two rows are made at once, RUN_BYTES of each */
    bool steps_of_parts; /* backward in steps of streamed rows that are no whole lines, too */
    bool large_short_steps; /* forward of the longest short rows in steps of SHORT_ROWS where y is
                               streamed, too */
    bool more_short_rows;   /* backward of twice as many columns in the kernels of short rows */
    /* Of groups. */
    bool prefetch_groups; /* the next row or pixels */
    bool prefetch_dx;     /* of rows stored by channel: dx, while its row is summed */
    bool by_pixel;        /* backward reads pixels one behind the other, not four at once */
    /* Of rows, backward: those that go one by one in place of a step are prefetched so many rows
     * before; 0: none goes so. */
    int single_ahead;
} cpu_hints;

/* Kernels are told apart by planish_kind where a norm is alone; where something follows it, the
 * activated kernel is for norms of either kind. */
enum { KINDS = 2, KIND_ACTIVATED = KINDS, KERNEL_KINDS };
/* What these kernels of 16-bit rows know beside activations: PLANISH_ROUND_XHAT. */
enum { ROUNDED_XHAT = PLANISH_HARDSWISH + 1 };
static inline int kernel_kind(planish_kind kind, planish_activation activation) {
    return activation == PLANISH_IDENTITY ? (int)kind : KIND_ACTIVATED;
}

typedef struct forward_args {
    const cpu_hints *hints;
    int64_t rows, cols;
    const char *x;
    int64_t x_pitch;
    char *y; /* NULL: statistics only */
    int64_t y_pitch;
    const void *weight, *bias; /* dense; NULL: absent */
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd, m2;
    bool given; /* mean and rstd are inputs */
    traffic traffic;
    int64_t weight_span; /* overflow.c only: elements that share a weight and bias; 0: 1 */
    bool by_pixel; /* overflow.c only: these are a pitch apart, and their first ones neighbours */
    planish_activation activation; /* activated kernels, and overflow.c */
    planish_kind kind;             /* activated kernels only */
    const char *residual; /* NULL: none; else the norm is of sum = x + residual, rounded once */
    int64_t residual_pitch;
    char *sum; /* there where a residual is; it may be x or the residual, not y */
    int64_t sum_pitch;
} forward_args;

/* Which half of a backward that is cut in two. */
typedef enum half { HALF_NONE, HALF_STATISTICS, HALF_APPLY } half;

typedef struct backward_args {
    const cpu_hints *hints; /* rows_ahead: of rows that go alone or in groups, too */
    int64_t rows, cols;
    const char *dy, *x;
    int64_t dy_pitch, x_pitch;
    char *dx; /* NULL: not wanted */
    int64_t dx_pitch;
    const void *weight;
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd;
    bool x_is_xhat; /* x holds xhat itself */
    traffic traffic;
    /* Sums of dy * xhat and dy over rows are added to these, in the compute type; NULL: not wanted.
     */
    void *dweight, *dbias;
    int64_t weight_span; /* this and what follows as in forward_args */
    bool by_pixel;
    planish_activation activation;
    const void *bias; /* where an activation follows */
    planish_kind kind;
    const char *dsum; /* added to dx before that is rounded, in the rows' dtype; NULL: none */
    int64_t dsum_pitch;
    half half;       /* this and what follows: of the kernels of halves, and overflow.c */
    row_stat c1, c2; /* written by the first half, read by the second */
} backward_args;

/* Rows of `channels` times `span` dense elements, with a weight and bias for each channel. */
typedef struct group_forward_args {
    const cpu_hints *hints;
    int rows; /* up to TOGETHER; more than one pays where they are short */
    int64_t channels, span;
    const char *x;
    int64_t x_pitch;
    char *y; /* NULL: statistics only */
    int64_t y_pitch;
    const void *weight, *bias; /* in f32 or f64 as the arithmetic is; NULL: absent */
    int64_t weight_step;       /* of both, from one row to the next */
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd, m2;
    bool given;
    traffic traffic;
    planish_kind kind; /* this and activation: of activated kernels only */
    planish_activation activation;
} group_forward_args;

typedef struct group_backward_args {
    const cpu_hints *hints;
    int rows; /* as in group_forward_args */
    int64_t channels, span;
    const char *dy, *x;
    int64_t dy_pitch, x_pitch;
    char *dx; /* NULL: not wanted */
    int64_t dx_pitch;
    const void *weight;
    int64_t weight_step;
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd;
    bool prefetch_dx; /* there is one, and the hint */
    traffic traffic;
    planish_kind kind; /* this and down to kept: of activated kernels only */
    planish_activation activation;
    const void *bias;
    void *kept; /* room for the gradient of what went into the activation, in the compute type, and
                   KEPT_REST bytes; NULL: it is made twice */
    const char *dsum; /* as in backward_args */
    int64_t dsum_pitch;
    double *dweight, *dbias; /* of each row: sums of dy * xhat and dy over a channel */
} group_backward_args;

/* A strip of an image stored by pixel: rows beside each other, one for each group, of `depth`
 * channels which are neighbours, and all its pixels. `scratch` holds STRIP_BYTES for a channel and
 * STRIP_REST. */
typedef struct strip_forward_args {
    const cpu_hints *hints;
    int64_t groups, depth, pixels;
    const char *x;
    int64_t x_pitch; /* from pixel to pixel */
    char *y;         /* NULL: statistics only */
    int64_t y_pitch;
    const void *weight, *bias; /* of the strip's channels; as in group_forward_args */
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd, m2;
    bool given;
    traffic traffic;
    planish_kind kind; /* as in group_forward_args */
    planish_activation activation;
    void *scratch;
} strip_forward_args;

typedef struct strip_backward_args {
    const cpu_hints *hints;
    int64_t groups, depth, pixels;
    const char *dy, *x;
    int64_t dy_pitch, x_pitch;
    char *dx; /* NULL: not wanted */
    int64_t dx_pitch;
    const void *weight;
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd;
    traffic traffic;
    planish_kind kind; /* as in group_backward_args */
    planish_activation activation;
    const void *bias;
    bool keeps;       /* there is room for that in scratch, behind what is told above */
    const char *dsum; /* as in backward_args */
    int64_t dsum_pitch;
    double *dweight, *dbias; /* as in group_backward_args */
    void *scratch;
} strip_backward_args;

enum { KEPT_REST = 64 };
enum { STRIP_BYTES = 29 * sizeof(double), STRIP_REST = 7 * 64 };

/* The kernels for one element dtype, by kernel_kind. */
typedef void group_forward_kernel(const group_forward_args *);
typedef void group_backward_kernel(const group_backward_args *);
typedef void strip_forward_kernel(const strip_forward_args *);
typedef void strip_backward_kernel(const strip_backward_args *);
typedef struct group_kernels {
    group_forward_kernel *const *forward;
    group_backward_kernel *const *backward;
    strip_forward_kernel *const *strip_forward;
    strip_backward_kernel *const *strip_backward;
} group_kernels;

/* A tile of pixels in scratch (cpu/channels/channels.h): channel c of pixel p at c * pitch + p. */
typedef struct channel_tile {
    int64_t channels, pixels;
    int64_t padded; /* pixels, rounded up to a multiple of TILE_STEP */
    int64_t pitch;  /* in elements */
} channel_tile;

enum { TILE_PIXELS = 256, TILE_STEP = 16 };

/* The pixels of a tile in a tensor, of which pixels or channels are neighbours. Bytes. */
typedef struct tile_side {
    char *data;          /* NULL: absent */
    int64_t pitch, step; /* to the next pixel, to the next channel */
    dtype type;
} tile_side;

/* weight and bias are dense and in the compute type; rows is room for three pixels, scratch for one
 * tile, or for two in backward. */
typedef struct channel_forward_args {
    channel_tile tile;
    tile_side x, y;
    const char *next_x; /* where the next tile begins; NULL: nowhere */
    const void *weight, *bias;
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd, m2;
    bool given;
    traffic traffic;
    void *scratch, *rows;
    planish_kind kind; /* this and activation: of activated kernels only */
    planish_activation activation;
} channel_forward_args;

typedef struct channel_backward_args {
    channel_tile tile;
    tile_side x, dy, dx, dsum; /* dsum: as in backward_args */
    const char *next_x, *next_dy;
    const void *weight;
    int weight_offset;
    norm_rule rule;
    row_stat mean, rstd;
    traffic traffic;
    void *scratch, *rows;
    double *dweight_sum, *dbias_sum; /* added to; NULL: not wanted */
    void *dweight, *dbias;           /* the same for what overflow.c does, in the compute type */
    planish_kind kind;               /* this and what follows: of activated kernels only */
    planish_activation activation;
    const void *bias;
} channel_backward_args;

/* The kernels for one tile, by kernel_kind. */
typedef struct channel_kernels {
    void (*forward[KERNEL_KINDS])(const channel_forward_args *);
    void (*backward[KERNEL_KINDS])(const channel_backward_args *);
} channel_kernels;

/* Between a tensor whose channels are neighbours, its pixels `pitch` bytes apart, and planes of
 * pixels in the compute type, `planes_pitch` elements apart. */
typedef struct plane_kernels {
    void (*gather)(void *planes, int64_t planes_pitch, const char *from, int64_t pitch, dtype type,
                   int64_t pixels, int64_t channels);
    void (*scatter)(char *to, int64_t pitch, const void *planes, int64_t planes_pitch, dtype type,
                    int64_t pixels, int64_t channels);
} plane_kernels;

/* The kernels for one element and one weight dtype, by kernel_kind. */
typedef void forward_kernel(const forward_args *);
typedef void backward_kernel(const backward_args *);
typedef struct row_kernels {
    forward_kernel *const *forward;
    backward_kernel *const *backward;
    backward_kernel *const *halves; /* by planish_kind */
} row_kernels;

enum { WEIGHT_SAME, WEIGHT_F32, WEIGHT_DTYPES };

/* The kernels for elements of one dtype: x, y, dy and dx alike. */
typedef struct element_kernels {
    row_kernels rows[WEIGHT_DTYPES]; /* of f32 the same twice, and of f64 */
    group_kernels groups;
} element_kernels;

typedef struct span_kernels {
    /* Dense conversions to and from f32, by the other side's dtype; none for f64. */
    void (*widen[DTYPE_F64])(float *to, const void *from, int64_t count);
    void (*narrow[DTYPE_F64])(void *to, const float *from, int64_t count);
    /* The same past the cache, to an element's own alignment, and of bytes. Who calls it puts a
     * fence behind the last. */
    void (*stream[DTYPE_F64])(void *to, const float *from, int64_t count);
    void (*stream_bytes)(void *to, const void *from, int64_t count);
    /* Adds a chunk's sums of dweight or dbias, in f32, in f64, to a block's and sets them to 0. */
    void (*flush[2])(double *sum, void *chunk, int64_t count);
} span_kernels;

typedef struct cpu_kernels {
    const char *tier;
    element_kernels of[DTYPE_NONE];
    const channel_kernels *channels[2]; /* in f32, in f64 */
    const plane_kernels *planes[2];     /* the same */
    const span_kernels *spans;
    const struct stage_kernels *stages[2]; /* in f32, in f64: cpu/stages/stage_kernels.h */
    const struct stages_backward_kernels *stages_backward[2]; /* cpu/stages/backward_kernels.h */
    const struct batch_kernels *batch[DTYPE_NONE];            /* cpu/batch/batch_kernels.h */
} cpu_kernels;

/* A row is summed in segments of this many elements in every lane (see cpu/rows/rows.h). */
enum { SEGMENT_DEPTH = 32 };

/* A lane of a segment adds this many elements in a row before what they sum to is added to the
 * lane's total: numbers that are all alike are all rounded alike, and a chain of n additions is off
 * by n / 2 roundings. */
enum { CHAIN = 8 };

/* Rows of few columns, by planish_kind: what such a kernel can of the rows, and returns how many.
 */
typedef int64_t few_forward_kernel(const forward_args *);
typedef int64_t few_backward_kernel(const backward_args *);

/* Rows are taken in groups of up to this many, whose sums are folded together; rows of a few
 * hundred bytes in steps of STEP_ROWS (cpu/rows/rows_step.h), shorter ones of SHORT_ROWS
 * (cpu/rows/rows_short.h) where a row is no more than SHORT_PARTS vectors: each number of them is
 * compiled by itself. FOLD_ROWS vectors are folded at once. */
enum { SHORT_PARTS = 4 };
enum { TOGETHER = 4, FOLD_ROWS = 8, STEP_ROWS = FOLD_ROWS, SHORT_ROWS = 2 * FOLD_ROWS };

/* dweight and dbias partials take this many rows in the compute type before they go to f64. */
enum { CHUNK_ROWS = 32 };

/* What stream_runs writes: two lines of one row and two of another. */
enum { RUN_BYTES = 128 };

/* ---- Rows in f64, element by element --------------------------------------------------------- */

/* What the kernels fall back on where f32 or f64 arithmetic would leave its range though the result
 * does not (cpu/common/overflow.c). Same for every tier. */

void overflow_forward_row(const forward_args *args, int64_t row, planish_kind kind, dtype element,
                          dtype weight);
void overflow_backward_row(const backward_args *args, int64_t row, planish_kind kind, dtype element,
                           dtype weight);
/* One row with sums of its own, in double. */
void overflow_backward_sums(const backward_args *args, planish_kind kind, dtype element,
                            dtype weight, double *dweight, double *dbias);

#endif
