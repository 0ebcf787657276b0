/*
 * The part of libtorch's stable C ABI that planish uses, declared in C and looked up at run time.
 *
 * libtorch's own headers are C++; these declarations follow its exported functions as they are from
 * torch 2.10 on. Everything is found with dlopen(RTLD_NOLOAD) and dlsym in the libtorch that the
 * process has loaded: nothing is linked and nothing is loaded. This file knows nothing of norms.
 */
#ifndef PLANISH_TORCH_AOTI_H
#define PLANISH_TORCH_AOTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../status.h"

/* One slot of a boxed call. */
typedef uint64_t stack_value;
/* 0 is success. */
typedef int32_t torch_error;
/* An owned at::Tensor on the heap: a pointer to a pointer to the TensorImpl. */
typedef struct tensor_object *tensor_handle;
typedef struct list_object *list_handle;
typedef struct library_object *library_handle;

typedef void (*boxed_kernel)(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* Itanium C++ ABI twins of the types in the exported C++ functions below. */
typedef struct int_array_ref {
    const int64_t *data;
    size_t size;
} int_array_ref;

typedef struct optional_tensor {
    void *impl; /* TensorImpl */
    bool engaged;
} optional_tensor;

typedef struct optional_double {
    double value;
    bool engaged;
} optional_double;

typedef struct mask3 {
    bool wanted[3];
} mask3;

typedef struct mask2 {
    bool wanted[2];
} mask2;

typedef struct optional_device {
    int8_t type, index;
    bool engaged;
} optional_device;

/*
 * What C++ returns through a hidden pointer. std::tuple lays its members out backwards: the first
 * result is the last field. A call that returns fewer tensors fills fewer fields, but the type must
 * be larger than two registers for C to pass the hidden pointer too.
 */
typedef struct returned_tensors {
    void *impl[3];
} returned_tensors;

typedef returned_tensors layer_norm_function(tensor_handle input, int_array_ref normalized_shape,
                                             const optional_tensor *weight,
                                             const optional_tensor *bias, double eps);
typedef returned_tensors layer_norm_backward_function(tensor_handle dy, tensor_handle input,
                                                      int_array_ref normalized_shape,
                                                      tensor_handle mean, tensor_handle rstd,
                                                      const optional_tensor *weight,
                                                      const optional_tensor *bias, mask3 mask);
typedef returned_tensors group_norm_function(tensor_handle input, const optional_tensor *weight,
                                             const optional_tensor *bias, int64_t batch,
                                             int64_t channels, int64_t pixels, int64_t groups,
                                             double eps);
typedef returned_tensors group_norm_backward_function(tensor_handle dy, tensor_handle input,
                                                      tensor_handle mean, tensor_handle rstd,
                                                      const optional_tensor *weight, int64_t batch,
                                                      int64_t channels, int64_t pixels,
                                                      int64_t groups, mask3 mask);
typedef returned_tensors rms_norm_function(tensor_handle input, int_array_ref normalized_shape,
                                           const optional_tensor *weight, optional_double eps);

typedef returned_tensors rms_norm_backward_function(tensor_handle dy, tensor_handle input,
                                                    int_array_ref normalized_shape,
                                                    tensor_handle rstd,
                                                    const optional_tensor *weight, mask2 mask);

typedef returned_tensors weight_norm_function(tensor_handle v, tensor_handle g, int64_t dim);
typedef returned_tensors weight_norm_backward_function(tensor_handle dw, tensor_handle v,
                                                       tensor_handle g, tensor_handle norms,
                                                       int64_t dim);

/* What C++ returns of four tensors: as returned_tensors, the first is the last field. */
typedef struct returned_four {
    void *impl[4];
} returned_four;

typedef returned_tensors batch_norm_function(tensor_handle input, const optional_tensor *weight,
                                             const optional_tensor *bias,
                                             const optional_tensor *running_mean,
                                             const optional_tensor *running_var, bool training,
                                             double momentum, double eps);
typedef returned_tensors batch_norm_backward_function(tensor_handle dy, tensor_handle input,
                                                      const optional_tensor *weight,
                                                      const optional_tensor *running_mean,
                                                      const optional_tensor *running_var,
                                                      const optional_tensor *save_mean,
                                                      const optional_tensor *save_rstd,
                                                      bool training, double eps, mask3 mask);
typedef returned_four
batch_norm_with_update_function(tensor_handle input, const optional_tensor *weight,
                                const optional_tensor *bias, tensor_handle running_mean,
                                tensor_handle running_var, double momentum, double eps);
typedef returned_tensors batch_norm_with_reserve_backward_function(
    tensor_handle dy, tensor_handle input, tensor_handle weight,
    const optional_tensor *running_mean, const optional_tensor *running_var,
    const optional_tensor *save_mean, const optional_tensor *save_rstd, bool update, double eps,
    mask3 mask, tensor_handle reserve);
typedef returned_four cudnn_batch_norm_function(tensor_handle input, tensor_handle weight,
                                                const optional_tensor *bias,
                                                const optional_tensor *running_mean,
                                                const optional_tensor *running_var, bool training,
                                                double momentum, double eps);
typedef returned_tensors cudnn_batch_norm_backward_function(tensor_handle input, tensor_handle dy,
                                                            tensor_handle weight,
                                                            const optional_tensor *running_mean,
                                                            const optional_tensor *running_var,
                                                            const optional_tensor *save_mean,
                                                            const optional_tensor *save_rstd,
                                                            double eps, tensor_handle reserve);

/* SyncBatchNorm's operators. */
typedef returned_tensors sync_statistics_function(tensor_handle input, double eps);
typedef returned_tensors sync_apply_function(tensor_handle input, const optional_tensor *weight,
                                             const optional_tensor *bias, tensor_handle mean,
                                             tensor_handle rstd, double eps);
typedef void *sync_apply_out_function(tensor_handle out, tensor_handle input,
                                      const optional_tensor *weight, const optional_tensor *bias,
                                      tensor_handle mean, tensor_handle rstd, double eps);
typedef returned_four sync_sums_function(tensor_handle dy, tensor_handle input, tensor_handle mean,
                                         tensor_handle rstd, const optional_tensor *weight,
                                         bool sums, bool dweight, bool dbias);
typedef returned_tensors sync_gradient_function(tensor_handle dy, tensor_handle input,
                                                tensor_handle mean, tensor_handle rstd,
                                                const optional_tensor *weight, tensor_handle sum_dy,
                                                tensor_handle sum_dy_xmu, tensor_handle count);

/* std::optional<c10::MemoryFormat>; not engaged: row-major. */
typedef struct optional_layout {
    int8_t value;
    bool engaged;
} optional_layout;

/* at::_ops' entries take symbolic sizes: an array of them is one of int64_t where none is symbolic.
 * `keys` is a DispatchKeySet. */
typedef returned_tensors layer_norm_redispatch(uint64_t keys, tensor_handle input,
                                               int_array_ref normalized_shape,
                                               const optional_tensor *weight,
                                               const optional_tensor *bias, double eps);

/*
 * c10::OperatorHandle: where the dispatcher keeps an operator. C++ returns it through a hidden
 * pointer, which C does for types of more than two registers.
 */
typedef struct operator_handle {
    const void *entry;
    void *iterator, *unused;
} operator_handle;

/* c10::DispatchKey */
typedef uint16_t dispatch_key;

typedef returned_tensors empty_cpu_function(int_array_ref sizes, int8_t dtype, bool pinned,
                                            optional_layout layout);
typedef returned_tensors empty_cuda_function(int_array_ref sizes, int8_t dtype,
                                             optional_device device, optional_layout layout);

typedef struct torch_functions {
    /* The stable C ABI. */
    uint64_t (*abi_version)(void);
    torch_error (*get_dim)(tensor_handle, int64_t *);
    torch_error (*get_sizes)(tensor_handle, int64_t **);
    torch_error (*get_strides)(tensor_handle, int64_t **);
    torch_error (*get_dtype)(tensor_handle, int32_t *);
    torch_error (*get_device_type)(tensor_handle, int32_t *);
    torch_error (*get_device_index)(tensor_handle, int32_t *);
    torch_error (*get_const_data_ptr)(tensor_handle, const void **);
    torch_error (*get_mutable_data_ptr)(tensor_handle, void **);
    torch_error (*get_storage_size)(tensor_handle, int64_t *bytes);
    torch_error (*get_storage_offset)(tensor_handle, int64_t *elements);
    /* Another tensor in the same memory, at this offset from the first one's. */
    torch_error (*reinterpret)(tensor_handle, int64_t ndim, const int64_t *sizes,
                               const int64_t *strides, int64_t offset, tensor_handle *);
    torch_error (*is_defined)(tensor_handle, bool *);
    torch_error (*empty_strided)(int64_t ndim, const int64_t *sizes, const int64_t *strides,
                                 int32_t dtype, int32_t device_type, int32_t device_index,
                                 tensor_handle *);
    torch_error (*new_undefined)(tensor_handle *);
    torch_error (*new_handle)(tensor_handle, tensor_handle *);
    torch_error (*delete_tensor)(tensor_handle);
    torch_error (*copy)(tensor_handle to, tensor_handle from, int32_t non_blocking);
    torch_error (*list_size)(list_handle, size_t *);
    torch_error (*list_get)(list_handle, size_t, stack_value *);
    torch_error (*list_new)(size_t, list_handle *);
    torch_error (*list_push)(list_handle, stack_value);
    torch_error (*list_delete)(list_handle);
    torch_error (*parallel_for)(int64_t begin, int64_t end, int64_t grain,
                                void (*body)(int64_t begin, int64_t end, void *context),
                                void *context);
    torch_error (*call_dispatcher)(const char *name, const char *overload, stack_value *stack,
                                   uint64_t version);
    torch_error (*library_init_impl)(const char *ns, const char *key, const char *file,
                                     uint32_t line, library_handle *);
    torch_error (*library_init_fragment)(const char *ns, const char *file, uint32_t line,
                                         library_handle *);
    torch_error (*library_define)(library_handle, const char *schema);
    torch_error (*library_implement)(library_handle, const char *name, boxed_kernel,
                                     uint64_t version);
    torch_error (*library_delete)(library_handle);
    /* Throws torch's RuntimeError with exactly `text` where `ok` is false. */
    void (*check)(bool ok, const char *function, const char *file, uint32_t line, const char *text);
    int32_t (*device_type_cpu)(void);
    int32_t (*device_type_cuda)(void);
    int32_t (*dtype_f16)(void);
    int32_t (*dtype_bf16)(void);
    int32_t (*dtype_f32)(void);
    int32_t (*dtype_f64)(void);
    int32_t (*dtype_u8)(void);

    /* From torch 2.13; before it optional values are plain operator new and delete. */
    torch_error (*new_value)(stack_value **);
    torch_error (*delete_value)(stack_value *);
    const char *(*exception_text)(void);
    void *(*operator_new)(size_t);
    void (*operator_delete)(void *);

    /* torch's own kernels, by their exported C++ names; they go past the dispatcher. */
    layer_norm_function *layer_norm;
    layer_norm_backward_function *layer_norm_backward;
    group_norm_function *group_norm;
    group_norm_backward_function *group_norm_backward;
    batch_norm_function *batch_norm;
    batch_norm_backward_function *batch_norm_backward;
    weight_norm_function *weight_norm;
    weight_norm_backward_function *weight_norm_backward;
    rms_norm_function *fused_rms_norm_composite;
    rms_norm_function *rms_norm_composite;
    /* at::_fused_rms_norm through the dispatcher, unboxed. */
    rms_norm_function *fused_rms_norm;
    /* Whether a tensor was made in inference mode: autograd saves none of these. */
    bool (*is_inference)(tensor_handle);
    /* c10::TensorImpl::_fw_grad: the tangent at a level of forward mode, or an undefined tensor. */
    tensor_handle (*fw_grad)(const void *impl, uint64_t level, tensor_handle);
    bool (*grad_mode_is_enabled)(void);

    /* A CPU tensor straight from torch's allocator, a third of the time of empty_strided. */
    empty_cpu_function *empty_cpu;
    int (*get_num_threads)(void);

    /* For kernels that are called without a boxed stack; see unboxed.c. */
    void *(*dispatcher)(void);
    operator_handle (*find_operator)(void *dispatcher, const char *name, const char *overload);
    bool (*has_kernel)(const void *entry, dispatch_key key);
    void *(*kernel_at)(const void *entry, dispatch_key key);
    void (*update_table)(const void *entry, void *dispatcher, dispatch_key key);
    const char *(*key_name)(dispatch_key key);
    uint64_t (*key_set)(dispatch_key key);
    layer_norm_redispatch *redispatch_layer_norm;

    /* What sees a call: how many modes, the transforms of torch.func (a std::vector: begin, end),
     * the tracing (a std::shared_ptr), and profilers; see src/python/seen.c. */
    int64_t (*dispatch_modes)(void);
    int64_t (*function_modes)(void);
    void *const *(*transforms)(void);
    void *const *(*tracing)(void);
    bool (*has_callbacks)(void);
    bool (*requires_grad)(const void *impl);
    /* From libtorch_python: a new reference to the tensor's object, None for an undefined one. */
    void *(*python_tensor)(tensor_handle);

    /* For keeping one warning quiet; see quiet.c. */
    void (*set_warning_handler)(void *handler);
    void *(*get_warning_handler)(void);
    void (*set_warn_always)(bool);
    bool (*get_warn_always)(void);
    const void *(*warning_text)(const void *warning);

    /* From libtorch_cuda.so, where torch has it; see torch_has_cuda. */
    torch_error (*get_current_cuda_stream)(int32_t device_index, void **stream);
    layer_norm_function *cuda_layer_norm;
    layer_norm_backward_function *cuda_layer_norm_backward;
    group_norm_function *cuda_group_norm;
    group_norm_backward_function *cuda_group_norm_backward;
    batch_norm_function *cuda_batch_norm;
    batch_norm_backward_function *cuda_batch_norm_backward;
    batch_norm_with_update_function *cuda_batch_norm_with_update;
    batch_norm_with_reserve_backward_function *cuda_batch_norm_with_reserve_backward;
    cudnn_batch_norm_function *cudnn_batch_norm;
    cudnn_batch_norm_backward_function *cudnn_batch_norm_backward;
    sync_statistics_function *cuda_sync_statistics;
    sync_apply_function *cuda_sync_apply;
    sync_apply_out_function *cuda_sync_apply_out;
    sync_sums_function *cuda_sync_sums;
    sync_gradient_function *cuda_sync_gradient;
    torch_error (*cuda_fill)(tensor_handle, double);
    rms_norm_function *cuda_fused_rms_norm;
    rms_norm_backward_function *cuda_fused_rms_norm_backward;
    empty_cuda_function *empty_cuda;

    /* Where a thread keeps its dispatch keys; this is the address that torch_load's has. */
    void *loaders_dispatch_keys;

    /* Constants asked of libtorch once. */
    int32_t cpu, cuda, f16, bf16, f32, f64, u8;
    /* The TensorImpl of every undefined tensor; it has no references to count. */
    void *undefined;
} torch_functions;

/* Filled by torch_load; everything else reads it. */
extern torch_functions torch;

/* The version every call of the versioned ABI is made with: 2.10, the oldest that has it. */
#define TORCH_BUILD_VERSION ((uint64_t)2 << 56 | (uint64_t)10 << 48)

/* Looks everything up, once. Fails if a required function is missing, naming it. */
planish_status torch_load(message error);

/* OK once torch_load was and libtorch_cuda.so is loaded and has what planish needs of it. */
planish_status torch_has_cuda(message error);

/* 100 * major + minor of the libtorch in this process; 0 if there is none. */
int torch_version(void);

/*
 * c10::impl::PODLocalDispatchKeySet: the keys that modes and guards of a thread add to those of the
 * tensors, and those they take away, each as its difference to what a new thread has.
 */
typedef struct local_dispatch_keys {
    uint64_t included, excluded;
} local_dispatch_keys;

/* The calling thread's; NULL where this torch does not tell. */
local_dispatch_keys *torch_local_dispatch_keys(void);

/* How many threads torch has; 1 where it does not say. */
static inline int torch_threads(void) {
    return torch.get_num_threads ? torch.get_num_threads() : 1;
}

/* What libtorch says about the function of its C ABI that failed last on this thread. */
const char *torch_last_words(void);

/* Throws torch's RuntimeError with this text, through the C frames between. */
_Noreturn void torch_throw(const char *text);

/* Throws where a call into libtorch failed, with libtorch's own words where it tells them. */
static inline void torch_check(torch_error error);

_Noreturn void torch_throw_last(void);

static inline void torch_check(torch_error error) {
    if (__builtin_expect(error != 0, 0))
        torch_throw_last();
}

#endif
