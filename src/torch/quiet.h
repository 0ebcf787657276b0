/*
 * Keeping quiet the one warning that torch gives when a kernel is overridden.
 */
#ifndef PLANISH_TORCH_QUIET_H
#define PLANISH_TORCH_QUIET_H

/*
 * Between these two torch's "Overriding a previously registered kernel" is dropped; every other
 * warning goes on to the handler that was there. torch gives it once per process: that once is not
 * used up. Does nothing where torch has other names for what it takes.
 */
void quiet_begin(void);
void quiet_end(void);

#endif
