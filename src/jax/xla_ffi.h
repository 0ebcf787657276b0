/*
 * The part of XLA's C FFI that planish uses, declared in C: nothing of jaxlib is needed to build.
 *
 * Structs grow at their end, and each says its own size. What lies behind `struct_size` of the
 * runtime's table is not there. This file knows nothing of norms.
 */
#ifndef PLANISH_JAX_XLA_FFI_H
#define PLANISH_JAX_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

typedef struct xla_extension {
    size_t struct_size;
    int32_t type;
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t struct_size;
    xla_extension *extensions;
    int32_t major, minor;
} xla_version;

/* Asked for at registration, as an extension of a frame that has nothing else. */
enum { XLA_EXTENSION_METADATA = 1, XLA_COMMAND_BUFFER_COMPATIBLE = 1 };
typedef struct xla_metadata {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;
typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

/* Dtypes by XLA's numbers. */
enum {
    XLA_PRED = 1,
    XLA_S8 = 2,
    XLA_S64 = 5,
    XLA_U8 = 6,
    XLA_U64 = 9,
    XLA_F16 = 10,
    XLA_F32 = 11,
    XLA_F64 = 12,
    XLA_BF16 = 16,
    XLA_F8E5M2 = 19,
    XLA_F8E4M3FN = 20,
    XLA_F8E8M0FNU = 33
};

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension *extensions;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_span {
    const char *text;
    size_t length;
} xla_span;

enum { XLA_ATTRIBUTE_SCALAR = 3 };
typedef struct xla_scalar {
    int32_t dtype;
    void *value;
} xla_scalar;

/* Arguments, or results. */
typedef struct xla_values {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int32_t *types;
    void **values;
} xla_values;

typedef struct xla_attributes {
    size_t struct_size;
    xla_extension *extensions;
    int64_t count;
    int32_t *types;
    xla_span **names;
    void **values;
} xla_attributes;

typedef struct xla_error xla_error;
typedef struct xla_context xla_context;
typedef struct xla_api xla_api;

enum { XLA_INSTANTIATE, XLA_PREPARE, XLA_INITIALIZE, XLA_EXECUTE };
typedef struct xla_frame {
    size_t struct_size;
    xla_extension *extensions;
    const xla_api *api;
    xla_context *context;
    int32_t stage;
    xla_values arguments, results;
    xla_attributes attributes;
} xla_frame;

enum {
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13,
    XLA_UNAVAILABLE = 14
};
typedef struct xla_error_create {
    size_t struct_size;
    xla_extension *extensions;
    const char *message;
    int32_t code;
} xla_error_create;

typedef struct xla_error_destroy {
    size_t struct_size;
    xla_extension *extensions;
    xla_error *error;
} xla_error_destroy;

typedef struct xla_stream_get {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    void *stream; /* out */
} xla_stream_get;

typedef struct xla_device_ordinal_get {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    int32_t ordinal; /* out */
} xla_device_ordinal_get;

typedef struct xla_schedule {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    void (*task)(void *data);
    void *data;
} xla_schedule;

typedef struct xla_thread_count {
    size_t struct_size;
    xla_extension *extensions;
    xla_context *context;
    int64_t *count; /* out */
} xla_thread_count;

typedef void (*xla_unused)(void);

/* The runtime's table, which grows at its end. */
struct xla_api {
    size_t struct_size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_create *);
    xla_unused error_message;
    void (*error_destroy)(xla_error_destroy *);
    xla_unused handler_register;
    xla_error *(*stream_get)(xla_stream_get *);
    xla_unused type_register, context_get, state_set, state_get;
    xla_unused memory_allocate, memory_free;
    xla_error *(*schedule)(xla_schedule *);
    xla_error *(*thread_count)(xla_thread_count *);
    xla_unused future_create, future_set_available, future_set_error, run_id_get;
    xla_error *(*device_ordinal_get)(xla_device_ordinal_get *);
};

/* Whether the runtime's table goes as far as this member. */
#define XLA_HAS(api, member)                                                                       \
    ((api)->struct_size >= offsetof(xla_api, member) + sizeof((api)->member) && (api)->member)

#endif
