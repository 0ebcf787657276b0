/*
 * Which OpenMP runtime planish's threads are of. What was found is kept for the whole process, so
 * each way is a run of its own:
 *
 *     test_openmp system                      nothing loaded: the system's
 *     test_openmp none                        no runtime anywhere: the calling thread
 *     test_openmp loaded RUNTIME              one that is loaded is taken
 *     test_openmp torch RUNTIME TORCH OTHER   TORCH is linked with OTHER, which is taken
 *
 * dlopen is wrapped by the linker, so that nothing is found where that is asked for.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cpu/openmp.h"

enum { ITEMS = 1001, RANGES = 1024 };

static bool nothing_there;

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

void *__wrap_dlopen(const char *path, int flags) {
    return nothing_there ? NULL : __real_dlopen(path, flags);
}

/* What the tasks did: how often each item was run, and how many ranges there were. */
typedef struct record {
    atomic_int runs[ITEMS];
    atomic_int ranges;
    pthread_t caller;
    atomic_bool elsewhere;
} record;

static void note(void *data, int64_t begin, int64_t end) {
    record *const r = data;
    for (int64_t i = begin; i < end; i++)
        r->runs[i]++;
    r->ranges++;
    if (!pthread_equal(pthread_self(), r->caller))
        r->elsewhere = true;
}

/* Every item of 0 ... count-1 once, and no other, for several counts; the ranges of the last. */
static record run(void) {
    static const int counts[] = {2, 3, 5, 64, ITEMS};
    record r;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        memset(&r, 0, sizeof r);
        r.caller = pthread_self();
        openmp_for(counts[c], note, &r);
        int wrong = 0;
        for (int i = 0; i < ITEMS; i++)
            wrong += r.runs[i] != (i < counts[c]);
        expect(!wrong, "%d of %d items were not run once", wrong, counts[c]);
        expect(r.ranges <= counts[c], "%d ranges of %d items", r.ranges, counts[c]);
    }
    return r;
}

/* Files of OpenMP runtimes that are mapped. */
static int runtimes_mapped(void) {
    char line[4352], last[4352] = "";
    int count = 0;
    FILE *const maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        const char *const slash = strrchr(line, '/');
        if (slash && strcmp(slash, last) != 0 &&
            (!strncmp(slash, "/libgomp", 8) || !strncmp(slash, "/libomp", 7) ||
             !strncmp(slash, "/libiomp", 8))) {
            strcpy(last, slash);
            count++;
        }
    }
    if (maps)
        fclose(maps);
    return count;
}

static void of_system(void) {
    test_case("the system's runtime");
    if (!dlopen("libgomp.so.1", RTLD_LAZY)) {
        test_skip("there is no libgomp.so.1");
        return;
    }
    const record r = run();
    expect(r.ranges == 3, "%d ranges, wanted one for each of OMP_NUM_THREADS=3", r.ranges);
    expect(r.elsewhere, "everything was run on the calling thread");
    expect(runtimes_mapped() == 1, "%d runtimes are mapped", runtimes_mapped());
}

static void none(void) {
    test_case("no runtime");
    expect(runtimes_mapped() == 0, "%d runtimes are mapped already", runtimes_mapped());
    nothing_there = true;
    const record r = run();
    expect(r.ranges == 1, "%d ranges", r.ranges);
    expect(!r.elsewhere, "something was run on another thread");
    nothing_there = false;
    expect(runtimes_mapped() == 0, "%d runtimes are mapped", runtimes_mapped());
}

/* The runtime at a path, of which the test asks how many regions it ran. */
typedef int (*counter)(void);
static counter counter_of(const char *path) {
    counter regions = NULL;
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (expect(library != NULL, "%s does not load", path)) {
        void *const symbol = dlsym(library, "regions_run");
        memcpy(&regions, &symbol, sizeof symbol);
    }
    return regions;
}

static void of_loaded(const char *runtime) {
    test_case("a runtime that is loaded");
    const counter regions = counter_of(runtime);
    if (!regions)
        return;
    const record r = run();
    expect(r.ranges == 2 && regions() == 5, "%d ranges, %d regions", r.ranges, regions());
    expect(runtimes_mapped() == 1, "%d runtimes are mapped", runtimes_mapped());
}

static void of_torch(const char *runtime, const char *torch, const char *its) {
    test_case("libtorch's runtime, though another was loaded before");
    const counter others = counter_of(runtime);
    expect(dlopen(torch, RTLD_NOW | RTLD_LOCAL) != NULL, "%s does not load", torch);
    const counter regions = counter_of(its);
    if (!others || !regions)
        return;
    const record r = run();
    expect(r.ranges == 2 && regions() == 5, "%d ranges, %d regions", r.ranges, regions());
    expect(others() == 0, "the other runtime ran %d regions", others());
}

int main(int argc, char **argv) {
    const char *const way = argc > 1 ? argv[1] : "";
    if (!strcmp(way, "system"))
        of_system();
    else if (!strcmp(way, "none"))
        none();
    else if (!strcmp(way, "loaded") && argc == 3)
        of_loaded(argv[2]);
    else if (!strcmp(way, "torch") && argc == 5)
        of_torch(argv[2], argv[3], argv[4]);
    return test_finish("openmp");
}
