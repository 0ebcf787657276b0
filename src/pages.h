/* The pages of large new tensors. */
#ifndef PLANISH_PAGES_H
#define PLANISH_PAGES_H

#include <stddef.h>

/*
 * Asks the kernel for huge pages (madvise) where a new tensor's memory is large and the page in its
 * middle is not there yet: what is written first is then zeroed 2 MB at a time, in place of 4 KB,
 * which takes longer than a norm. No more memory is taken for that, as all of it will be written.
 * Does nothing where PLANISH_HUGE_PAGES is 0 in the environment, or where the system has no such
 * pages.
 */
void ask_for_huge_pages(void *data, size_t bytes);

#endif
