/* What a batch norm should make, in long double; see batch_run.h. */
#include "batch_run.h"

#include <math.h>
#include <stdlib.h>

#include "activation.h"

/* Each row's mean and rstd, and its variance. */
static void moments(const batch_run *r, real *mean, real *rstd, real *var) {
    for (int64_t e = 0; e < r->g.elements; e++)
        mean[r->g.row[e]] += r->v[T_X][e] / (real)r->g.cols;
    for (int64_t e = 0; e < r->g.elements; e++)
        var[r->g.row[e]] += powl(r->v[T_X][e] - mean[r->g.row[e]], 2) / (real)r->g.cols;
    for (int64_t i = 0; i < r->g.rows; i++)
        rstd[i] = 1 / sqrtl(var[i] + (real)r->op.eps);
}

static void given_moments(const batch_run *r, real *mean, real *rstd) {
    for (int64_t i = 0; i < r->g.rows; i++) {
        mean[i] = r->v[r->w->running ? T_RUNNING_MEAN : T_MEAN][i];
        rstd[i] =
            r->w->running ? 1 / sqrtl(r->v[T_RUNNING_VAR][i] + (real)r->op.eps) : r->v[T_RSTD][i];
    }
}

static void want(batch_run *r, slot k, int64_t i, real value, real bound) {
    if (!r->has[k])
        return;
    r->v[k][i] = value;
    r->bound[k][i] = bound + element_ulp(r->t[k].type, fabsl(value)) * .5001L;
}

static void want_forward(batch_run *r, const real *mean, const real *rstd, const real *var,
                         real unit) {
    const geometry *g = &r->g;
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real weighed = (r->v[T_X][e] - mean[row]) * rstd[row] * r->v[T_WEIGHT][c];
        const real added = r->has[T_ADDEND] ? r->v[T_ADDEND][e] : 0;
        const real z = weighed + r->v[T_BIAS][c] + added;
        const real terms = 12 + fabsl(weighed) + fabsl(r->v[T_BIAS][c]) + fabsl(added);
        want(r, T_Y, e, activated(r->op.activation, z), 8 * unit * terms);
    }
    for (int64_t i = 0; r->w->pass == PLANISH_FORWARD && i < g->rows; i++) {
        const real m = (real)r->op.momentum, n = (real)g->cols;
        want(r, T_MEAN, i, mean[i], 4 * unit);
        want(r, T_RSTD, i, rstd[i], 8 * unit * rstd[i]);
        if (!r->w->running)
            continue;
        want(r, T_RUNNING_MEAN, i, (1 - m) * r->v[T_RUNNING_MEAN][i] + m * mean[i], 8 * unit);
        want(r, T_RUNNING_VAR, i, (1 - m) * r->v[T_RUNNING_VAR][i] + m * var[i] * n / (n - 1),
             8 * unit * (1 + var[i]));
    }
}

static void want_backward(batch_run *r, const real *mean, const real *rstd, real unit) {
    const geometry *g = &r->g;
    const size_t rows = (size_t)g->rows + 1, channels = (size_t)g->channels + 1;
    real *c1 = calloc(rows, sizeof *c1), *c2 = calloc(rows, sizeof *c2);
    real *most = calloc(rows, sizeof *most), *d = calloc((size_t)g->elements + 1, sizeof *d);
    real *sums[4];
    for (int k = 0; k < 4; k++)
        sums[k] = calloc(channels, sizeof(real));
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real xhat = (r->v[T_X][e] - mean[row]) * rstd[row];
        real z = xhat * r->v[T_WEIGHT][c] + (r->has[T_BIAS] ? r->v[T_BIAS][c] : 0);
        z += r->has[T_ADDEND] ? r->v[T_ADDEND][e] : 0;
        /* Where the mask of a ReLU is not sure there is nothing to mask. */
        if (r->op.activation == PLANISH_RELU && !r->has[T_Y] && fabsl(z) < 1e-3L) {
            r->v[T_DY][e] = 0;
            tensor_write(&r->t[T_DY].dl, r->v[T_DY]);
        }
        d[e] = r->v[T_DY][e];
        d[e] *= r->has[T_Y] ? r->v[T_Y][e] > 0 : activated_slope(r->op.activation, z);
        const real of_d = 16 * unit * fabsl(r->v[T_DY][e]) * (1 + fabsl(z));
        want(r, T_DADDEND, e, d[e],
             r->op.activation == PLANISH_RELU || !r->op.activation ? 0 : of_d);
        sums[0][c] += d[e] * xhat;
        sums[1][c] += d[e];
        sums[2][c] += fabsl(d[e] * xhat) + fabsl(r->v[T_DY][e]);
        sums[3][c] += fabsl(d[e]) + fabsl(r->v[T_DY][e]);
        c1[row] += d[e] * r->v[T_WEIGHT][c] / (real)g->cols;
        c2[row] += d[e] * r->v[T_WEIGHT][c] * xhat / (real)g->cols;
    }
    for (int64_t i = 0; i < g->rows; i++) {
        c1[i] = r->w->running ? 0 : r->w->given_sums ? r->v[T_C1][i] : c1[i];
        c2[i] = r->w->running ? 0 : r->w->given_sums ? r->v[T_C2][i] : c2[i];
    }
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e], c = g->channel[e];
        const real xhat = (r->v[T_X][e] - mean[row]) * rstd[row], w = r->v[T_WEIGHT][c];
        const real terms =
            fabsl(r->v[T_DY][e] * w) * (1 + fabsl(xhat)) + fabsl(c1[row]) + fabsl(xhat * c2[row]);
        want(r, T_DX, e, rstd[row] * (d[e] * w - c1[row] - xhat * c2[row]),
             16 * unit * rstd[row] * (4 + terms));
    }
    for (int64_t c = 0; c < g->channels; c++) {
        want(r, T_DWEIGHT, c, sums[0][c], 16 * unit * sums[2][c]);
        want(r, T_DBIAS, c, sums[1][c], 16 * unit * sums[3][c]);
    }
    for (int k = 0; k < 4; k++)
        free(sums[k]);
    free(c1), free(c2), free(most), free(d);
}

void want_all(batch_run *r) {
    const size_t rows = (size_t)r->g.rows + 1;
    const real unit = r->type == F64 ? 0x1p-53L : 0x1p-24L;
    real *mean = calloc(rows, sizeof *mean), *rstd = calloc(rows, sizeof *rstd);
    real *var = calloc(rows, sizeof *var);
    if (r->w->pass == PLANISH_BACKWARD && !r->w->running && !r->w->given_sums) {
        /* The row's own, saved in f64. */
        moments(r, mean, rstd, var);
        for (int64_t i = 0; i < r->g.rows; i++) {
            r->v[T_MEAN][i] = mean[i] = (double)mean[i];
            r->v[T_RSTD][i] = rstd[i] = (double)rstd[i];
        }
        tensor_write(&r->t[T_MEAN].dl, r->v[T_MEAN]);
        tensor_write(&r->t[T_RSTD].dl, r->v[T_RSTD]);
    } else if (r->w->pass == PLANISH_FORWARD) {
        moments(r, mean, rstd, var);
    } else {
        given_moments(r, mean, rstd);
    }
    if (r->w->pass == PLANISH_BACKWARD)
        want_backward(r, mean, rstd, unit);
    else
        want_forward(r, mean, rstd, var, unit);
    free(mean), free(rstd), free(var);
}
