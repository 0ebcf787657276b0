/*
 * Looks up libtorch's functions, each on its own, and says which are there. See aoti.h.
 */
#include "aoti.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "planish_torch.h"

torch_functions torch;

/* Since when, or for what, a function is there; required ones must be. */
typedef struct symbol {
    size_t offset; /* in torch_functions */
    bool required;
    const char *name;
    const char *use;
} symbol;

static const char tensors[] = "reading and making tensors (torch 2.10)";
static const char lists[] = "reading integer lists (torch 2.10)";
static const char registering[] = "registering kernels (torch 2.10)";
static const char calling[] = "calling operators (torch 2.10)";
static const char falling_back[] = "handing unsupported input to torch's own kernel";
static const char batches[] = "handing batch norms on CUDA to torch's own kernel";
static const char synchronised[] = "SyncBatchNorm's operators (else they stay torch's)";
static const char optional_values[] = "optional values (torch 2.13; before: operator new)";
static const char unboxing[] = "calls without a boxed stack (else boxed, slower for small tensors)";
static const char asking[] = "calls of planish's own without the dispatcher (else slower)";
static const char forward_mode[] = "forward mode through RMS norm in its dtype";
static const char warnings[] = "keeping torch's one warning about overriding quiet";

static const char dispatch_keys_name[] = "_ZN3c104impl26raw_local_dispatch_key_setE";

/* libtorch_cpu, once it is loaded. */
static void *torch_library;

#define FIELD(field) offsetof(torch_functions, field)

static const symbol symbols[] = {
    {FIELD(abi_version), true, "aoti_torch_abi_version", tensors},
    {FIELD(get_dim), true, "aoti_torch_get_dim", tensors},
    {FIELD(get_sizes), true, "aoti_torch_get_sizes", tensors},
    {FIELD(get_strides), true, "aoti_torch_get_strides", tensors},
    {FIELD(get_dtype), true, "aoti_torch_get_dtype", tensors},
    {FIELD(get_device_type), true, "aoti_torch_get_device_type", tensors},
    {FIELD(get_device_index), true, "aoti_torch_get_device_index", tensors},
    {FIELD(get_const_data_ptr), true, "torch_get_const_data_ptr", tensors},
    {FIELD(get_mutable_data_ptr), true, "torch_get_mutable_data_ptr", tensors},
    {FIELD(get_storage_size), true, "aoti_torch_get_storage_size", tensors},
    {FIELD(get_storage_offset), true, "aoti_torch_get_storage_offset", tensors},
    {FIELD(reinterpret), true, "aoti_torch__reinterpret_tensor", tensors},
    {FIELD(is_defined), true, "aoti_torch_is_defined", tensors},
    {FIELD(empty_strided), true, "aoti_torch_empty_strided", tensors},
    {FIELD(new_undefined), true, "aoti_torch_new_uninitialized_tensor", tensors},
    {FIELD(new_handle), true, "aoti_torch_new_tensor_handle", tensors},
    {FIELD(delete_tensor), true, "aoti_torch_delete_tensor_object", tensors},
    {FIELD(copy), true, "aoti_torch_copy_", tensors},
    {FIELD(device_type_cpu), true, "aoti_torch_device_type_cpu", tensors},
    {FIELD(device_type_cuda), true, "aoti_torch_device_type_cuda", tensors},
    {FIELD(dtype_f16), true, "aoti_torch_dtype_float16", tensors},
    {FIELD(dtype_bf16), true, "aoti_torch_dtype_bfloat16", tensors},
    {FIELD(dtype_f32), true, "aoti_torch_dtype_float32", tensors},
    {FIELD(dtype_f64), true, "aoti_torch_dtype_float64", tensors},
    {FIELD(dtype_u8), true, "aoti_torch_dtype_uint8", tensors},
    {FIELD(list_size), true, "torch_list_size", lists},
    {FIELD(list_get), true, "torch_list_get_item", lists},
    {FIELD(list_new), true, "torch_new_list_reserve_size", lists},
    {FIELD(list_push), true, "torch_list_push_back", lists},
    {FIELD(list_delete), true, "torch_delete_list", lists},
    {FIELD(grad_mode_is_enabled), true, "aoti_torch_grad_mode_is_enabled",
     "derivatives of derivatives"},
    {FIELD(parallel_for), true, "torch_parallel_for", "torch's own threads (torch 2.10)"},
    {FIELD(call_dispatcher), true, "torch_call_dispatcher", calling},
    {FIELD(library_init_impl), true, "aoti_torch_library_init_impl", registering},
    {FIELD(library_init_fragment), true, "aoti_torch_library_init_fragment", registering},
    {FIELD(library_define), true, "aoti_torch_library_def", registering},
    {FIELD(library_implement), true, "torch_library_impl", registering},
    {FIELD(library_delete), true, "aoti_torch_delete_library_object", registering},
    {FIELD(check), true, "aoti_torch_check", "raising torch's exceptions"},
    {FIELD(operator_new), true, "_Znwm", optional_values},
    {FIELD(operator_delete), true, "_ZdlPv", optional_values},
    {FIELD(new_value), false, "torch_new_stable_ivalue", optional_values},
    {FIELD(delete_value), false, "torch_delete_stable_ivalue", optional_values},
    {FIELD(exception_text), false, "torch_exception_get_what_without_backtrace",
     "libtorch's own words in errors (torch 2.13)"},
    {FIELD(layer_norm), true,
     "_ZN2at3cpu17native_layer_normERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS1_ESA_d",
     falling_back},
    {FIELD(layer_norm_backward), true,
     "_ZN2at3cpu26native_layer_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_S3_"
     "RKSt8optionalIS1_ESA_St5arrayIbLm3EE",
     falling_back},
    {FIELD(group_norm), true,
     "_ZN2at3cpu17native_group_normERKNS_6TensorERKSt8optionalIS1_ES7_lllld", falling_back},
    {FIELD(group_norm_backward), true,
     "_ZN2at3cpu26native_group_norm_backwardERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_Ellll"
     "St5arrayIbLm3EE",
     falling_back},
    {FIELD(batch_norm), true,
     "_ZN2at3cpu17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd", falling_back},
    {FIELD(batch_norm_backward), true,
     "_ZN2at3cpu26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bd"
     "St5arrayIbLm3EE",
     falling_back},
    {FIELD(weight_norm), true, "_ZN2at3cpu22_weight_norm_interfaceERKNS_6TensorES3_l",
     falling_back},
    {FIELD(weight_norm_backward), true,
     "_ZN2at3cpu31_weight_norm_interface_backwardERKNS_6TensorES3_S3_S3_l", falling_back},
    {FIELD(fused_rms_norm_composite), true,
     "_ZN2at25compositeimplicitautograd15_fused_rms_normERKNS_6TensorEN3c108ArrayRefIlEE"
     "RKSt8optionalIS1_ES7_IdE",
     falling_back},
    {FIELD(rms_norm_composite), true,
     "_ZN2at25compositeimplicitautograd8rms_normERKNS_6TensorEN3c108ArrayRefIlEE"
     "RKSt8optionalIS1_ES7_IdE",
     falling_back},
    {FIELD(fused_rms_norm), false,
     "_ZN2at4_ops15_fused_rms_norm4callERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS2_ES8_IdE",
     "calling _fused_rms_norm unboxed (else torch_call_dispatcher)"},
    {FIELD(is_inference), false, "_ZN2at4_ops12is_inference4callERKNS_6TensorE",
     "RMS norm of tensors that were made in inference mode"},
    {FIELD(fw_grad), false, "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", forward_mode},
    {FIELD(empty_cpu), false,
     "_ZN2at6detail9empty_cpuEN3c108ArrayRefIlEENS1_10ScalarTypeEbSt8optionalINS1_"
     "12MemoryFormatEE",
     "making CPU tensors without the dispatcher (else aoti_torch_empty_strided)"},
    {FIELD(get_num_threads), false, "_ZN2at15get_num_threadsEv",
     "leaving norms of fewer groups than threads to torch (else planish runs them)"},
    {FIELD(dispatcher), false, "_ZN3c1010Dispatcher13realSingletonEv", unboxing},
    {FIELD(find_operator), false, "_ZN3c1010Dispatcher17findSchemaOrThrowEPKcS2_", unboxing},
    {FIELD(has_kernel), false,
     "_ZNK3c104impl13OperatorEntry23hasKernelForDispatchKeyENS_11DispatchKeyE", unboxing},
    {FIELD(kernel_at), false,
     "_ZNK3c104impl13OperatorEntry20kernelForDispatchKeyENS_11DispatchKeyE", unboxing},
    {FIELD(update_table), false,
     "_ZN3c104impl13OperatorEntry25updateDispatchTableEntry_ERKNS_10DispatcherENS_11DispatchKeyE",
     unboxing},
    {FIELD(key_name), false, "_ZN3c108toStringENS_11DispatchKeyE", unboxing},
    {FIELD(key_set), false, "_ZN3c1024getRuntimeDispatchKeySetENS_11DispatchKeyE", unboxing},
    {FIELD(redispatch_layer_norm), false,
     "_ZN2at4_ops17native_layer_norm10redispatchEN3c1014DispatchKeySetERKNS_6TensorENS2_8ArrayRef"
     "INS2_6SymIntEEERKSt8optionalIS4_ESD_d",
     unboxing},
    {FIELD(loaders_dispatch_keys), false, dispatch_keys_name,
     "first use inside a mode or transform of torch's (else an error there)"},
    {FIELD(dispatch_modes), false, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", asking},
    {FIELD(function_modes), false, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", asking},
    {FIELD(transforms), false, "_ZN2at9functorch20getDynamicLayerStackEv", asking},
    {FIELD(tracing), false, "_ZN5torch3jit6tracer15getTracingStateEv", asking},
    {FIELD(has_callbacks), false, "_ZN2at12hasCallbacksEv", asking},
    {FIELD(requires_grad), false, "_ZNK3c1010TensorImpl13requires_gradEv", asking},
    {FIELD(python_tensor), false, "_Z16THPVariable_WrapRKN2at10TensorBaseE", asking},
    {FIELD(set_warning_handler), false,
     "_ZN3c1012WarningUtils19set_warning_handlerEPNS_14WarningHandlerE", warnings},
    {FIELD(get_warning_handler), false, "_ZN3c1012WarningUtils19get_warning_handlerEv", warnings},
    {FIELD(set_warn_always), false, "_ZN3c1012WarningUtils14set_warnAlwaysEb", warnings},
    {FIELD(get_warn_always), false, "_ZN3c1012WarningUtils14get_warnAlwaysEv", warnings},
    {FIELD(warning_text), false, "_ZNK3c107Warning3msgB5cxx11Ev", warnings},
};

#define SYMBOL_COUNT ((int)(sizeof symbols / sizeof *symbols))

static const symbol cuda_symbols[] = {
    {FIELD(get_current_cuda_stream), true, "aoti_torch_get_current_cuda_stream",
     "queueing on torch's current stream"},
    {FIELD(cuda_layer_norm), true,
     "_ZN2at4cuda17native_layer_normERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS1_ESA_d",
     falling_back},
    {FIELD(cuda_layer_norm_backward), true,
     "_ZN2at4cuda26native_layer_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_S3_"
     "RKSt8optionalIS1_ESA_St5arrayIbLm3EE",
     falling_back},
    {FIELD(cuda_group_norm), true,
     "_ZN2at4cuda17native_group_normERKNS_6TensorERKSt8optionalIS1_ES7_lllld", falling_back},
    {FIELD(cuda_group_norm_backward), true,
     "_ZN2at4cuda26native_group_norm_backwardERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_Ellll"
     "St5arrayIbLm3EE",
     falling_back},
    {FIELD(cuda_batch_norm), false,
     "_ZN2at4cuda17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd", batches},
    {FIELD(cuda_batch_norm_backward), false,
     "_ZN2at4cuda26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bd"
     "St5arrayIbLm3EE",
     batches},
    {FIELD(cuda_batch_norm_with_update), false,
     "_ZN2at4cuda23_batch_norm_with_updateERKNS_6TensorERKSt8optionalIS1_ES7_RS1_S8_dd", batches},
    {FIELD(cuda_batch_norm_with_reserve_backward), false,
     "_ZN2at4cuda19batch_norm_backwardERKNS_6TensorES3_S3_RKSt8optionalIS1_ES7_S7_S7_bd"
     "St5arrayIbLm3EES3_",
     batches},
    {FIELD(cudnn_batch_norm), false,
     "_ZN2at4cuda16cudnn_batch_normERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_bdd", batches},
    {FIELD(cudnn_batch_norm_backward), false,
     "_ZN2at4cuda25cudnn_batch_norm_backwardERKNS_6TensorES3_S3_RKSt8optionalIS1_ES7_S7_S7_dS3_",
     batches},
    {FIELD(cuda_sync_statistics), false, "_ZN2at4cuda16batch_norm_statsERKNS_6TensorEd",
     synchronised},
    {FIELD(cuda_sync_apply), false,
     "_ZN2at4cuda16batch_norm_elemtERKNS_6TensorERKSt8optionalIS1_ES7_S3_S3_d", synchronised},
    {FIELD(cuda_sync_apply_out), false,
     "_ZN2at4cuda20batch_norm_elemt_outERNS_6TensorERKS1_RKSt8optionalIS1_ES8_S4_S4_d",
     synchronised},
    {FIELD(cuda_sync_sums), false,
     "_ZN2at4cuda26batch_norm_backward_reduceERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_Ebbb",
     synchronised},
    {FIELD(cuda_sync_gradient), false,
     "_ZN2at4cuda25batch_norm_backward_elemtERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_ES3_S3_S3_",
     synchronised},
    {FIELD(cuda_fill), false, "aoti_torch_cuda_fill__Scalar", synchronised},
    {FIELD(cuda_fused_rms_norm), true,
     "_ZN2at4cuda15_fused_rms_normERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS1_ES7_IdE",
     falling_back},
    {FIELD(cuda_fused_rms_norm_backward), true,
     "_ZN2at4cuda24_fused_rms_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_"
     "RKSt8optionalIS1_ESt5arrayIbLm2EE",
     falling_back},
    {FIELD(empty_cuda), false,
     "_ZN2at6detail10empty_cudaEN3c108ArrayRefIlEENS1_10ScalarTypeESt8optionalINS1_6DeviceEE"
     "S5_INS1_12MemoryFormatEE",
     "making CUDA tensors without the dispatcher (else aoti_torch_empty_strided)"},
};

#define CUDA_SYMBOL_COUNT ((int)(sizeof cuda_symbols / sizeof *cuda_symbols))

static bool cuda_loaded;

static bool found(const symbol *s) {
    void *address;
    memcpy((void *)&address, (const char *)&torch + s->offset, sizeof address);
    return address != NULL;
}

static void look_up(void *library, const symbol *list, int count) {
    /* Loaded with torch itself, but where a program without Python has libtorch alone. */
    void *python = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    for (int i = 0; i < count; i++) {
        void *address = dlsym(library, list[i].name);
        if (!address && python)
            address = dlsym(python, list[i].name);
        memcpy((char *)&torch + list[i].offset, (const void *)&address, sizeof address);
    }
}

static const symbol *first_missing(const symbol *list, int count) {
    for (int i = 0; i < count; i++)
        if (list[i].required && !found(&list[i]))
            return &list[i];
    return NULL;
}

static planish_status fail_missing(const symbol *s, message error) {
    return fail(error, PLANISH_ERROR_UNAVAILABLE,
                "torch %d.%d lacks %s, needed for %s; planish serves torch %d.%d to %d.%d",
                torch_version() / 100, torch_version() % 100, s->name, s->use,
                PLANISH_TORCH_OLDEST / 100, PLANISH_TORCH_OLDEST % 100, PLANISH_TORCH_NEWEST / 100,
                PLANISH_TORCH_NEWEST % 100);
}

static planish_status find_undefined(message error) {
    tensor_handle tensor = NULL;
    if (torch.new_undefined(&tensor) != 0)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "torch made no undefined tensor");
    torch.undefined = *(void **)tensor;
    torch.delete_tensor(tensor);
    return PLANISH_OK;
}

planish_status torch_load(message error) {
    static bool loaded;
    if (!loaded) {
        /* c10 and the C++ runtime are found through libtorch_cpu's own dependencies. */
        void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
        if (!library)
            return fail(error, PLANISH_ERROR_UNAVAILABLE,
                        "libtorch_cpu.so is not loaded in this process; import torch first");
        torch_library = library;
        look_up(library, symbols, SYMBOL_COUNT);
        /* Loaded with torch itself, if this torch has CUDA. */
        void *cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
        if (cuda)
            look_up(cuda, cuda_symbols, CUDA_SYMBOL_COUNT);
        cuda_loaded = cuda != NULL;
        loaded = true; /* libtorch stays loaded: the libraries are not closed */
    }
    const symbol *missing = first_missing(symbols, SYMBOL_COUNT);
    if (missing)
        return fail_missing(missing, error);
    torch.cpu = torch.device_type_cpu();
    torch.cuda = torch.device_type_cuda();
    torch.f16 = torch.dtype_f16();
    torch.bf16 = torch.dtype_bf16();
    torch.f32 = torch.dtype_f32();
    torch.f64 = torch.dtype_f64();
    torch.u8 = torch.dtype_u8();
    return find_undefined(error);
}

planish_status torch_has_cuda(message error) {
    if (!cuda_loaded)
        return fail(error, PLANISH_ERROR_UNAVAILABLE,
                    "this torch has no CUDA: libtorch_cuda.so is not loaded in this process");
    const symbol *missing = first_missing(cuda_symbols, CUDA_SYMBOL_COUNT);
    return missing ? fail_missing(missing, error) : PLANISH_OK;
}

int torch_version(void) {
    if (!torch.abi_version)
        return 0;
    uint64_t version = torch.abi_version();
    return (int)(version >> 56) * 100 + (int)(version >> 48 & 0xff);
}

int planish_torch_version(void) {
    torch_load((message){0});
    return torch_version();
}

bool planish_torch_symbol_get(int index, planish_torch_symbol *out) {
    torch_load((message){0});
    int count = SYMBOL_COUNT + (cuda_loaded ? CUDA_SYMBOL_COUNT : 0);
    if (index < 0 || index >= count || !out)
        return false;
    const symbol *s = index < SYMBOL_COUNT ? &symbols[index] : &cuda_symbols[index - SYMBOL_COUNT];
    *out = (planish_torch_symbol){s->name, s->use, s->required, found(s)};
    return true;
}

local_dispatch_keys *torch_local_dispatch_keys(void) {
    /* A thread-local variable: dlsym gives the address that the calling thread has. */
    return torch_library ? dlsym(torch_library, dispatch_keys_name) : NULL;
}

const char *torch_last_words(void) {
    const char *text = torch.exception_text ? torch.exception_text() : NULL;
    return text && *text ? text : "its message is on stderr";
}

void torch_throw(const char *text) {
    torch.check(false, "planish", __FILE__, __LINE__, text);
    __builtin_unreachable();
}

void torch_throw_last(void) {
    const char *text = torch.exception_text ? torch.exception_text() : NULL;
    torch_throw(text && *text ? text
                              : "planish: a call into libtorch failed; its message is on stderr");
}
