/*
 * Who is inside a kernel, what was counted, and why a call went to torch.
 *
 * Every kernel enters here first and leaves last: the counts of both tell whether a call is in
 * flight (disable waits for none) and are the statistics at the same time.
 */
#ifndef PLANISH_TORCH_CALLS_H
#define PLANISH_TORCH_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "planish.h"

typedef enum operation {
    NATIVE_LAYER_NORM,
    NATIVE_LAYER_NORM_BACKWARD,
    NATIVE_GROUP_NORM,
    NATIVE_GROUP_NORM_BACKWARD,
    FUSED_RMS_NORM,
    FUSED_RMS_NORM_BACKWARD,
    RMS_NORM,
    RMS_NORM_AUTOGRAD,
    NATIVE_BATCH_NORM,
    NATIVE_BATCH_NORM_BACKWARD,
    NATIVE_BATCH_NORM_LEGIT,
    NATIVE_BATCH_NORM_NO_STATS,
    BATCH_NORM_WITH_UPDATE,
    BATCH_NORM_BACKWARD,
    CUDNN_BATCH_NORM,
    CUDNN_BATCH_NORM_BACKWARD,
    BATCH_NORM_STATS,
    BATCH_NORM_ELEMT,
    BATCH_NORM_BACKWARD_REDUCE,
    BATCH_NORM_BACKWARD_ELEMT,
    WEIGHT_NORM,
    WEIGHT_NORM_BACKWARD,
    NORM_FORWARD,
    NORM_FORWARD_STAGES,
    NORM_BACKWARD,
    NORM_BACKWARD_STAGES,
    NORM_STATISTICS,
    QUANTIZED_NORM,
    NORM_INTO,
    NORM_PAIR,
    NORM_PAIR_BACKWARD,
    BATCH_NORM,
    NORM_PART_STATISTICS,
    NORM_PART_MESSAGE,
    NORM_APPLY,
    NORM_BACKWARD_STATISTICS,
    NORM_BACKWARD_APPLY,
    NORM_PART_APPLY,
    NORM_PART_BACKWARD_APPLY,
    OPERATION_COUNT
} operation;

/* Why a call was handed to torch's own kernel. */
typedef enum reason {
    SUPPORTED,
    DISABLED,
    WRONG_SHAPE,
    OTHER_DTYPE,
    MIXED_DTYPES,
    OTHER_DEVICE,
    TOO_MANY_AXES,
    ODD_GRADIENT,
    NO_ELEMENTS,
    NOT_DENSE,
    NO_GPU_KERNEL,
    INFERENCE_TENSOR,
    FORWARD_MODE,
    TORCH_IS_FASTER,
    LIBRARY_REFUSED,
    NOT_OWN,
    REASON_COUNT
} reason;

/* How a call comes in: by torch's stack of boxed values, or as from C++ (unboxed.h). */
typedef enum entrance { BOXED, UNBOXED, ENTRANCE_COUNT } entrance;

typedef struct operation_counts {
    _Alignas(64) atomic_uint_fast64_t entered[ENTRANCE_COUNT];
    atomic_uint_fast64_t left;
    atomic_uint_fast64_t handed_on[REASON_COUNT];
} operation_counts;

extern operation_counts calls[OPERATION_COUNT];

/* The groups (PLANISH_TORCH_*) that run on planish at this moment. */
extern atomic_uint active_groups;

/* The groups whose kernels stay for planish's own functions (planish_torch_stay). */
extern atomic_uint staying_groups;

static inline operation_counts *call_enter(operation op, entrance how) {
    atomic_fetch_add(&calls[op].entered[how], 1);
    return &calls[op];
}

static inline void call_leave(operation_counts **call) {
    atomic_fetch_add(&(*call)->left, 1);
}

/* Entered for the rest of the scope, exceptions included. */
#define INSIDE __attribute__((cleanup(call_leave))) operation_counts *

static inline bool group_is_active(uint32_t group) {
    return atomic_load(&active_groups) & group;
}

/* Why a call of this group is torch's where planish is not enabled. */
static inline reason idle_reason(uint32_t group) {
    return atomic_load(&staying_groups) & group ? NOT_OWN : DISABLED;
}

static inline void count_reason(operation_counts *call, reason why) {
    atomic_fetch_add_explicit(&call->handed_on[why], 1, memory_order_relaxed);
}

/* Why a call goes to torch where libplanish returned this status. */
static inline reason refusal(planish_status status) {
    return status == PLANISH_ERROR_NO_FAST_KERNEL || status == PLANISH_ERROR_UNAVAILABLE
               ? NO_GPU_KERNEL
               : LIBRARY_REFUSED;
}

/* The words for a reason; NULL for SUPPORTED. */
const char *reason_text(reason why);

/* Whether any call of an operator that can be removed is between enter and leave. */
bool calls_in_flight(void);

/* All calls so far; unchanged means that nobody came in between. */
uint64_t calls_entered(void);

/* In a child process only the thread that forked goes on: nobody is inside a kernel. */
void calls_reset_in_flight(void);

#endif
