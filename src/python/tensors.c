#include "tensors.h"

#include "../torch/planish_torch.h"
#include "../torch/tensor.h"

enum {
    KEY_SETS = 4,
    BRIEF_ELEMENTS = 16384, /* their kernel takes less time than giving the lock back */
};

static struct {
    bool known;
    size_t in_object, in_tensor;
    uint64_t keys[KEY_SETS]; /* two of the CPU, two of CUDA, the second without autograd's */
} places;

bool tensors_are_known(void) {
    return places.known;
}

static uint64_t keys_of(tensor_handle tensor) {
    const char *impl = *(const char **)tensor;
    return *(const uint64_t *)(impl + places.in_tensor);
}

bool tensor_of(object *given, tensor_handle *tensor) {
    if (!places.known || !is_of_torchs(given))
        return false;
    *tensor = (tensor_handle)((char *)given + places.in_object);
    const uint64_t keys = keys_of(*tensor);
    for (int i = 0; i < KEY_SETS; i++)
        if (keys == places.keys[i])
            return true;
    return false;
}

bool tensor_is_on_cpu(tensor_handle tensor) {
    const uint64_t keys = keys_of(tensor);
    return keys == places.keys[0] || keys == places.keys[1];
}

bool tensor_is_inference(tensor_handle tensor) {
    const uint64_t keys = keys_of(tensor);
    return keys == places.keys[1] || keys == places.keys[3];
}

bool tensor_is_contiguous(tensor_handle tensor) {
    DLTensor view;
    return view_description(tensor, &view) && torch.get_strides(tensor, &view.strides) == 0 &&
           view_is_contiguous(&view);
}

bool run_caught(tensor_handle x, void (*kernel)(int64_t begin, int64_t end, void *context),
                void *context) {
    DLTensor view;
    const bool brief =
        tensor_is_on_cpu(x) && view_description(x, &view) && view_elements(&view) <= BRIEF_ELEMENTS;
    void *lock = brief ? NULL : python.unlock();
    const torch_error thrown = torch.parallel_for(0, 1, 1, kernel, context);
    if (!brief)
        python.lock(lock);
    if (thrown)
        planish_torch_take_thrown(); /* another way is gone, whose status is asked for */
    return !thrown;
}

bool is_recorded(object *const *tensors, int count) {
    if (!torch.grad_mode_is_enabled())
        return false;
    tensor_handle tensor;
    for (int i = 0; i < count; i++)
        if (tensors[i] != known[OBJECT_NONE] &&
            (!tensor_of(tensors[i], &tensor) || torch.requires_grad(*(void **)tensor)))
            return true;
    return false;
}

/* (tensor or None...): whether autograd may record a call of these. */
object *python_is_recorded(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    return answer(is_recorded(arguments, (int)count) ? OBJECT_TRUE : OBJECT_FALSE);
}

object *python_know_tensors(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    if (count != 2 + KEY_SETS || !torch.dispatch_modes || !torch.function_modes ||
        !torch.transforms || !torch.tracing || !torch.has_callbacks || !torch.requires_grad ||
        !torch.python_tensor)
        return answer(OBJECT_FALSE);
    places.in_object = (size_t)python.to_long(arguments[0]);
    places.in_tensor = (size_t)python.to_long(arguments[1]);
    for (int i = 0; i < KEY_SETS; i++)
        places.keys[i] = (uint64_t)python.to_long(arguments[2 + i]);
    places.known = true;
    return answer(OBJECT_TRUE);
}
