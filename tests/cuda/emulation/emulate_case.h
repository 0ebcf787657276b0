/* One case on the emulated device: made, run in every order, held against the reference. */
#ifndef EMULATE_CASE_H
#define EMULATE_CASE_H

#include "../../c/cases.h"
#include "emulated.h"

/* Which of the cases run: of every share-th, those whose number among these leaves `part` when it
 * is divided by `parts`. */
typedef struct case_choice {
    int64_t share, parts, part;
    int64_t other_numbers; /* 0: those that a case always has */
} case_choice;

/* For the cases to come; without it all run. */
void choose_cases(case_choice choice);

/* Runs the next case if it is one of those: its threads and blocks in order and shuffled, a slice
 * of its rows, and with the output in the place of the input. Where specialisations are written
 * (emulated.h), it is planned for them and nothing is compared. The case's seed is its number,
 * whatever it was. */
void emulate_case(norm_case c);

/* While this is set, no case runs but those of RMS norms, which become L2 norms: every other one
 * with an eps for which about half of the rows of normal numbers are too short. */
extern bool cases_are_l2;
/* Makes a case of such rows one of those; false: it does not run. */
bool case_becomes_l2(norm_case *c);

/* The case with such numbers, and its forward, but that of subnormal numbers. */
void emulate_numbers(norm_case c, numbers n);

/*
 * The next case with stages around the norm, or of two norms at once (emulate_stages.c), in order
 * and shuffled, as above. They are few, and the only ones of their kernels: of every fifth share
 * all run, and of any other five times as many as of the others.
 */
enum { STAGES_SHARE = 5 };
bool all_stages_run(void);
bool next_of_stages(uint64_t *seed);
void begin_run(schedule how);
void emulate_stages(const char *name, norm_case c);
/* Rows with q, against y beside it, and without y for the same bits. */
void emulate_quantised(const char *name, norm_case c);
/* Both at once have the bits of each alone. */
void emulate_pair(const char *name, norm_case first, norm_case second);

#endif
