/*
 * Passes whose instructions are counted: count [CASE], built for the machine that is asked about
 * and run by bench/instructions/run.py.
 *
 * Each line is CASE,DTYPE,PASS,ELEMENTS,COUNT,ELEMENTS,COUNT: two problems, the second twice the
 * first, so that what a call costs besides can be taken off. plugin.c writes the counts: the
 * instructions from one getppid to the next.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "planish.h"

static void mark(void) {
    syscall(SYS_getppid);
}

/* x is (images, channels, pixels), stored so or with the channels last. */
typedef struct problem {
    const char *name;
    planish_kind kind;
    uint64_t reduce, affine;
    int64_t images, channels, pixels, groups;
    int channels_last;
} problem;

enum { N = 1, C = 2, P = 4 };
static const problem problems[] = {
    {"layer norm, rows of 1024", PLANISH_LAYER, C, C, 8, 1024, 1, 1, 0},
    {"RMS norm, rows of 1024", PLANISH_RMS, C, C, 8, 1024, 1, 1, 0},
    {"group norm, 64 in 8 groups, 14 x 14", PLANISH_LAYER, 0, 0, 2, 64, 196, 8, 0},
    {"group norm, 64 in 8 groups, 14 x 14, channels last", PLANISH_LAYER, 0, 0, 2, 64, 196, 8, 1},
    {"batch norm, 64 channels, 14 x 14", PLANISH_LAYER, N | P, C, 2, 64, 196, 0, 0},
    {"batch norm, 64 channels, 14 x 14, channels last", PLANISH_LAYER, N | P, C, 2, 64, 196, 0, 1},
};

typedef struct kind_of_number {
    const char *name;
    DLDataType dtype;
} kind_of_number;

static const kind_of_number numbers[] = {
    {"f32", {kDLFloat, 32, 1}}, {"bf16", {kDLBfloat, 16, 1}}, {"f16", {kDLFloat, 16, 1}}};

static void here(void *context, int64_t count, planish_task task, void *task_data) {
    (void)context;
    task(task_data, 0, count);
}

/* Ordinary numbers between 1 and 2 in any of the dtypes: the exponent of 1, any fraction. */
static void *filled(int64_t elements, DLDataType dtype) {
    const int bytes = dtype.bits / 8;
    char *data = aligned_alloc(64, ((size_t)elements * bytes + 63) / 64 * 64);
    uint32_t state = 1;
    for (int64_t i = 0; i < elements; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t wide = 0x3f800000u | state >> 9;
        const uint16_t narrow = dtype.code == kDLBfloat ? (uint16_t)(0x3f80 | state >> 25)
                                                        : (uint16_t)(0x3c00 | state >> 22);
        memcpy(data + i * bytes, bytes == 4 ? (const void *)&wide : (const void *)&narrow,
               (size_t)bytes);
    }
    return data;
}

/* A full tensor, or a vector where `size` is not 0. Nothing is freed: the process is short. */
static const DLTensor *made(const problem *p, int64_t images, DLDataType dtype, int64_t size) {
    DLTensor *t = calloc(1, sizeof *t);
    int64_t *shape = calloc(6, sizeof *shape), *strides = shape + 3;
    if (size) {
        shape[0] = size, strides[0] = 1;
    } else {
        const int64_t sizes[] = {images, p->channels, p->pixels};
        memcpy(shape, sizes, sizeof sizes);
        strides[0] = p->channels * p->pixels;
        strides[1] = p->channels_last ? 1 : p->pixels;
        strides[2] = p->channels_last ? p->channels : 1;
    }
    *t = (DLTensor){.data = filled(size ? size : images * p->channels * p->pixels, dtype),
                    .device = {kDLCPU, 0},
                    .ndim = size ? 1 : 3,
                    .dtype = dtype,
                    .shape = shape,
                    .strides = strides};
    return t;
}

/* Statistics: (images), (images, groups) or (channels). */
static const DLTensor *statistics(const problem *p, int64_t images) {
    const int64_t size = p->groups ? images * p->groups : p->channels;
    DLTensor *t = (DLTensor *)made(p, images, (DLDataType){kDLFloat, 32, 1}, size);
    if (!(p->reduce & C) && p->groups > 1) {
        t->ndim = 2;
        t->shape[0] = images, t->shape[1] = p->groups;
        t->strides[0] = p->groups, t->strides[1] = 1;
    } else if (p->groups == 1) { /* the kept axes of rows are images and pixels, of which is 1 */
        t->ndim = 2;
        t->shape[1] = t->strides[0] = t->strides[1] = 1;
    }
    return t;
}

static void fail(const char *sentence) {
    printf("%s\n", sentence);
    exit(1);
}

static void run(const problem *p, const kind_of_number *n, planish_pass pass, int64_t images) {
    const DLDataType f32 = {kDLFloat, 32, 1};
    planish_tensors t = {.struct_size = sizeof t};
    t.x = made(p, images, n->dtype, 0);
    t.weight = made(p, images, f32, p->channels);
    t.rstd = statistics(p, images);
    t.mean = p->kind == PLANISH_RMS ? NULL : statistics(p, images);
    if (pass == PLANISH_FORWARD) {
        t.y = made(p, images, n->dtype, 0);
        t.bias = p->kind == PLANISH_RMS ? NULL : made(p, images, f32, p->channels);
    } else {
        t.dy = made(p, images, n->dtype, 0);
        t.dx = made(p, images, n->dtype, 0);
        t.dweight = made(p, images, f32, p->channels);
        t.dbias = p->kind == PLANISH_RMS ? NULL : made(p, images, f32, p->channels);
    }
    const planish_norm op = planish_norm_op(p->kind, p->reduce, p->affine, 1e-5);
    char sentence[256] = "";
    planish_exec exec = {.struct_size = sizeof exec,
                         .parallel_for = here,
                         .message = sentence,
                         .message_bytes = sizeof sentence};
    const int grouped = !p->reduce;
    size_t bytes = 0;
    if (grouped ? planish_group_norm_workspace_bytes(p->groups, PLANISH_IDENTITY, pass, &t, &bytes,
                                                     &exec)
                : planish_norm_workspace_bytes(&op, pass, &t, &bytes, &exec))
        fail(sentence);
    exec.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    exec.workspace_bytes = bytes;
    for (int turn = 0; turn < 2; turn++) { /* the first finds the kernels and touches the pages */
        if (turn)
            mark();
        const planish_status status =
            grouped ? planish_group_norm_run(p->groups, 1e-5, PLANISH_IDENTITY, pass, &t, &exec)
                    : planish_norm_run(&op, pass, &t, &exec);
        if (turn)
            mark();
        if (status)
            fail(sentence);
    }
}

static void run_all(const char *only) {
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (size_t j = 0; j < sizeof numbers / sizeof *numbers; j++)
            for (int pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++) {
                const problem *p = &problems[i];
                if (only && strcmp(only, p->name) != 0)
                    continue;
                printf("\"%s\",%s,%s", p->name, numbers[j].name, pass ? "backward" : "forward");
                for (int64_t images = p->images; images <= 2 * p->images; images += p->images) {
                    printf(",%lld", (long long)(images * p->channels * p->pixels));
                    fflush(stdout);
                    run(p, &numbers[j], (planish_pass)pass, images);
                }
                printf("\n");
                fflush(stdout);
            }
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : NULL;
    printf("# %s\n", planish_cpu_tier());
    run_all(only);
    return 0;
}
