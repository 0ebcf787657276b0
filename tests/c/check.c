/* The counters behind check.h. */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After this many messages a program only counts: a broken kernel fails thousands of cases. Another
 * number comes from the environment, TEST_SHOW. */
static long shown_at_most(void) {
    const char *number = getenv("TEST_SHOW");
    return number ? atol(number) : 40;
}

static char name[512];
static bool open_case, case_failed, case_skipped;
static long passed, failed, skipped, shown;

static void close_case(void) {
    if (!open_case)
        return;
    if (case_failed)
        failed++;
    else if (case_skipped)
        skipped++;
    else
        passed++;
    open_case = case_failed = case_skipped = false;
}

void test_case(const char *format, ...) {
    close_case();
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    open_case = true;
}

bool expect(bool holds, const char *format, ...) {
    if (holds)
        return true;
    case_failed = true;
    if (++shown > shown_at_most())
        return false;
    printf("FAIL %s: ", open_case ? name : "(no case)");
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    if (shown == shown_at_most())
        printf("further failures are counted, not shown\n");
    fflush(stdout);
    return false;
}

void test_skip(const char *format, ...) {
    case_skipped = true;
    printf("SKIP %s: ", name);
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    fflush(stdout);
}

int test_finish(const char *program) {
    close_case();
    printf("%s: %ld passed, %ld failed", program, passed, failed);
    if (skipped)
        printf(", %ld skipped", skipped);
    printf("\n");
    fflush(stdout);
    /* 77 is meson's code for a test that was skipped as a whole. */
    if (!failed && !passed && skipped)
        return 77;
    return failed || !passed ? EXIT_FAILURE : EXIT_SUCCESS;
}

const char *argument(int argc, char **argv, const char *wanted, const char *otherwise) {
    size_t length = strlen(wanted);
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strncmp(argv[i] + 2, wanted, length) &&
            argv[i][2 + length] == '=')
            return argv[i] + 3 + length;
    return otherwise;
}

bool flag(int argc, char **argv, const char *wanted) {
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, wanted))
            return true;
    return false;
}
