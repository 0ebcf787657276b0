/*
 * What runs problems, of one kind of memory each: a row of functions. The rest of the library knows
 * a backend by these alone. Its plan is bytes of its own, which may be moved (rebind); planning is
 * pure but for looking at what device is there, and running cannot fail for what was checked.
 */
#ifndef PLANISH_BACKENDS_H
#define PLANISH_BACKENDS_H

#include "devices.h"
#include "merge.h"
#include "steps.h"

/* The most bytes of any backend's plan. */
enum { MOST_PLAN_BYTES = 1648 };

struct text; /* text.h */

typedef struct backend {
    size_t plan_bytes;
    unsigned workspace_alignment;

    /* Writes the steps of p, of which one may be of *norm, and the plan of them for the device that
     * p is on. Errors: what the device is not there for. */
    planish_status (*plan)(void *plan, steps *s, const problem *p, problem *norm,
                           size_t *workspace_bytes, message error);
    /* The plan is at another place, and so are its steps' problems; NULL: it does not matter. */
    void (*rebind)(void *plan, const steps *s);

    /* Runs the steps in exec's workspace. All arguments are checked. */
    planish_status (*run)(const void *plan, const steps *s, void *const buffers[ROLE_COUNT],
                          const planish_exec *exec);
    /* What a run would have to find, compile and load first; NULL: nothing. */
    planish_status (*load)(const void *plan, void *const buffers[ROLE_COUNT],
                           const planish_exec *exec);
    /* Two of one device, each in a workspace of its own; NULL: one after the other will do. */
    planish_status (*run_pair)(const void *const plans[2], void *const *const buffers[2],
                               void *const workspace[2], const planish_exec *exec);

    /* Puts together what parts of rows sent, all of it on device `device` of this kind. */
    planish_status (*merge)(const merge_args *m, int device, void *stream, message error);

    /* Whether only kernels for any problem run it; and what in p no other kernels take. */
    bool (*is_general)(const void *plan);
    void (*why_general)(const void *plan, const problem *p, struct text *to);
    /* One line; returns its whole length. */
    int (*describe)(const void *plan, const problem *p, char *to, size_t bytes);
} backend;

extern const backend cpu_backend, cuda_backend;

/* Of a problem's device, which problem_make has checked. */
const backend *backend_of(DLDevice device);

#endif
