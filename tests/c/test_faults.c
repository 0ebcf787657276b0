/*
 * Faults: memory that cannot be had, and what planish asks for while it runs, which is nothing.
 * Made of the library's own objects with malloc, calloc, realloc and free wrapped by the linker.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "cuda/pack.h"
#include "packs.h"

/* Calls since the last reset, and which one to refuse (0: none). */
static long allocations, frees, refused;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);

static bool refuse(void) {
    return ++allocations == refused;
}

void *__wrap_malloc(size_t bytes) {
    return refuse() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t bytes) {
    return refuse() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *memory, size_t bytes) {
    return refuse() ? NULL : __real_realloc(memory, bytes);
}
void __wrap_free(void *memory) {
    frees += memory != NULL;
    __real_free(memory);
}

static void reset(long refuse_call) {
    allocations = frees = 0;
    refused = refuse_call;
}

static void plan_without_memory(void) {
    norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 5, 7);
    bundle b;
    bundle_make(&b, &c);
    test_case("every allocation of plan_create refused in turn");
    long calls = 0;
    for (long turn = 1;; turn++) {
        planish_plan *const none = (planish_plan *)&b, *plan = none;
        char message[256] = "";
        reset(turn);
        planish_status status = planish_plan_create(&b.test.op, PLANISH_BACKWARD, &b.tensors, &plan,
                                                    message, sizeof message);
        calls = allocations;
        if (calls < turn) { /* that many were not asked for: nothing was refused */
            expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
            reset(0);
            planish_plan_destroy(plan);
            expect(frees == calls, "%ld allocations, %ld frees", calls, frees);
            break;
        }
        expect(status == PLANISH_ERROR_OUT_OF_MEMORY, "%s", planish_status_name(status));
        expect(message[0], "no message");
        expect(plan == none, "*plan was written to");
        expect(frees == allocations - 1, "%ld allocations, %ld frees", allocations - 1, frees);
    }
    expect(calls > 0, "a plan without an allocation: the wrapping does not work");
    reset(0);
    bundle_free(&b);
}

static void pack_without_memory(void) {
    enum { KERNELS = 70 }; /* more than its list has room for at first */
    char path[256];
    snprintf(path, sizeof path, "%s", packs_path("faults.pack"));
    test_case("every allocation of pack_load refused in turn");
    expect(packs_make(path, KERNELS), "no pack made");
    for (long turn = 1;; turn++) {
        char message[256] = "";
        reset(turn);
        planish_status status = planish_pack_load(path, message, sizeof message);
        if (allocations < turn) { /* that many were not asked for: nothing was refused */
            expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
            expect(turn > 4, "%ld allocations: the wrapping does not work", allocations);
            break;
        }
        expect(status == PLANISH_ERROR_OUT_OF_MEMORY, "%s", planish_status_name(status));
        expect(message[0], "no message");
    }
    char key[CUDA_KEY_BYTES];
    size_t bytes = 0;
    packs_key(KERNELS - 1, key);
    test_case("a kernel in a pack that there is no memory for");
    reset(1);
    void *code = pack_find(key, &bytes);
    expect(!code, "found");
    reset(0);
    free(code);
    expect((code = pack_find(key, &bytes)) != NULL, "not found");
    free(code);
}

static void nothing_while_running(void) {
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_APPLY; pass++)
        for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++)
            for (int view = 0; view < 3; view++) {
                norm_case c = rows_case(pass, kind, 300, 700);
                char text[512];
                if (view == 1)
                    c.in = c.out = PADDED;
                if (view == 2) { /* the middle one of three axes */
                    c.ndim = 3;
                    memcpy(c.shape, (int64_t[]){6, 40, 9}, 3 * sizeof(int64_t));
                    c.op.reduce_axes = c.op.affine_axes = PLANISH_AXIS(1);
                }
                test_case("no allocation while it runs: %s", case_text(&c, text, sizeof text));
                bundle b;
                bundle_make(&b, &c);
                size_t bytes = 0;
                planish_norm_workspace_bytes(&b.test.op, pass, &b.tensors, &bytes, NULL);
                b.workspace = guarded_make(bytes, 256);
                planish_exec exec = exec_backwards();
                exec.workspace = b.workspace.data;
                exec.workspace_bytes = bytes;
                reset(0);
                planish_status status = planish_norm_run(&b.test.op, pass, &b.tensors, &exec);
                long asked = allocations;
                expect(status == PLANISH_OK, "%s", planish_status_name(status));
                expect(asked == 0, "%ld allocations", asked);
                bundle_free(&b);
            }
}

int main(void) {
    plan_without_memory();
    pack_without_memory();
    nothing_while_running();
    return test_finish("faults");
}
