/*
 * planish's operators that put together what the parts of rows sent (norm_parts.c has the passes
 * before and behind them; python/planish/operators/parts.py the exchange). Axes and options are
 * those of options.h; of these OPTION_RMS.
 *
 *     norm_merge(x, sent, int axes, int options, float eps) -> (mean, rstd, shares)
 *     norm_merge_sums(x, sent, shares, int axes, int options) -> (c1, c2)
 *
 * x is this rank's part, of which only the sizes count. sent is f64, a dense row for each part: in
 * norm_merge its number of elements, the means of all rows (RMS: none), then their m2; in
 * norm_merge_sums c1 (RMS: none), then c2. Parts are taken in their order, so that whoever merges
 * the same parts has the same bits:
 *
 *     share_p = n_p / sum of n          mean = sum of share_p mean_p
 *     m2 = sum of m2_p + n_p (mean_p - mean)^2 (Chan, Golub, LeVeque 1983)
 *     rstd = 1 / sqrt(m2 / sum of n + eps)          c = sum of share_p c_p
 *
 * Results are f64, with x's rank, 1 on every reduced axis; shares has one number for each part.
 */
#include <math.h>

#include "norm_call.h"

#include "calls.h"
#include "kernels.h"

/* What was sent: of each part a dense row, which ends in one or two numbers for each of x's rows.
 */
typedef struct messages {
    const double *data;
    int64_t parts, length, stride, rows;
} messages;

static int64_t kept_rows(const norm_call *c) {
    int64_t rows = 1;
    for (int32_t i = 0; i < c->view[ROLE_X].ndim; i++)
        if (norm_call_kept_axes(c) & PLANISH_AXIS(i))
            rows *= c->view[ROLE_X].shape[i];
    return rows;
}

static messages messages_of(const norm_call *c, const DLTensor *sent, int64_t head) {
    const int64_t rows = kept_rows(c), kinds = c->op.kind == PLANISH_RMS ? 1 : 2;
    if (sent->ndim != 2 || !view_is_double(sent) || sent->shape[1] != head + kinds * rows ||
        (sent->shape[1] > 1 && sent->strides[1] != 1) || !same_device(sent, &c->view[ROLE_X]))
        torch_throw("planish: sent must be a dense row of f64 for each part, with what was sent of "
                    "each of x's rows, on x's device");
    if (sent->device.device_type != kDLCPU)
        torch_throw("planish: parts are merged on the CPU alone");
    return (messages){sent->data, sent->shape[0], sent->shape[1], sent->strides[0], rows};
}

/* sums = sum of shares[p] times what each part has from `at` on. */
static void add_shares(const messages *m, const double *shares, int64_t at, double *sums) {
    for (int64_t row = 0; row < m->rows; row++)
        sums[row] = 0;
    for (int64_t p = 0; p < m->parts; p++) {
        const double *sent = m->data + p * m->stride + at, share = shares[p];
        for (int64_t row = 0; row < m->rows; row++)
            sums[row] += share * sent[row];
    }
}

/* m2 of whole rows; mean NULL: of an RMS norm. */
static void add_squares(const messages *m, const double *mean, double *m2) {
    for (int64_t row = 0; row < m->rows; row++)
        m2[row] = 0;
    for (int64_t p = 0; p < m->parts; p++) {
        const double *means = m->data + p * m->stride + 1, count = means[-1];
        const double *of_part = mean ? means + m->rows : means;
        for (int64_t row = 0; row < m->rows; row++) {
            const double apart = mean ? means[row] - mean[row] : 0;
            m2[row] += of_part[row] + count * (apart * apart);
        }
    }
}

static void merge_statistics(const messages *m, double eps, double *mean, double *rstd,
                             double *shares) {
    double count = 0;
    for (int64_t p = 0; p < m->parts; p++)
        count += m->data[p * m->stride];
    for (int64_t p = 0; p < m->parts; p++)
        shares[p] = m->data[p * m->stride] / count;
    if (mean)
        add_shares(m, shares, 1, mean);
    add_squares(m, mean, rstd);
    for (int64_t row = 0; row < m->rows; row++)
        rstd[row] = 1 / sqrt(rstd[row] / count + eps);
}

static void make_statistic(norm_call *c, role r) {
    norm_call_make_dense(c, r, norm_call_kept_axes(c), true, torch.f64);
}

void norm_merge(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_MERGE, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_MEAN, ROLE_RSTD};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[2], stack[3]), .options = stack[3], .rooms = rooms};
    const double eps = take_double(stack[4]);
    OWNED_TENSOR sent = take_tensor(stack[1]);
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent);
    const messages m = messages_of(&c, &view, 1);
    const bool has_mean = c.op.kind != PLANISH_RMS;
    if (has_mean)
        make_statistic(&c, ROLE_MEAN);
    make_statistic(&c, ROLE_RSTD);
    int64_t sizes[1] = {m.parts}, strides[1];
    DLTensor shares_view;
    NEW_TENSOR shares = new_dense_tensor(&view, 1, sizes, torch.f64, strides, &shares_view);
    merge_statistics(&m, eps, has_mean ? c.view[ROLE_MEAN].data : NULL, c.view[ROLE_RSTD].data,
                     shares_view.data);
    norm_call_give(&c, stack, outputs, 2);
    const returned_tensors last = {{give_tensor(&shares), NULL, NULL}};
    give_returned(stack + 2, &last, 1);
}

void norm_merge_sums(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_MERGE_SUMS, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_C1, ROLE_C2};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[3], stack[4]), .options = stack[4], .rooms = rooms};
    OWNED_TENSOR sent = take_tensor(stack[1]);
    OWNED_TENSOR shares = take_tensor(stack[2]);
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent), shares_view = view_input(shares);
    const messages m = messages_of(&c, &view, 0);
    if (shares_view.ndim != 1 || shares_view.shape[0] != m.parts || !view_is_double(&shares_view) ||
        !view_is_contiguous(&shares_view) || !same_device(&shares_view, &view))
        torch_throw("planish: shares must have one f64 for each part, on x's device");
    for (int i = 0; i < 2; i++)
        if (c.op.kind != PLANISH_RMS || outputs[i] == ROLE_C2) {
            make_statistic(&c, outputs[i]);
            add_shares(&m, shares_view.data, outputs[i] == ROLE_C2 ? m.length - m.rows : 0,
                       c.view[outputs[i]].data);
        }
    norm_call_give(&c, stack, outputs, 2);
}
