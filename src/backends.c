#include "backends.h"

const backend *backend_of(DLDevice device) {
    static const backend *const of_kind[DEVICE_KINDS] = {[DEVICE_CPU] = &cpu_backend,
                                                         [DEVICE_CUDA] = &cuda_backend};
    return of_kind[device_kind_of(device)];
}
