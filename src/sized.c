/* Reading the structs of callers; see sized.h. */
#include "sized.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/*
 * How large each was in the first release, 0.1. A field that comes later begins behind that, never
 * in the padding at its end: what an older caller has there is not 0.
 */
enum { FIRST_NORM = 48, FIRST_TENSORS = 96, FIRST_BUFFERS = 96, FIRST_EXEC = 72 };
/* More than any later struct has grown by: a size beyond is none. */
enum { LATER_BYTES = 1024 };

_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(planish_norm) >= FIRST_NORM &&
                    sizeof(planish_tensors) >= FIRST_TENSORS &&
                    sizeof(planish_buffers) >= FIRST_BUFFERS && sizeof(planish_exec) >= FIRST_EXEC),
               "a public struct is smaller than it was");

static bool is_zero(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i])
            return false;
    return true;
}

/* `bytes`: of this library's struct. */
static planish_status read_struct(void *own, const void *given, size_t first, size_t bytes,
                                  const char *name, message error) {
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < first || size > bytes + LATER_BYTES)
        return fail(error, PLANISH_ERROR_STRUCT_SIZE,
                    "%s->struct_size is %zu; wanted its size, %zu or more", name, size, first);
    if (size > bytes && !is_zero((const unsigned char *)given + bytes, size - bytes))
        return fail(error, PLANISH_ERROR_STRUCT_SIZE,
                    "%s->struct_size is %zu, and a field behind the %zu bytes that this library "
                    "knows is set; wanted 0 there, or a newer libplanish",
                    name, size, bytes);
    const size_t known = size < bytes ? size : bytes;
    memcpy(own, given, known);
    memset((char *)own + known, 0, bytes - known);
    memcpy(own, &bytes, sizeof bytes);
    return PLANISH_OK;
}

planish_status read_norm(planish_norm *own, const planish_norm *given, message error) {
    if (!given)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "op is NULL; wanted a planish_norm");
    return read_struct(own, given, FIRST_NORM, sizeof *own, "op", error);
}

planish_status read_tensors(planish_tensors *own, const planish_tensors *given, message error) {
    if (!given)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "tensors is NULL; wanted a planish_tensors");
    return read_struct(own, given, FIRST_TENSORS, sizeof *own, "tensors", error);
}

planish_status read_buffers(planish_buffers *own, const planish_buffers *given, message error) {
    if (!given)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "buffers is NULL; wanted a planish_buffers");
    return read_struct(own, given, FIRST_BUFFERS, sizeof *own, "buffers", error);
}

planish_status read_exec(planish_exec *own, const planish_exec *given) {
    memset(own, 0, sizeof *own);
    own->struct_size = sizeof *own;
    if (!given)
        return PLANISH_OK;
    const planish_status status =
        read_struct(own, given, FIRST_EXEC, sizeof *own, "exec", (message){0});
    if (!status && own->reserved)
        return fail(message_of(own), PLANISH_ERROR_ARGUMENT, "exec->reserved is %d; wanted 0",
                    own->reserved);
    return status;
}
