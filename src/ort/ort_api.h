/*
 * The part of ONNX Runtime's C interface that planish uses, declared in C: nothing of the runtime
 * is needed to build. Its tables are append-only, so an entry is known by its place, which is
 * asserted below; what stands between is left out. This file knows nothing of norms.
 */
#ifndef PLANISH_ORT_API_H
#define PLANISH_ORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version whose entries are used. A runtime gives its table for every version up to its own. */
enum { ORT_API_VERSION = 24 };

typedef struct ort_status ort_status; /* NULL is success; its owner releases it */
typedef struct ort_logger ort_logger;
typedef struct ort_graph ort_graph;
typedef struct ort_node ort_node;
typedef struct ort_attribute ort_attribute;
typedef struct ort_value_info ort_value_info;
typedef struct ort_type_info ort_type_info;
typedef struct ort_tensor_info ort_tensor_info;
typedef struct ort_value ort_value;
typedef struct ort_kernel_context ort_kernel_context;
typedef struct ort_compute_context ort_compute_context;
typedef struct ort_support ort_support;
typedef struct ort_hardware ort_hardware;
typedef struct ort_device ort_device;
typedef struct ort_pairs ort_pairs;
typedef struct ort_session_options ort_session_options;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 };
enum { ORT_LOG_INFO = 1 };
enum { ORT_CPU = 0 };
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_INTS = 2, ORT_ATTRIBUTE_FLOAT = 3 };
/* Of a tensor's elements. */
enum { ORT_F32 = 1, ORT_I64 = 7, ORT_F16 = 10, ORT_F64 = 11, ORT_BF16 = 16 };

typedef void (*ort_unused)(void);

/* The runtime's table of functions for execution providers. */
typedef struct ort_ep_api {
    ort_status *(*create_device)(void *factory, const ort_hardware *, const ort_pairs *metadata,
                                 const ort_pairs *options, ort_device **);
    ort_unused release_device;
    ort_status *(*fuse_nodes)(ort_support *, const ort_node *const *nodes, size_t count,
                              const void *options);
} ort_ep_api;

/* The runtime's table. */
typedef struct ort_api {
    ort_status *(*create_status)(int32_t code, const char *sentence);
    ort_unused to_51[50];
    ort_status *(*tensor_data)(ort_value *, void **);
    ort_unused to_55[3];
    ort_status *(*as_tensor_info)(const ort_type_info *, const ort_tensor_info **);
    ort_unused to_60[4];
    ort_status *(*element_type)(const ort_tensor_info *, int32_t *);
    ort_status *(*rank)(const ort_tensor_info *, size_t *);
    ort_status *(*sizes)(const ort_tensor_info *, int64_t *, size_t rank);
    ort_status *(*size_names)(const ort_tensor_info *, const char **, size_t rank);
    ort_unused to_90[26];
    ort_status *(*input)(const ort_kernel_context *, size_t index, const ort_value **);
    ort_status *(*output)(ort_kernel_context *, size_t index, const int64_t *sizes, size_t rank,
                          ort_value **);
    ort_unused to_93;
    void (*release_status)(ort_status *);
    ort_unused to_247[153];
    ort_status *(*log)(const ort_logger *, int32_t severity, const char *sentence, const char *file,
                       int32_t line, const char *function);
    ort_unused to_272[24];
    ort_status *(*read_attribute)(const ort_attribute *, int32_t type, void *data, size_t bytes,
                                  size_t *written);
    ort_unused to_274;
    ort_status *(*parallel_for)(const ort_kernel_context *, void (*)(void *data, size_t index),
                                size_t count, size_t batches, void *data);
    ort_unused to_289[14];
    ort_status *(*value_name)(const ort_value_info *, const char **);
    ort_status *(*value_type)(const ort_value_info *, const ort_type_info **);
    ort_unused to_307[16];
    int32_t (*hardware_type)(const ort_hardware *);
    ort_unused to_317[9];
    const ort_ep_api *(*ep_api)(void);
    ort_unused to_324[6];
    ort_status *(*consumer_count)(const ort_value_info *, size_t *);
    ort_status *(*consumers)(const ort_value_info *, const ort_node **, int64_t *inputs,
                             size_t count);
    ort_status *(*initializer)(const ort_value_info *, const ort_value **);
    ort_unused to_330[3];
    ort_status *(*is_graph_output)(const ort_value_info *, bool *);
    ort_status *(*is_constant)(const ort_value_info *, bool *);
    ort_unused to_344[12];
    ort_status *(*node_count)(const ort_graph *, size_t *);
    ort_status *(*nodes)(const ort_graph *, const ort_node **, size_t count);
    ort_unused to_349[3];
    ort_status *(*node_name)(const ort_node *, const char **);
    ort_status *(*node_operator)(const ort_node *, const char **);
    ort_status *(*node_domain)(const ort_node *, const char **);
    ort_status *(*node_since)(const ort_node *, int32_t *);
    ort_status *(*input_count)(const ort_node *, size_t *);
    ort_status *(*inputs)(const ort_node *, const ort_value_info **, size_t count);
    ort_status *(*output_count)(const ort_node *, size_t *);
    ort_status *(*outputs)(const ort_node *, const ort_value_info **, size_t count);
    ort_unused to_361[4];
    ort_status *(*attribute)(const ort_node *, const char *name, const ort_attribute **);
    ort_unused to_368[6];
    ort_status *(*node_ep)(const ort_node *, const char **);
    ort_unused to_390[21];
    bool (*has_shape)(const ort_tensor_info *);
    ort_unused to_414[23];
    /* A tensor's type and sizes, which stay the value's. */
    ort_status *(*type_and_sizes)(const ort_value *, int32_t *type, const int64_t **sizes,
                                  size_t *rank);
} ort_api;

#define ORT_STANDS_AT(member, place)                                                               \
    _Static_assert(offsetof(ort_api, member) == (place) * sizeof(ort_unused), #member)
ORT_STANDS_AT(tensor_data, 51);
ORT_STANDS_AT(as_tensor_info, 55);
ORT_STANDS_AT(element_type, 60);
ORT_STANDS_AT(input, 90);
ORT_STANDS_AT(release_status, 93);
ORT_STANDS_AT(log, 247);
ORT_STANDS_AT(read_attribute, 272);
ORT_STANDS_AT(parallel_for, 274);
ORT_STANDS_AT(value_name, 289);
ORT_STANDS_AT(hardware_type, 307);
ORT_STANDS_AT(ep_api, 317);
ORT_STANDS_AT(consumer_count, 324);
ORT_STANDS_AT(initializer, 326);
ORT_STANDS_AT(is_graph_output, 330);
ORT_STANDS_AT(node_count, 344);
ORT_STANDS_AT(node_name, 349);
ORT_STANDS_AT(attribute, 361);
ORT_STANDS_AT(node_ep, 368);
ORT_STANDS_AT(has_shape, 390);
ORT_STANDS_AT(type_and_sizes, 414);

/* What a library is given to find the table; NULL where the runtime is older than the version. */
typedef struct ort_api_base {
    const ort_api *(*api)(uint32_t version);
    const char *(*version)(void);
} ort_api_base;

/* ---- What planish gives the runtime: tables whose first field is the version they are of ---- */

typedef struct ort_compute ort_compute;
struct ort_compute {
    uint32_t version;
    ort_status *(*create_state)(ort_compute *, ort_compute_context *, void **state);
    ort_status *(*compute)(ort_compute *, void *state, ort_kernel_context *);
    void (*release_state)(ort_compute *, void *state);
};

typedef struct ort_ep ort_ep;
struct ort_ep {
    uint32_t version;
    const char *(*name)(const ort_ep *);
    ort_status *(*get_capability)(ort_ep *, const ort_graph *, ort_support *);
    ort_status *(*compile)(ort_ep *, const ort_graph **, const ort_node **fused, size_t count,
                           ort_compute **, ort_node **contexts);
    void (*release_computes)(ort_ep *, ort_compute **, size_t count);
    ort_unused absent[32]; /* what version 24 has beside these, and more */
};

typedef struct ort_factory ort_factory;
struct ort_factory {
    uint32_t version;
    const char *(*name)(const ort_factory *);
    const char *(*vendor)(const ort_factory *);
    ort_status *(*supported_devices)(ort_factory *, const ort_hardware *const *, size_t count,
                                     ort_device **, size_t most, size_t *found);
    ort_status *(*create_ep)(ort_factory *, const ort_hardware *const *,
                             const ort_pairs *const *metadata, size_t count,
                             const ort_session_options *, const ort_logger *, ort_ep **);
    void (*release_ep)(ort_factory *, ort_ep *);
    uint32_t (*vendor_id)(const ort_factory *);
    const char *(*own_version)(const ort_factory *);
    ort_unused compiled_models;
    ort_status *(*create_allocator)(ort_factory *, const void *memory, const ort_pairs *, void **);
    void (*release_allocator)(ort_factory *, void *);
    ort_status *(*create_data_transfer)(ort_factory *, void **);
    bool (*is_stream_aware)(const ort_factory *);
    ort_unused absent[24];
};

#endif
