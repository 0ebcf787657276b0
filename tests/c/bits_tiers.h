/* The same bits on every instruction set: this program starts itself again on each tier. */
#ifndef BITS_TIERS_H
#define BITS_TIERS_H

/* For --digest: prints the tier and a line per case, its outputs' hash; the exit status. */
int print_digests(int argc, char **argv, int step);

/* Expects that every tier prints the lines of this process. */
void compare_tiers(int step);

#endif
