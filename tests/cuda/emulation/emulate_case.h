/* One case on the emulated device: made, run in every order, held against the reference. */
#ifndef EMULATE_CASE_H
#define EMULATE_CASE_H

#include "../../c/cases.h"

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

#endif
