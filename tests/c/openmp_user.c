/* A library that is linked with an OpenMP runtime, as libtorch is. */
int omp_get_num_threads(void);
__attribute__((visibility("default"))) int threads_of_user(void);

int threads_of_user(void) {
    return omp_get_num_threads();
}
