/*
 * Counting cases: the whole test framework. A program begins a case by its name, states what it
 * expects, and ends with test_finish(), which prints "N passed, N failed" and gives the exit code.
 * Not for use from several threads at once.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/* Begins a case; it counts as passed unless something is not as expected before the next one. */
__attribute__((format(printf, 1, 2))) void test_case(const char *format, ...);

/* States one expectation of the case that is open; where it does not hold, says so and fails it. */
__attribute__((format(printf, 2, 3))) bool expect(bool holds, const char *format, ...);

/* Counts the open case as skipped and prints why. */
__attribute__((format(printf, 1, 2))) void test_skip(const char *format, ...);

/* Closes the last case, prints the counts; the exit code: 0 only if a case passed and none failed.
 */
int test_finish(const char *program);

/* The value of "--name=value" among the arguments, or `otherwise`. */
const char *argument(int argc, char **argv, const char *name, const char *otherwise);

/* Whether "--name" is among the arguments. */
bool flag(int argc, char **argv, const char *name);

#endif
