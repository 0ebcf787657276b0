/* Which of the CPU's paths a problem goes. Pure. */
#ifndef PLANISH_CPU_PATH_H
#define PLANISH_CPU_PATH_H

#include "cpu/plan.h"

cpu_path cpu_path_of(const problem *p);

#endif
