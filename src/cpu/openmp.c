/*
 * OpenMP without a compiler's -fopenmp. A library that is linked with libgomp names one file of
 * that name; torch's wheels bring their own, some under a name with a hash in it, and then a
 * process has two. GNU's entry points are used: LLVM's and Intel's runtimes have them too.
 */
#include "cpu/openmp.h"

#if defined(PLANISH_NO_OPENMP)

void openmp_for(int64_t count, planish_task task, void *task_data) {
    task(task_data, 0, count);
}

void openmp_alone(planish_task task, void *task_data) {
    task(task_data, 0, 1);
}

#else

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static struct {
    pthread_once_t once;
    void (*parallel)(void (*member)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread_count)(void);
    int (*thread_index)(void);
    int (*most_threads)(void); /* of the calling thread's regions; may be NULL */
    void (*set_most_threads)(int);
} openmp = {.once = PTHREAD_ONCE_INIT};

/* dlsym's result in a pointer to a function, which C has no conversion for. */
static bool find(void *library, const char *name, void *function) {
    void *const symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Takes the entry points that this library or one that it is linked with has. The library stays
 * open: its threads may run until the process ends. */
static bool take(const char *path, int flags) {
    void *const library = dlopen(path, RTLD_LAZY | flags);
    if (library && !(find(library, "omp_get_max_threads", &openmp.most_threads) &&
                     find(library, "omp_set_num_threads", &openmp.set_most_threads)))
        openmp.most_threads = NULL;
    return library && find(library, "omp_get_num_threads", &openmp.thread_count) &&
           find(library, "omp_get_thread_num", &openmp.thread_index) &&
           find(library, "GOMP_parallel", &openmp.parallel);
}

typedef struct file_path {
    char text[PATH_MAX];
} file_path;

/* Keeps the path of the first library whose name is a runtime's: libgomp.so.1,
 * libgomp-a34b3233.so.1, libomp.so.5, libiomp5.so. */
static int is_runtime(struct dl_phdr_info *info, size_t size, void *found) {
    static const char *const names[] = {"libgomp", "libomp", "libiomp"};
    (void)size;
    const char *const path = info->dlpi_name ? info->dlpi_name : "";
    const char *const slash = strrchr(path, '/'), *const file = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strncmp(file, names[i], strlen(names[i])) && strlen(path) < PATH_MAX) {
            memcpy(((file_path *)found)->text, path, strlen(path) + 1);
            return 1;
        }
    return 0;
}

static void load(void) {
    static const char *const of_system[] = {"libgomp.so.1", "libomp.so.5", "libomp.so",
                                            "libiomp5.so"};
    file_path loaded;
    bool found = take("libtorch_cpu.so", RTLD_NOLOAD) ||
                 (dl_iterate_phdr(is_runtime, &loaded) && take(loaded.text, RTLD_NOLOAD));
    for (size_t i = 0; i < sizeof of_system / sizeof of_system[0] && !found; i++)
        found = take(of_system[i], 0);
    if (!found)
        openmp.parallel = NULL;
}

typedef struct shared_work {
    int64_t count;
    planish_task task;
    void *task_data;
} shared_work;

/* This thread's range: as many items as every other has, or one more in the first threads. */
static void member(void *data) {
    const shared_work *const work = data;
    const int64_t threads = openmp.thread_count(), index = openmp.thread_index();
    const int64_t least = work->count / threads, more = work->count % threads;
    const int64_t begin = index * least + (index < more ? index : more);
    const int64_t end = begin + least + (index < more);
    if (begin < end)
        work->task(work->task_data, begin, end);
}

void openmp_for(int64_t count, planish_task task, void *task_data) {
    pthread_once(&openmp.once, load);
    if (!openmp.parallel) {
        task(task_data, 0, count);
        return;
    }
    shared_work work = {count, task, task_data};
    openmp.parallel(member, &work, 0, 0);
}

void openmp_alone(planish_task task, void *task_data) {
    pthread_once(&openmp.once, load);
    const int threads = openmp.most_threads ? openmp.most_threads() : 0;
    if (threads)
        openmp.set_most_threads(1);
    task(task_data, 0, 1);
    if (threads)
        openmp.set_most_threads(threads);
}

#endif
