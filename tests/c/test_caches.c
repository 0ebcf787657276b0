/* The caches that plans are told of, against what Linux says of them. */
#include "check.h"

#include "cpu/caches.h"

#include <stdio.h>
#include <string.h>

enum { CPUS = 4096, INDICES = 8 };

/* A word of a file of a cache, "" where there is none. */
static void word_of(int cpu, int index, const char *name, char word[32]) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, name);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%31s", word) != 1)
        word[0] = 0;
    if (file)
        fclose(file);
}

/* Bytes of the cache of a level in which a processor keeps data; 0 where it has none. */
static size_t of_linux(int cpu, int level) {
    for (int i = 0; i < INDICES; i++) {
        char type[32], its_level[32], size[32];
        unsigned long kilobytes;
        int of_level;
        word_of(cpu, i, "level", its_level);
        word_of(cpu, i, "type", type);
        word_of(cpu, i, "size", size);
        if (sscanf(its_level, "%d", &of_level) == 1 && of_level == level &&
            strcmp(type, "Instruction") != 0 && sscanf(size, "%luK", &kilobytes) == 1)
            return kilobytes << 10;
    }
    return 0;
}

static void level(int level, size_t bytes) {
    test_case("the cache of level %d", level);
    if (!of_linux(0, level) || !bytes) {
        test_skip("Linux says %zu bytes, and planish %zu", of_linux(0, level), bytes);
        return;
    }
    /* Processors may differ, and any of them may have been asked. */
    for (int cpu = 0; cpu < CPUS && of_linux(cpu, level); cpu++)
        if (of_linux(cpu, level) == bytes)
            return;
    expect(false, "%zu bytes, and Linux says %zu", bytes, of_linux(0, level));
}

int main(void) {
    level(1, cpu_first_cache());
    level(3, cpu_shared_cache());
    return test_finish("caches");
}
