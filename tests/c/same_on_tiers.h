/* Bits of a test program on every tier. */
#ifndef PLANISH_TEST_SAME_ON_TIERS_H
#define PLANISH_TEST_SAME_ON_TIERS_H

#include <stdint.h>

/* Expects that the program `self` prints this digest with --digest, whatever tier it is told. */
void same_on_tiers(const char *self, uint64_t here);

#endif
