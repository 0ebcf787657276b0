#include "cpu/hints.h"

/* Of x, y, dy and dx, and what is added to x and to dx. */
static size_t bytes_of_elements(const problem *p) {
    static const role elements[] = {ROLE_X,        ROLE_Y,   ROLE_DY,  ROLE_DX,
                                    ROLE_RESIDUAL, ROLE_SUM, ROLE_DSUM};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        bytes += (size_t)dtype_bytes(p->dtypes[elements[i]]);
    return (size_t)p->rows * (size_t)p->cols * bytes;
}

static int64_t row_bytes(const problem *p) {
    return p->cols * dtype_bytes(p->dtypes[ROLE_X]);
}

/* 16-bit elements wait for their conversions. */
static bool is_short(const problem *p) {
    return dtype_bytes(p->dtypes[ROLE_X]) <= 2;
}

static bool is_f32(const problem *p) {
    return p->dtypes[ROLE_X] == DTYPE_F32;
}

/* Whether rows from beyond the near cache are there in time without a prefetch. */
static bool is_fetched(const problem *p, const cpu_tuning *row, size_t bytes) {
    return !problem_is_backward(p) && is_f32(p) && range_has(row->fetched_rows, row_bytes(p)) &&
           bytes <= row->fetched_bytes;
}

traffic cpu_traffic_of(const problem *p, const cpu_limits *limits, cpu_path path) {
    const cpu_tuning *row = limits->tuning;
    const size_t count = (size_t)p->rows * (size_t)p->cols, bytes = bytes_of_elements(p);
    const role output = has(p, ROLE_DX) ? ROLE_DX : has(p, ROLE_Y) ? ROLE_Y : ROLE_Q;
    const bool of_y = path == PATH_ROWS && !problem_is_backward(p);
    if (of_y ? bytes > limits->stream_rows_bytes
             : count * (size_t)dtype_bytes(p->dtypes[output]) > row->stream_bytes)
        return TRAFFIC_STREAM;
    const bool fetched = path == PATH_ROWS && is_fetched(p, row, bytes);
    return bytes > row->near_bytes && !fetched ? TRAFFIC_AHEAD : TRAFFIC_CACHED;
}

/* Whether a group's y waits for the next group's moments. Both groups, two rows of y, weight and
 * bias are to stay in the first-level cache, or all but those two rows where a core's own cache has
 * everything (bench/results/zen4/turns.txt). */
static bool goes_in_turn(const problem *p, const cpu_limits *limits, size_t bytes) {
    const size_t row = (size_t)row_bytes(p), rows = bytes > limits->tuning->near_bytes ? 12 : 10;
    return row <= (size_t)limits->tuning->turn_row_bytes &&
           (!limits->first_bytes || row <= limits->first_bytes / rows);
}

/* Of f32 rows that are streamed, those of some lengths alone; what prefetches of 16-bit and f64
 * rows gain was not found to differ. */
static bool prefetches_steps(const problem *p, const cpu_tuning *row, traffic t) {
    if (t != TRAFFIC_STREAM || !is_f32(p))
        return t != TRAFFIC_CACHED;
    const byte_range *ranges = row->prefetch_steps[problem_is_backward(p)];
    return range_has(ranges[0], row_bytes(p)) || range_has(ranges[1], row_bytes(p));
}

static int rows_ahead(const problem *p, const cpu_tuning *row, traffic t) {
    if (!row->prefetch_elements || (!problem_is_backward(p) && t != TRAFFIC_STREAM))
        return 0;
    const int64_t rows = row->prefetch_elements / p->cols, most = row->prefetch_most_rows;
    return (int)(rows < 2 ? 2 : rows > most ? most : rows);
}

/* How far ahead rows are asked for that go one by one; 0: they go in steps. */
static int single_ahead(const problem *p, const cpu_tuning *row, traffic t, size_t bytes) {
    const bool is_short_row = row_bytes(p) <= row->single_short_bytes;
    const int elements = row->single_elements[t == TRAFFIC_STREAM];
    if (!elements || !problem_is_backward(p) || !is_f32(p) || t == TRAFFIC_CACHED ||
        (t == TRAFFIC_AHEAD && is_short_row && bytes <= row->single_bytes))
        return 0;
    const int64_t rows = elements / p->cols;
    return (int)(rows < 2 ? 2 : rows);
}

static cpu_hints row_hints(const problem *p, const cpu_limits *limits, traffic t) {
    const cpu_tuning *row = limits->tuning;
    const size_t bytes = bytes_of_elements(p);
    const bool ahead = t == TRAFFIC_AHEAD;
    return (cpu_hints){
        .far = ahead && bytes > row->far_bytes,
        .alone = ahead && row->alone_row_bytes && !problem_is_backward(p) && is_f32(p) &&
                 row_bytes(p) >= row->alone_row_bytes,
        .in_turn = goes_in_turn(p, limits, bytes),
        .prefetch_y = ahead && row_bytes(p) <= row->prefetch_y_row_bytes &&
                      bytes > (is_short(p) ? row->prefetch_y_bytes_16 : row->prefetch_y_bytes),
        .prefetch_steps = prefetches_steps(p, row, t),
        .prefetch_sums = row->prefetch_sums && t == TRAFFIC_STREAM,
        .rows_ahead = rows_ahead(p, row, t),
        .single_ahead = single_ahead(p, row, t, bytes),
        .stream_lines = row->stream_lines,
        .stream_runs = bytes > row->stream_run_bytes[problem_is_backward(p)],
        .steps_of_parts = row->steps_of_parts,
        .large_short_steps = row->large_short_steps,
        .more_short_rows = row->more_short_rows,
    };
}

cpu_hints cpu_hints_of(const problem *p, const cpu_limits *limits, cpu_path path, traffic t) {
    const cpu_tuning *row = limits->tuning;
    switch (path) {
    case PATH_ROWS:
        return row_hints(p, limits, t);
    case PATH_GROUP_ROWS:
    case PATH_PLANES:
        return (cpu_hints){
            .prefetch_groups = !row->fetches_groups || is_short(p),
            .prefetch_dx = row->prefetch_group_dx,
        };
    case PATH_PIXELS:
        return (cpu_hints){.prefetch_groups = !row->fetches_groups, .by_pixel = row->by_pixel};
    default:
        return (cpu_hints){0};
    }
}
