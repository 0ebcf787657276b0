/* A text that grows while there is room and whose whole length is known. */
#ifndef PLANISH_TEXT_H
#define PLANISH_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct text {
    char *start;
    size_t room, length;
} text;

static inline void __attribute__((format(printf, 2, 3))) append(text *to, const char *format, ...) {
    bool fits = to->length < to->room;
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(fits ? to->start + to->length : NULL, fits ? to->room - to->length : 0,
                          format, arguments);
    va_end(arguments);
    to->length += (size_t)(added > 0 ? added : 0);
}

#endif
