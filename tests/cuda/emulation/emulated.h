#ifndef EMULATED_H
#define EMULATED_H

#include <stdbool.h>

#include "cuda/launches.h"
#include "device.h"

/* The device that plans are made for. */
extern cuda_limits limits;
/* Where specialisations are written, in place of being run; and where they are, compiled. */
extern const char *write_folder, *unit_folder;
extern schedule order;
extern unsigned char fill; /* of what nobody has written yet */
extern int units_written, launches_run;
/* Strips of clusters are shared by as many blocks anywhere on the device instead. */
extern bool without_clusters;
/* Strips over blocks anywhere on the device are summed ahead, whatever their plan is. */
extern bool summed_ahead;
/* How rows are shared by a group of blocks anywhere on the device, whatever their plan is. */
typedef struct sharing {
    int group; /* 0: as planned */
    int lanes, vecs, stages, delay;
} sharing;
extern sharing sharing_of_rows;

/* Few multiprocessors give each block several rows; 132 of them give most one or none. */
void set_device(int arch, int multiprocessors);
void set_cooperative(int cooperative);

/* Of a launch: what kinds of kernel it is of. */
void note_variant(const cuda_spec *spec);

/* Prints each kind of kernel that no launch so far was of: of those of a norm alone, and of those
 * with stages around it or of two norms. */
void name_missing_variants(bool alone, bool stages);

/* What the entries of the library are made of: a plan for this device, where each tensor of a run
 * is, and a launch, which is written down or run. */
typedef struct emulated_problem {
    steps steps;
    problem problem, norm;
} emulated_problem;
planish_status emulated_plan(cuda_plan *plan, emulated_problem *p, const planish_norm *op,
                             planish_pass pass, const planish_tensors *tensors, message error);
void emulated_buffers(const planish_tensors *tensors, void *buffers[ROLE_COUNT]);
planish_status emulated_queue(const cuda_launch *l, message error);

#endif
