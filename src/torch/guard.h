/*
 * The way in for callers that no C++ exception may reach: ctypes, whose frames end the process by
 * std::terminate where one arrives.
 *
 * Functions of libtorch's C ABI return what C++ threw as an error, so only these throw: torch_check
 * and torch_throw, and torch's functions called by their C++ names (fallback.h, unboxed.h, making
 * tensors). Two kinds of code call them:
 *
 *   - kernels, which torch's dispatcher calls: an exception goes through their frames to whoever
 *     called the operator, as from any kernel of torch's own;
 *   - what python/planish calls by ctypes: these functions do their work in a guarded_body.
 *
 * Nothing else catches: a function that ctypes calls and that reaches a throwing one has to be
 * guarded.
 */
#ifndef PLANISH_TORCH_GUARD_H
#define PLANISH_TORCH_GUARD_H

#include "../status.h"

typedef planish_status guarded_body(void *context, message error);

/*
 * Loads libtorch, then runs the body where what it throws is caught, and becomes DRIVER with
 * torch's words (before torch 2.13 these are on stderr). Cleanups of the body's frames run.
 *
 * Meanwhile this thread dispatches as a new thread does: no mode, transform, tracing, autocast or
 * inference mode sees the operators that the body calls, and it gets real tensors.
 */
planish_status guarded(guarded_body *body, void *context, message error);

#endif
