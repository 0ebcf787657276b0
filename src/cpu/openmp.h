/* The threads of this process's OpenMP runtime. None is linked: it is looked for when first wanted.
 */
#ifndef PLANISH_CPU_OPENMP_H
#define PLANISH_CPU_OPENMP_H

#include "planish.h"

/*
 * Runs task on all of 0 ... count-1: a range of items for each thread of a parallel region, as a
 * static schedule has it; without an OpenMP runtime, or where the library was built without
 * (-Dopenmp=disabled), all on the calling thread.
 *
 * The runtime is, in this order: the one that libtorch is linked with, if torch is loaded; one that
 * is loaded for something else; the system's. So torch and planish never run two beside each other,
 * and a second set of threads does not compete for the cores.
 */
void openmp_for(int64_t count, planish_task task, void *task_data);

/*
 * Runs task once, on the calling thread, whose parallel regions have one thread meanwhile, also in
 * other libraries of the same runtime: no threads are started. GNU's runtime does not survive a
 * fork once it has some.
 */
void openmp_alone(planish_task task, void *task_data);

#endif
