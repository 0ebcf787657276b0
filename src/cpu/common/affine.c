/* Affine elements between tensors and the compute type. */
#include "cpu/common/affine.h"

char *affine_element(const cpu_job *job, role r, int64_t i) {
    const problem *p = job->problem;
    int64_t offset = 0;
    for (int k = p->reduced_count - 1; k >= 0; k--)
        if (p->reduced[k].affine) {
            offset += i % p->reduced[k].size * reduced_stride(p, k, r);
            i /= p->reduced[k].size;
        }
    for (int k = p->kept_count - 1; k >= 0; k--)
        if (p->kept[k].affine) {
            offset += i % p->kept[k].size * kept_stride(p, k, r);
            i /= p->kept[k].size;
        }
    return job->data[r] + offset * dtype_bytes(p->dtypes[r]);
}

static bool continues(const problem *p, const axis *a, role r, int64_t *span) {
    if (!a->affine)
        return true;
    const bool next = axis_stride(p, a, r) == *span;
    *span *= a->size;
    return next;
}

bool affine_is_dense(const problem *p, role r) {
    int64_t span = 1;
    bool dense = true;
    for (int k = p->reduced_count - 1; k >= 0; k--)
        dense &= continues(p, &p->reduced[k], r, &span);
    for (int k = p->kept_count - 1; k >= 0; k--)
        dense &= continues(p, &p->kept[k], r, &span);
    return dense;
}

void load_affine(const cpu_job *job, role r, void *to) {
    const cpu_plan *plan = job->plan;
    const problem *p = job->problem;
    if (!plan->is_double && affine_is_dense(p, r)) {
        plan->kernels->spans->widen[p->dtypes[r]](to, job->data[r], p->affine);
        return;
    }
    for (int64_t i = 0; i < p->affine; i++) {
        const double value = element_load(affine_element(job, r, i), p->dtypes[r]);
        if (plan->is_double)
            ((double *)to)[i] = value;
        else
            ((float *)to)[i] = (float)value;
    }
}

/* In vectors, through f32. */
static void store_dense(const cpu_kernels *kernels, char *data, dtype type, int64_t first,
                        const double total[], int64_t count) {
    float rounded[SUM_TILE];
    for (int64_t i = 0; i < count; i++)
        rounded[i] = (float)total[i];
    if (type == DTYPE_F64)
        memcpy((double *)data + first, total, (size_t)count * sizeof *total);
    else
        kernels->spans->narrow[type](data + first * dtype_bytes(type), rounded, count);
}

void store_affine(const cpu_job *job, role r, int64_t first, int64_t count, const double values[],
                  bool is_dense) {
    const cpu_plan *plan = job->plan;
    const dtype type = job->problem->dtypes[r];
    if (is_dense && !plan->is_double)
        store_dense(plan->kernels, job->data[r], type, first, values, count);
    else
        for (int64_t i = 0; i < count; i++)
            element_store(affine_element(job, r, first + i), type, values[i]);
}
