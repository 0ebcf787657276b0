#define _POSIX_C_SOURCE 200809L
#include "bits_tiers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bits_cases.h"
#include "check.h"

static char *digests, *digests_end; /* one line per case, from this process */
static FILE *digests_to;

static void print_digest(const norm_case *c) {
    bundle b;
    bundle_make(&b, c);
    char text[512], message[512] = "";
    planish_status status = bundle_run(&b, NULL, message, sizeof message);
    fprintf(digests_to, "%s = %016llx%s\n", case_text(c, text, sizeof text),
            (unsigned long long)bundle_digest(&b), status ? message : "");
    bundle_free(&b);
}

/* Starts this program again on the tier of this name; it says which one it got, and leaves it at
 * that where it is another. */
static FILE *start_on(const char *tier, int step) {
    char self[1024] = "", command[2048];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return NULL;
    const char *wrapper = getenv("MESON_EXE_WRAPPER"); /* an emulator, where one is needed */
    snprintf(command, sizeof command, "PLANISH_CPU_TIER=%s %s '%s' --digest --share=%d --tier=%s",
             tier, wrapper ? wrapper : "", self, step, tier);
    return popen(command, "r");
}

/* The lines of every tier against those of this process. */
static void compare_with(const char *tier, int step) {
    char got[1024];
    test_case("tier %s gives the same bits as %s", tier, planish_cpu_tier());
    FILE *other = start_on(tier, step);
    if (!expect(other && fgets(got, sizeof got, other), "the program could not be started again"))
        return;
    got[strcspn(got, "\n")] = 0;
    if (strcmp(got + strlen("tier "), tier) != 0) {
        test_skip("this CPU or build has no such tier, but %s", got + strlen("tier "));
        pclose(other);
        return;
    }
    int lines = 0;
    const char *want = digests;
    for (; fgets(got, sizeof got, other); lines++) {
        size_t length = strlen(got);
        if (!expect((size_t)(digests_end - want) >= length && !memcmp(want, got, length),
                    "%.*s  became %s", (int)strcspn(want, "\n"), want, got))
            break;
        want += length;
    }
    expect(want == digests_end && lines > 0, "output ends after %d cases", lines);
    pclose(other);
}

int print_digests(int argc, char **argv, int step) {
    printf("tier %s\n", planish_cpu_tier());
    const char *only = argument(argc, argv, "tier", planish_cpu_tier());
    digests_to = stdout;
    if (strcmp(only, planish_cpu_tier()) != 0)
        return fflush(stdout) ? 1 : 0;
    every_case(step, print_digest);
    every_image(step, print_digest);
    every_fused(step, print_digest);
    return fflush(stdout) ? 1 : 0;
}

void compare_tiers(int step) {
    static const char *const tiers[] = {"portable", "avx2", "avx512", "avx512bf16", "neon"};
    size_t bytes = 0;
    digests_to = open_memstream(&digests, &bytes);
    every_case(step, print_digest);
    every_image(step, print_digest);
    every_fused(step, print_digest);
    fclose(digests_to);
    digests_end = digests + bytes;
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        compare_with(tiers[i], step);
    free(digests);
}
