/*
 * The counters of calls.h and their report.
 */
#include "calls.h"

#include "../text.h"
#include "planish_torch.h"

operation_counts calls[OPERATION_COUNT];
atomic_uint active_groups, staying_groups;

static const char *const operation_names[OPERATION_COUNT] = {
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "rms_norm",
    "rms_norm (autograd)",
    "native_batch_norm",
    "native_batch_norm_backward",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats",
    "_batch_norm_with_update",
    "batch_norm_backward",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "batch_norm_stats",
    "batch_norm_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
    "_weight_norm_interface",
    "_weight_norm_interface_backward",
    "planish::norm_forward",
    "planish::norm_forward (stages)",
    "planish::norm_backward",
    "planish::norm_backward (stages)",
    "planish::norm_statistics",
    "planish::quantized_norm",
    "planish::norm_into",
    "planish::norm_pair",
    "planish::norm_pair_backward",
    "planish::batch_norm",
    "planish::norm_part_statistics",
    "planish::norm_part_message",
    "planish::norm_apply",
    "planish::norm_backward_statistics",
    "planish::norm_backward_apply",
    "planish::norm_part_apply",
    "planish::norm_part_backward_apply",
};

static const char *const reason_names[REASON_COUNT] = {
    "",
    "planish was disabled",
    "shapes that do not fit",
    "a dtype other than f16, bf16, f32, f64",
    "a mix of dtypes that torch refuses",
    "a tensor on another device",
    "more axes than planish takes",
    "the gradient of a parameter that is not there",
    "no elements",
    "a layout that torch refuses",
    "a layout that no fast kernel takes, or no kernel could be made",
    "a tensor made in inference mode, which autograd saves none of",
    "forward mode, of which torch's composition keeps the dtype",
    "a norm of which torch's own kernel is faster",
    "refused by libplanish",
    "not a call of planish's own functions",
};

const char *reason_text(reason why) {
    return why == SUPPORTED ? NULL : reason_names[why];
}

/* Planish's own, which come last, stay registered for the rest of the process: nobody waits for
 * them. */
static bool removable(int op) {
    return op < NORM_FORWARD;
}

static uint64_t all_entered(int op) {
    return atomic_load(&calls[op].entered[BOXED]) + atomic_load(&calls[op].entered[UNBOXED]);
}

bool calls_in_flight(void) {
    for (int op = 0; op < OPERATION_COUNT; op++) {
        if (!removable(op))
            continue;
        /* `left` first: read the other way round, a call that leaves between hides one inside. */
        uint64_t left = atomic_load(&calls[op].left);
        if (left != all_entered(op))
            return true;
    }
    return false;
}

uint64_t calls_entered(void) {
    uint64_t sum = 0;
    for (int op = 0; op < OPERATION_COUNT; op++)
        if (removable(op))
            sum += all_entered(op);
    return sum;
}

void calls_reset_in_flight(void) {
    for (int op = 0; op < OPERATION_COUNT; op++)
        atomic_store(&calls[op].left, all_entered(op));
}

int planish_torch_stats(char *start, size_t bytes) {
    text out = {start, start ? bytes : 0, 0};
    append(&out, "{");
    for (int op = 0; op < OPERATION_COUNT; op++) {
        uint64_t by_reason[REASON_COUNT], total = 0;
        for (int why = 0; why < REASON_COUNT; why++)
            total += by_reason[why] = atomic_load(&calls[op].handed_on[why]);
        uint64_t unboxed = atomic_load(&calls[op].entered[UNBOXED]), entered = all_entered(op);
        append(&out, "%s\"%s\": {\"unboxed\": %llu, \"planish\": %llu, \"torch\": {",
               op ? ", " : "", operation_names[op], (unsigned long long)unboxed,
               (unsigned long long)(entered > total ? entered - total : 0));
        const char *separator = "";
        for (int why = 0; why < REASON_COUNT; why++) {
            if (!by_reason[why] || why == NOT_OWN) /* of which planish has no part */
                continue;
            append(&out, "%s\"%s\": %llu", separator, reason_names[why],
                   (unsigned long long)by_reason[why]);
            separator = ", ";
        }
        append(&out, "}}");
    }
    append(&out, "}");
    return (int)out.length;
}
