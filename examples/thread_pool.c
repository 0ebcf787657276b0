/*
 * planish on the caller's own threads: a small pool handed over as planish_exec.parallel_for. The
 * result has the same bits as on one thread.
 *
 *     cc -pthread thread_pool.c $(pkg-config --cflags --libs planish)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

enum { ROWS = 2000, COLS = 512 };

int main(void) {
    static pool p;
    if (pool_start(&p))
        return 1;

    size_t bytes = (size_t)ROWS * COLS * sizeof(float);
    float *x = malloc(bytes), *alone = malloc(bytes), *pooled = malloc(bytes);
    if (!x || !alone || !pooled)
        return 1;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i % 1009);

    int64_t shape[] = {ROWS, COLS};
    DLTensor tx = {
        .data = x, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    DLTensor ty = tx;
    planish_exec exec = {
        .struct_size = sizeof exec, .parallel_for = pool_for, .parallel_context = &p};
    ty.data = alone;
    int failed = planish_layer_norm_forward(1, 1e-5, &tx, NULL, NULL, &ty, NULL, NULL, NULL) != 0;
    ty.data = pooled;
    failed |= planish_layer_norm_forward(1, 1e-5, &tx, NULL, NULL, &ty, NULL, NULL, &exec) != 0;

    pool_stop(&p);

    int same = !memcmp(alone, pooled, bytes);
    printf("%d loops on %d threads: %s bits\n", p.loops, THREADS, same ? "the same" : "other");
    free(x);
    free(alone);
    free(pooled);
    return failed || !same || !p.loops;
}
