/* What planish uses of an OpenMP runtime, in a library that stands in for one: two threads, whose
 * turns come one after the other on the calling one. openmp_user.c is linked with it. */
#pragma GCC visibility push(default)
void GOMP_parallel(void (*member)(void *), void *data, unsigned threads, unsigned flags);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
int regions_run(void);
#pragma GCC visibility pop

static int regions, turn;

int regions_run(void) {
    return regions;
}

void GOMP_parallel(void (*member)(void *), void *data, unsigned threads, unsigned flags) {
    (void)threads, (void)flags;
    regions++;
    for (turn = 0; turn < 2; turn++)
        member(data);
}

int omp_get_num_threads(void) {
    return 2;
}

int omp_get_thread_num(void) {
    return turn;
}
