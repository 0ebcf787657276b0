/*
 * Calls without torch's boxed stack.
 *
 * Whatever is registered through torch's stable C ABI is called boxed: torch puts every argument
 * into a vector of IValues, then each into an object of its own on the heap, which for a row of
 * eight numbers is a quarter of the call. torch's own kernels are kept with a second pointer, to a
 * function that takes the arguments as they are (c10::KernelFunction); the dispatcher calls that
 * where there is one. Here the kernel that was registered boxed gets this pointer, too.
 *
 * Nothing is written before all of it is proven in this process: that the record of a kernel is
 * laid out as it is taken for, by records of torch's own and of ours, and that a call arrives with
 * its arguments, by one at a key that nobody uses. Where that does not hold, or the torch is newer
 * than those it is known of, calls stay boxed. The boxed kernel stays beside it, and removing that
 * removes both.
 */
#ifndef PLANISH_TORCH_UNBOXED_H
#define PLANISH_TORCH_UNBOXED_H

#include "aoti.h"

/* Whether this torch's kernels can be given such a function. */
bool unboxed_prove(void);

/*
 * Gives aten::`name`'s kernel at `key`, which was registered last and is `boxed`, this function.
 * False: it stays as it is, as it always does where unboxed_prove, asked once, says no. No kernel
 * of this operator may be registered or removed meanwhile.
 */
bool unboxed_put(const char *name, const char *key, boxed_kernel boxed, void (*function)(void));

#endif
