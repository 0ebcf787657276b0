/*
 * One call of a binding, whose callers have tensors and no plan: the plan that is kept for it or
 * made, whether only slow kernels run it, what workspace it takes, and its run. Tensors are
 * DLTensors here. Threads and memory are the binding's, which gives them in a planish_exec between
 * these steps: so what its language throws for want of them goes through none of planish's frames.
 */
#ifndef PLANISH_BOUND_CALL_H
#define PLANISH_BOUND_CALL_H

#include <stdbool.h>

#include "status.h"

typedef struct bound_call {
    const planish_tensors *tensors; /* there as long as the call */
    const planish_plan *plan;
    planish_plan *made; /* for this call alone; NULL: the plan is kept */
} bound_call;

/* Finds or makes the plan; each tensor has its strides. Whatever is returned, bound_call_free frees
 * what was made. */
planish_status bound_call_find(bound_call *call, const planish_norm *op, planish_pass pass,
                               const planish_tensors *tensors, message error);
void bound_call_free(bound_call *call);

/* Where the kernels for any layout may run: what a framework has of its own, a copy and then its
 * own kernel, is faster on GPUs, and on the CPU with large tensors. */
typedef enum general_use { GENERAL_ANYWHERE, GENERAL_ON_CPU, GENERAL_IF_SMALL } general_use;

/* NO_FAST_KERNEL where the plan is of those kernels and they may not run here. */
planish_status bound_call_check(const bound_call *call, general_use allowed, message error);

/* What a run takes of workspace, of one call, or of two in one run (`second` not NULL). */
size_t bound_call_bytes(const bound_call *call, const bound_call *second);

enum {
    BOUND_ALIGNMENT = 256,    /* of a workspace */
    BOUND_STACK_BYTES = 4096, /* up to this a workspace lies on the stack, for the CPU */
};
typedef struct bound_stack {
    _Alignas(BOUND_ALIGNMENT) char bytes[BOUND_STACK_BYTES];
} bound_stack;

/* Has exec use the stack where so many bytes may lie there; false: the binding has to make so many
 * and BOUND_ALIGNMENT more, and says where in bound_call_use. */
bool bound_call_on_stack(const bound_call *call, size_t bytes, bound_stack *stack,
                         planish_exec *exec);
void bound_call_use(void *memory, size_t bytes, planish_exec *exec);

/* Runs it, or two in one run. */
planish_status bound_call_run(const bound_call *call, const bound_call *second,
                              const planish_exec *exec);

/* All of it, for a binding whose language throws nothing: on the CPU with a workspace on the stack
 * or on the heap, on a GPU with exec's own. */
planish_status bound_call_whole(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, planish_exec *exec, message error);

#endif
