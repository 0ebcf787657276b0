/*
 * The structs of callers, whose headers may be older or newer than this library: each is read into
 * one of this library's size, with 0 for the fields that the caller does not know (planish.h, "The
 * operator").
 */
#ifndef PLANISH_SIZED_H
#define PLANISH_SIZED_H

#include "status.h"

/* `given` NULL is an error but for planish_exec, which is then all 0. */
planish_status read_norm(planish_norm *own, const planish_norm *given, message error);
planish_status read_tensors(planish_tensors *own, const planish_tensors *given, message error);
planish_status read_buffers(planish_buffers *own, const planish_buffers *given, message error);

/* Without a sentence: where one goes is in the struct. */
planish_status read_exec(planish_exec *own, const planish_exec *given);

static inline message message_of(const planish_exec *exec) {
    return (message){exec->message, exec->message_bytes};
}

#endif
