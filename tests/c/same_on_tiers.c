#define _POSIX_C_SOURCE 200809L
#include "same_on_tiers.h"

#include <stdio.h>
#include <stdlib.h>

#include "check.h"

void same_on_tiers(const char *self, uint64_t here) {
    static const char *const names[] = {"portable", "avx2", "avx512", "avx512bf16", "neon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char command[1200], line[64] = "";
        const char *wrapper = getenv("MESON_EXE_WRAPPER"); /* an emulator, where one is needed */
        snprintf(command, sizeof command, "PLANISH_CPU_TIER=%s %s '%s' --digest", names[i],
                 wrapper ? wrapper : "", self);
        test_case("bits on tier %s", names[i]);
        FILE *other = popen(command, "r");
        expect(other && fgets(line, sizeof line, other), "%s does not run", command);
        expect(strtoull(line, NULL, 16) == here, "%s, here %llx", line, (unsigned long long)here);
        if (other)
            pclose(other);
    }
}
