/*
 * How a failure is told: a status, and one sentence in the caller's buffer that names the argument,
 * what was found and what was wanted.
 */
#ifndef PLANISH_STATUS_H
#define PLANISH_STATUS_H

#include "planish.h"

/* Where a sentence goes; text may be NULL. */
typedef struct message {
    char *text;
    size_t bytes;
} message;

/* Writes the sentence, if there is room for one, and returns `status`. */
planish_status fail(message to, planish_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
