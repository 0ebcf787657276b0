#include "values.h"

#include <stdlib.h>

#include "check.h"

void bundle_run_well(bundle *b) {
    char message[512] = "";
    planish_status status = bundle_run(b, NULL, message, sizeof message);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
}

real bundle_get(const bundle *b, part p, int64_t index) {
    real *values = malloc((size_t)(b->tensor[p].count + 1) * sizeof *values);
    tensor_read(&b->tensor[p].dl, values);
    real value = values[index];
    free(values);
    return value;
}

void bundle_set(bundle *b, part p, int64_t index, real value) {
    tensor *t = &b->tensor[p];
    int64_t offset = 0;
    for (int i = t->dl.ndim - 1; i >= 0; i--) {
        offset += index % t->shape[i] * t->strides[i];
        index /= t->shape[i];
    }
    element_write(t->type,
                  (unsigned char *)t->dl.data + t->dl.byte_offset + offset * element_bytes(t->type),
                  value);
}

void bundle_set_all(bundle *b, part p, real value) {
    for (int64_t i = 0; i < b->tensor[p].count; i++)
        bundle_set(b, p, i, value);
}
