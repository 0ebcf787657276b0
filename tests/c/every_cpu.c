/* See every_cpu.h. */
#include "every_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#include "buffers.h"
#include "cpu/dispatch.h"
#include "cpu/run.h"

typedef enum caches { NEAR, AHEAD, PAST, FAR_PAST, CACHES } caches;

static const char *const cache_names[] = {"near", "ahead", "beyond the cache",
                                          "far beyond the cache"};

/* A CPU of this kind in whose caches everything lies where `where` says; `row` is room for how it
 * is tuned. */
static cpu_limits limits_of(cpu_microarchitecture kind, caches where, cpu_tuning *row) {
    const size_t none = 0, all = (size_t)1 << 40;
    *row = *cpu_tuning_of(kind);
    row->near_bytes = where == NEAR ? all : none;
    row->stream_bytes = row->stream_rows_least = row->stream_rows_most = where >= PAST ? none : all;
    row->stream_run_bytes[0] = row->stream_run_bytes[1] = where == FAR_PAST ? none : all;
    return cpu_limits_of(row, cpu_kernels_chosen(), 49152, none);
}

/* Whether none of the plans before is this one, byte by byte: one that is taken for new costs time
 * alone. */
static bool is_new(const cpu_plan plans[], int count) {
    for (int i = 0; i < count; i++)
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
        if (!memcmp(&plans[i], &plans[count], sizeof *plans))
            return false;
    return true;
}

/* The first plan says what the bits are. */
void expect_same_on_every_cpu(const planish_norm *op, planish_pass pass,
                              const planish_tensors *tensors, run_plan *run, void *context) {
    problem p;
    char error[256] = "";
    const message told = {error, sizeof error};
    if (!expect(problem_make(&p, op, pass, tensors, told) == PLANISH_OK, "%s", error))
        return;
    problem norm;
    steps steps;
    cpu_steps_make(&steps, &p, &norm);
    cpu_plan plans[CPU_COUNT * CACHES];
    memset(plans, 0, sizeof plans);
    uint64_t wanted = 0;
    int count = 0;
    for (cpu_microarchitecture kind = CPU_GENERIC; kind < CPU_COUNT; kind++)
        for (caches where = NEAR; where < CACHES; where++) {
            cpu_tuning row;
            const cpu_limits limits = limits_of(kind, where, &row);
            cpu_plan_make(&plans[count], &steps, &limits);
            if (!is_new(plans, count))
                continue;
            const uint64_t digest = run(context, &p, &plans[count]);
            wanted = count++ ? wanted : digest;
            expect(digest == wanted, "%s, %s: other bits", row.name, cache_names[where]);
        }
    expect(count > 1, "all plans are one");
}

void run_in_workspace(const problem *p, const cpu_plan *plan, const planish_tensors *tensors) {
    const size_t bytes = (plan->workspace_bytes + 63) / 64 * 64;
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = aligned_alloc(64, bytes + 64),
                         .workspace_bytes = bytes};
    void *buffers[ROLE_COUNT];
    buffers_of(tensors, buffers);
    problem norm;
    steps steps;
    cpu_steps_make(&steps, p, &norm);
    cpu_run(&steps, plan, buffers, &exec);
    free(exec.workspace);
}
