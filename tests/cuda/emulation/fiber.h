/* Stacks that take turns on one thread of the host. */
#ifndef EMULATION_FIBER_H
#define EMULATION_FIBER_H

typedef struct fiber fiber;

/* A fiber that will run `body`, which must not return; NULL without memory. */
fiber *fiber_make(void (*body)(void *context), void *context);

/* From the thread's own stack into a fiber, until it calls fiber_leave(). */
void fiber_enter(fiber *f);
void fiber_leave(void);

#endif
