#include "kernel.h"

#include <stdlib.h>

#include "families.h"

enum { MESSAGE_BYTES = 512 };

static planish_status run_family(norm_run *run) {
    switch (run->kernel->facts.family) {
    case FAMILY_ROWS:
        return run_rows(run);
    case FAMILY_GROUPS:
        return run_groups(run);
    case FAMILY_INSTANCE:
        return run_instance(run);
    default:
        return run_batch(run);
    }
}

ort_status *norm_kernel_run(const norm_kernel *kernel, ort_kernel_context *context) {
    char text[MESSAGE_BYTES] = "";
    norm_run run = {.kernel = kernel, .context = context, .error = {text, sizeof text}};
    planish_status status = run_read_inputs(&run);
    if (status == PLANISH_OK)
        status = run_family(&run);
    free(run.on_heap);
    if (status == PLANISH_OK)
        return NULL;
    const int32_t code = status == PLANISH_ERROR_OUT_OF_MEMORY ? ORT_FAIL : ORT_INVALID_ARGUMENT;
    return kernel->api->create_status(code, text);
}
