/* The kinds of memory that tensors may be in, each of which one backend has (backends.h). */
#ifndef PLANISH_DEVICES_H
#define PLANISH_DEVICES_H

#include <stdbool.h>

#include "planish.h"

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_KINDS } device_kind;

/* What sentences call all of them. */
#define DEVICES_WANTED "CPU or CUDA memory"

/* DEVICE_KINDS: none of them. */
static inline device_kind device_kind_of(DLDevice device) {
    switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        return DEVICE_CPU;
    case kDLCUDA:
    case kDLCUDAManaged:
        return DEVICE_CUDA;
    default:
        return DEVICE_KINDS;
    }
}

/* Whether a pass may have tensors on both. There is one CPU. */
static inline bool device_is_same(DLDevice a, DLDevice b) {
    if (device_kind_of(a) == DEVICE_CPU)
        return device_kind_of(b) == DEVICE_CPU;
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

#endif
