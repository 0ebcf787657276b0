/*
 * The catching is libtorch's: torch_parallel_for runs one item on the calling thread, inside the
 * try that every function of the C ABI has. So neither a C++ compiler nor the layout of an
 * exception is needed. See guard.h.
 */
#include "guard.h"

#include "aoti.h"

typedef struct guarded_work {
    guarded_body *body;
    void *context;
    message error;
    planish_status status;
} guarded_work;

static void run(int64_t begin, int64_t end, void *context) {
    guarded_work *work = context;
    (void)begin, (void)end;
    work->status = work->body(work->context, work->error);
}

planish_status guarded(guarded_body *body, void *context, message error) {
    planish_status status = torch_load(error);
    if (status != PLANISH_OK)
        return status;
    guarded_work work = {body, context, error, PLANISH_OK};
    local_dispatch_keys *keys = torch_local_dispatch_keys(), before;
    if (keys) {
        before = *keys;
        *keys = (local_dispatch_keys){0};
    }
    const torch_error thrown = torch.parallel_for(0, 1, 1, run, &work);
    if (keys)
        *keys = before;
    if (thrown)
        return fail(error, PLANISH_ERROR_DRIVER, "torch raised: %s", torch_last_words());
    return work.status;
}
