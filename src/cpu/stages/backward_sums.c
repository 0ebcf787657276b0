/* dweight, dbias, dscale, dshift and dcolumn_scale; see backward_sums.h. */
#include "cpu/stages/backward_sums.h"
#include "cpu/common/affine.h"
#include "cpu/common/integers.h"
#include "cpu/stages/stages_path.h"

/* ---- Which elements a row adds to ------------------------------------------------------------ */

static bool varies(const axis *a, role output) {
    switch (axes_of(output)) {
    case AXES_COLUMN:
        return a->column;
    case AXES_MODULATION:
        return a->modulated;
    default:
        return a->affine;
    }
}

static gradient_sum gradient_sum_of(const problem *p, role output) {
    gradient_sum s = {
        .output = output, .sample_rows = 1, .row_width = 1, .sums = 1, .identity = true};
    for (int k = 0; k < p->reduced_count; k++) {
        if (varies(&p->reduced[k], output))
            s.row_width *= p->reduced[k].size;
        else
            s.identity &= p->reduced[k].size == 1;
    }
    s.width = s.row_width;
    int64_t samples = 1;
    bool first = true, sorted = true;
    for (int k = 0; k < p->kept_count; k++) {
        const bool own = varies(&p->kept[k], output);
        sorted &= first || !own;
        first &= own;
        samples *= own ? p->kept[k].size : 1;
        s.sample_rows *= own ? 1 : p->kept[k].size;
    }
    if (sorted && s.identity && s.sample_rows == 1 && samples > 1) {
        s.sums = 0;
    } else if (!sorted) {
        s.sample_rows = 0;
        s.width *= samples;
    } else if (samples > 1) {
        s.sums = 3;
    }
    return s;
}

int gradient_sums_of(const problem *p, gradient_sum sums[GRADIENT_SUMS]) {
    static const role outputs[GRADIENT_SUMS] = {ROLE_DWEIGHT, ROLE_DBIAS, ROLE_DSCALE, ROLE_DSHIFT,
                                                ROLE_DCOLUMN_SCALE};
    int count = 0;
    for (int i = 0; i < GRADIENT_SUMS; i++)
        if (has(p, outputs[i]))
            sums[count++] = gradient_sum_of(p, outputs[i]);
    return count;
}

/* Among the elements of all rows, the first of this row's. */
static int64_t first_element(const problem *p, const gradient_sum *s, int64_t row) {
    int64_t first = 0, span = s->row_width;
    for (int k = p->kept_count - 1; k >= 0; k--) {
        if (varies(&p->kept[k], s->output)) {
            first += row % p->kept[k].size * span;
            span *= p->kept[k].size;
        }
        row /= p->kept[k].size;
    }
    return first;
}

/* ---- Where they lie -------------------------------------------------------------------------- */

static char *element_at(const cpu_job *job, role output, int64_t i) {
    const problem *p = job->problem;
    int64_t offset = 0;
    for (int k = p->reduced_count - 1; k >= 0; k--)
        if (varies(&p->reduced[k], output)) {
            offset += i % p->reduced[k].size * reduced_stride(p, k, output);
            i /= p->reduced[k].size;
        }
    for (int k = p->kept_count - 1; k >= 0; k--)
        if (varies(&p->kept[k], output)) {
            offset += i % p->kept[k].size * kept_stride(p, k, output);
            i /= p->kept[k].size;
        }
    return job->data[output] + offset * dtype_bytes(p->dtypes[output]);
}

/* Whether a row's elements are neighbours, in their order. */
static bool row_is_dense(const problem *p, role output) {
    int64_t span = 1;
    bool dense = true;
    for (int k = p->reduced_count - 1; k >= 0; k--) {
        const axis *a = &p->reduced[k];
        if (!varies(a, output))
            continue;
        dense &= axis_stride(p, a, output) == span;
        span *= a->size;
    }
    return dense;
}

/* Values of elements `first` on; `count` stays within a row where these are dense. */
static void store(const cpu_job *job, const gradient_sum *s, int64_t first, int64_t count,
                  const double values[]) {
    const dtype type = job->problem->dtypes[s->output];
    const bool dense = row_is_dense(job->problem, s->output);
    for (int64_t i = 0; i < count;) {
        const int64_t rest = s->row_width - (first + i) % s->row_width;
        const int64_t n = !dense ? 1 : rest < count - i ? rest : count - i;
        char *to = element_at(job, s->output, first + i);
        for (int64_t end = i + n; i < end; i++, to += dtype_bytes(type))
            element_store(to, type, values[i]);
    }
}

/* ---- The sums of a block --------------------------------------------------------------------- */

static size_t sum_bytes(const gradient_sum *s) {
    return round_up((size_t)s->width * sizeof(double));
}

size_t gradient_sum_bytes(const gradient_sum *s, int64_t cols, size_t real_bytes) {
    return (size_t)s->sums * sum_bytes(s) + round_up((size_t)cols * real_bytes);
}

static size_t chunk_bytes(const cpu_job *job) {
    return (size_t)job->problem->cols * (job->plan->is_double ? sizeof(double) : sizeof(float));
}

block_sum block_sum_begin(const cpu_job *job, const gradient_sum *of, char *at, int64_t first_row,
                          int64_t last_row) {
    block_sum s = {.of = *of, .first_row = first_row, .last_row = last_row};
    for (int i = 0; i < of->sums; i++, at += sum_bytes(of))
        s.sum[i] = (double *)at;
    if (of->sums)
        memset(s.sum[0], 0, (size_t)of->sums * sum_bytes(of));
    s.chunk = at;
    memset(s.chunk, 0, chunk_bytes(job));
    return s;
}

/* Adds the chunk, whose elements are a row's, to what sums them, and clears it. */
static void add_chunk(const cpu_job *job, const block_sum *s, double *sum) {
    const problem *p = job->problem;
    if (s->of.identity) {
        job->plan->kernels->spans->flush[job->plan->is_double](sum, s->chunk, p->cols);
        return;
    }
    const dtype real = job->plan->is_double ? DTYPE_F64 : DTYPE_F32;
    int64_t step[PLANISH_MAX_NDIM], span = 1;
    for (int k = p->reduced_count - 1; k >= 0; k--) {
        const bool own = varies(&p->reduced[k], s->of.output);
        step[k] = own ? span : 0;
        span *= own ? p->reduced[k].size : 1;
    }
    const int inner = p->reduced_count - 1;
    for (int64_t at = 0; at < p->cols; at += p->reduced[inner].size) {
        int64_t to = 0, rest = at / p->reduced[inner].size;
        for (int k = inner - 1; k >= 0; k--) {
            to += rest % p->reduced[k].size * step[k];
            rest /= p->reduced[k].size;
        }
        for (int64_t i = 0; i < p->reduced[inner].size; i++)
            sum[to + i * step[inner]] +=
                element_load((const char *)s->chunk + (at + i) * dtype_bytes(real), real);
    }
    memset(s->chunk, 0, chunk_bytes(job));
}

static void flush(const cpu_job *job, block_sum *s) {
    const gradient_sum *of = &s->of;
    if (!s->chunk_rows)
        return;
    s->chunk_rows = 0;
    if (!of->sums) {
        const int64_t first = first_element(job->problem, of, s->row);
        stages_scatter(job, of->output, element_at(job, of->output, first), s->chunk);
        memset(s->chunk, 0, chunk_bytes(job));
        return;
    }
    if (!of->sample_rows) {
        add_chunk(job, s, s->sum[0] + first_element(job->problem, of, s->row));
        return;
    }
    const int64_t sample = s->row / of->sample_rows;
    const bool first = of->sums == 1 || sample == s->first_row / of->sample_rows;
    const bool last = !first && sample == (s->last_row - 1) / of->sample_rows;
    add_chunk(job, s, s->sum[first ? 0 : last ? 1 : 2]);
}

/* The sample that the chunk was of is whole, unless it is the block's first or last. */
static void end_sample(const cpu_job *job, block_sum *s, int64_t sample) {
    const gradient_sum *of = &s->of;
    if (!of->sums)
        return;
    if (sample == s->first_row / of->sample_rows || sample == (s->last_row - 1) / of->sample_rows)
        return;
    store(job, of, first_element(job->problem, of, s->row), of->width, s->sum[2]);
    memset(s->sum[2], 0, (size_t)of->width * sizeof(double));
}

void block_sum_row(const cpu_job *job, block_sum *s, int64_t row) {
    const gradient_sum *of = &s->of;
    if (row == s->first_row) {
        s->row = row;
    } else if (!of->sample_rows) {
        const problem *p = job->problem;
        if (first_element(p, of, row) != first_element(p, of, s->row)) {
            flush(job, s);
            s->row = row;
        }
    } else if (row / of->sample_rows != s->row / of->sample_rows) {
        flush(job, s);
        end_sample(job, s, s->row / of->sample_rows);
        s->row = row;
    }
    if (s->chunk_rows == CHUNK_ROWS)
        flush(job, s);
    s->chunk_rows++;
}

void block_sum_end(const cpu_job *job, block_sum *s) {
    flush(job, s);
}

/* ---- Of all blocks --------------------------------------------------------------------------- */

static void add(double total[], const double *sum, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        total[i] += sum[i];
}

void gradient_sum_store(const cpu_job *job, const gradient_sum *s, const char *at, size_t step,
                        int64_t block_rows, int64_t first, int64_t count) {
    const problem *p = job->problem;
    double total[SUM_TILE] = {0};
    int64_t open = 0; /* the first row of the sample that is added up */
    for (int64_t row = 0; row < p->rows; row += block_rows, at += step) {
        const int64_t end = row + block_rows < p->rows ? row + block_rows : p->rows;
        for (int i = 0; i < 2 && i < s->sums; i++) {
            const int64_t part = i ? end - 1 : row;
            if (i && part / s->sample_rows == row / s->sample_rows)
                continue;
            if (s->sums > 1 && part / s->sample_rows != open / s->sample_rows) {
                store(job, s, first_element(p, s, open) + first, count, total);
                memset(total, 0, (size_t)count * sizeof *total);
                open = part;
            }
            add(total, (const double *)(at + (size_t)i * sum_bytes(s)) + first, count);
        }
    }
    store(job, s, (s->sums > 1 ? first_element(p, s, open) : 0) + first, count, total);
}

void gradient_sums_clear(const cpu_job *job) {
    const problem *p = job->problem;
    gradient_sum sums[GRADIENT_SUMS];
    const int count = gradient_sums_of(p, sums);
    for (int i = 0; i < count; i++) {
        const role output = sums[i].output;
        int64_t elements = 1;
        for (int k = 0; k < p->kept_count; k++)
            elements *= varies(&p->kept[k], output) ? p->kept[k].size : 1;
        for (int k = 0; k < p->reduced_count; k++)
            elements *= varies(&p->reduced[k], output) ? p->reduced[k].size : 1;
        for (int64_t e = 0; e < elements; e++)
            element_store(element_at(job, output, e), p->dtypes[output], 0);
    }
}
