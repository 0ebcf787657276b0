#include "status.h"

#include <stdarg.h>
#include <stdio.h>

planish_status fail(message to, planish_status status, const char *format, ...) {
    if (to.text && to.bytes) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(to.text, to.bytes, format, arguments);
        va_end(arguments);
    }
    return status;
}

const char *planish_status_name(planish_status status) {
    static const char *const names[] = {
        "PLANISH_OK",
        "PLANISH_ERROR_NULL_POINTER",
        "PLANISH_ERROR_STRUCT_SIZE",
        "PLANISH_ERROR_ARGUMENT",
        "PLANISH_ERROR_AXES",
        "PLANISH_ERROR_SHAPE",
        "PLANISH_ERROR_STRIDES",
        "PLANISH_ERROR_DTYPE",
        "PLANISH_ERROR_DEVICE",
        "PLANISH_ERROR_OVERLAP",
        "PLANISH_ERROR_WORKSPACE",
        "PLANISH_ERROR_OUT_OF_MEMORY",
        "PLANISH_ERROR_UNAVAILABLE",
        "PLANISH_ERROR_DRIVER",
        "PLANISH_ERROR_FILE",
        "PLANISH_ERROR_NO_FAST_KERNEL",
    };
    if ((int)status < 0 || (size_t)status >= sizeof names / sizeof *names)
        return "unknown planish_status";
    return names[status];
}
