/* Statistics and sums of parts of rows, put together on the CPU; see merge.h. */
#include "merge.h"

#include <math.h>

/* sums = sum of shares[p] times what each part has from `at` on. */
static void add_shares(const merge_args *m, const double *shares, int64_t at, double *sums) {
    for (int64_t row = 0; row < m->rows; row++)
        sums[row] = 0;
    for (int64_t p = 0; p < m->parts; p++) {
        const double *sent = m->sent + p * m->stride + at, share = shares[p];
        for (int64_t row = 0; row < m->rows; row++)
            sums[row] += share * sent[row];
    }
}

/* m2 of whole rows; mean NULL: of a norm without one. */
static void add_squares(const merge_args *m, const double *mean, double *m2) {
    for (int64_t row = 0; row < m->rows; row++)
        m2[row] = 0;
    for (int64_t p = 0; p < m->parts; p++) {
        const double *means = m->sent + p * m->stride + 1, count = means[-1];
        const double *of_part = mean ? means + m->rows : means;
        for (int64_t row = 0; row < m->rows; row++) {
            const double apart = mean ? means[row] - mean[row] : 0;
            m2[row] += of_part[row] + count * (apart * apart);
        }
    }
}

static void merge_statistics(const merge_args *m) {
    double count = 0;
    for (int64_t p = 0; p < m->parts; p++)
        count += m->sent[p * m->stride];
    for (int64_t p = 0; p < m->parts; p++)
        m->made_shares[p] = m->l2 ? 1 : m->sent[p * m->stride] / count;
    if (m->first)
        add_shares(m, m->made_shares, 1, m->first);
    add_squares(m, m->first, m->second);
    for (int64_t row = 0; row < m->rows; row++) {
        const double length = sqrt(m->second[row]);
        m->second[row] = m->l2 ? 1 / (length < m->eps ? m->eps : length)
                               : 1 / sqrt(m->second[row] / count + m->eps);
    }
}

planish_status cpu_merge(const merge_args *m, int device, void *stream, message error) {
    (void)device, (void)stream, (void)error;
    if (!m->parts) {
        for (int64_t row = 0; row < m->rows; row++)
            m->second[row] = m->eps;
        return PLANISH_OK;
    }
    if (!m->shares) {
        merge_statistics(m);
        return PLANISH_OK;
    }
    if (m->first)
        add_shares(m, m->shares, 0, m->first);
    add_shares(m, m->shares, m->first ? m->rows : 0, m->second);
    return PLANISH_OK;
}
