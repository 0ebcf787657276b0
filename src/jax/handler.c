/* One call of XLA's: read, planned (or found), run. See planish_jax.h. */
#include "planish_jax.h"

#include "../bound_call.h"
#include "attributes.h"
#include "pool.h"

enum { MESSAGE_BYTES = 512 };

/* The version of the interface whose functions are used (xla_ffi.h). */
enum { FFI_MAJOR = 0, FFI_MINOR = 3 };

/* Asked at registration: there is no context, no buffer. */
static bool answer_metadata(const xla_frame *frame, uint32_t traits) {
    for (xla_extension *e = frame->extensions; e; e = e->next) {
        if (e->type != XLA_EXTENSION_METADATA)
            continue;
        xla_metadata *metadata = ((xla_metadata_extension *)e)->metadata;
        metadata->version.major = FFI_MAJOR;
        metadata->version.minor = FFI_MINOR;
        metadata->traits = traits;
        return true;
    }
    return false;
}

static int32_t code_of(planish_status status) {
    switch (status) {
    case PLANISH_ERROR_OUT_OF_MEMORY:
        return XLA_RESOURCE_EXHAUSTED;
    case PLANISH_ERROR_UNAVAILABLE:
        return XLA_UNAVAILABLE;
    case PLANISH_ERROR_DRIVER:
        return XLA_INTERNAL;
    default:
        return XLA_INVALID_ARGUMENT;
    }
}

static xla_error *error_of(const xla_api *api, int32_t code, const char *sentence) {
    return api->error_create(&(xla_error_create){sizeof(xla_error_create), NULL, sentence, code});
}

/* XLA may not have placed buffers yet when kernels are loaded; it aligns them to this. */
enum { XLA_ALIGNMENT = 256 };
static void place_all(jax_call *call) {
    const DLTensor *list[ROLE_COUNT];
    tensors_by_role(&call->tensors, list);
    for (int r = 0; r < ROLE_COUNT; r++)
        if (list[r] && !list[r]->data)
            call->views[r].data = (void *)(uintptr_t)((r + 1) * XLA_ALIGNMENT);
}

static xla_error *run_on(const xla_frame *frame, DLDevice device, void *stream) {
    char text[MESSAGE_BYTES] = "";
    const message error = {text, sizeof text};
    planish_exec exec = {
        .struct_size = sizeof exec,
        .parallel_for = pool_parallel_for,
        .parallel_context = (void *)frame,
        .stream = stream,
        .message = text,
        .message_bytes = sizeof text,
        .load_only = frame->stage == XLA_INITIALIZE,
    };
    exec.apart = exec.load_only;
    jax_call call;
    planish_status status = jax_call_read(&call, frame, device, error);
    if (status == PLANISH_OK && exec.load_only)
        place_all(&call);
    if (status == PLANISH_OK && call.workspace) { /* of a GPU: the call's last result */
        exec.workspace = call.workspace->data;
        exec.workspace_bytes = (size_t)call.workspace->dims[0];
    }
    if (status == PLANISH_OK)
        status = bound_call_whole(&call.op, call.pass, &call.tensors, &exec, error);
    return status == PLANISH_OK ? NULL : error_of(frame->api, code_of(status), text);
}

xla_error *planish_jax_cpu(xla_frame *frame) {
    if (answer_metadata(frame, 0) || frame->stage != XLA_EXECUTE)
        return NULL;
    return run_on(frame, (DLDevice){kDLCPU, 0}, NULL);
}

xla_error *planish_jax_cuda(xla_frame *frame) {
    if (answer_metadata(frame, XLA_COMMAND_BUFFER_COMPATIBLE) || frame->stage < XLA_INITIALIZE)
        return NULL;
    const xla_api *api = frame->api;
    if (!XLA_HAS(api, device_ordinal_get))
        return error_of(api, XLA_UNIMPLEMENTED,
                        "this jaxlib does not say which GPU a call is for; planish wants one of "
                        "XLA's FFI 0.2 or later");
    xla_stream_get stream = {.struct_size = sizeof stream, .context = frame->context};
    xla_device_ordinal_get device = {.struct_size = sizeof device, .context = frame->context};
    xla_error *error = api->stream_get(&stream);
    if (!error)
        error = api->device_ordinal_get(&device);
    return error ? error : run_on(frame, (DLDevice){kDLCUDA, device.ordinal}, stream.stream);
}
