/* How a specialisation is called by the test. */
template <typename ARGS> static void run_kernel(void (*kernel)(ARGS), const void *args) {
    kernel(*(const ARGS *)args);
}

#define UNIT(KERNEL)                                                                               \
    extern "C" __attribute__((visibility("default"))) void unit_run(const void *args) {           \
        run_kernel(KERNEL, args);                                                                  \
    }
