/*
 * Taking arguments off the stack of a boxed call and putting results on it.
 *
 * The callee owns every argument: each is taken once, into a variable that frees it when it goes
 * out of scope, also while a C++ exception unwinds the frame (the library is built with
 * -fexceptions).
 */
#ifndef PLANISH_TORCH_STACK_H
#define PLANISH_TORCH_STACK_H

#include <string.h>

#include "aoti.h"

static inline void free_tensor(tensor_handle *tensor) {
    if (*tensor)
        torch.delete_tensor(*tensor);
}

static inline void free_list(list_handle *list) {
    if (*list)
        torch.list_delete(*list);
}

#define OWNED_TENSOR __attribute__((cleanup(free_tensor))) tensor_handle
#define OWNED_LIST __attribute__((cleanup(free_list))) list_handle

static inline tensor_handle take_tensor(stack_value value) {
    return (tensor_handle)(uintptr_t)value;
}

static inline list_handle take_list(stack_value value) {
    return (list_handle)(uintptr_t)value;
}

/* The value inside an optional, whose box is freed; false: None. */
static inline bool take_optional(stack_value value, stack_value *inside) {
    stack_value *box = (stack_value *)(uintptr_t)value;
    if (!box)
        return false;
    *inside = *box;
    if (torch.delete_value)
        torch.delete_value(box);
    else
        torch.operator_delete(box);
    return true;
}

/* NULL for None and for an undefined tensor alike. */
static inline tensor_handle take_optional_tensor(stack_value value) {
    stack_value inside;
    if (!take_optional(value, &inside))
        return NULL;
    tensor_handle tensor = take_tensor(inside);
    if (*(void **)tensor != torch.undefined)
        return tensor;
    torch.delete_tensor(tensor);
    return NULL;
}

/* An optional argument of a call that is not boxed, borrowed; NULL as above. */
static inline tensor_handle optional_handle(const optional_tensor *tensor) {
    bool given = tensor->engaged && tensor->impl != torch.undefined;
    return given ? (tensor_handle)(uintptr_t)tensor : NULL;
}

static inline double take_double(stack_value value) {
    double number;
    memcpy(&number, &value, sizeof number);
    return number;
}

static inline bool take_bool(stack_value value) {
    return (uint8_t)value != 0;
}

/* The longest list of sizes or axes that is read. */
enum { LIST_ROOM = 64 };

/* Reads a list of numbers and returns its length; throws if it is longer than `room`. */
static inline size_t read_list(list_handle list, int64_t *numbers, size_t room) {
    size_t size = 0;
    torch_check(torch.list_size(list, &size));
    if (size > room)
        torch_throw("planish: a list of sizes or axes is longer than 64");
    for (size_t i = 0; i < size; i++) {
        stack_value value = 0;
        torch_check(torch.list_get(list, i, &value));
        numbers[i] = (int64_t)value;
    }
    return size;
}

/* Reads a list of `count` booleans. */
static inline void read_mask(list_handle list, bool *mask, size_t count) {
    int64_t numbers[3] = {0};
    read_list(list, numbers, count);
    for (size_t i = 0; i < count; i++)
        mask[i] = take_bool((stack_value)numbers[i]);
}

/* Puts the tensor on the stack and gives up owning it. */
static inline stack_value give_handle(tensor_handle *tensor) {
    tensor_handle given = *tensor;
    *tensor = NULL;
    return (stack_value)(uintptr_t)given;
}

/* Moves `count` results, the first of which is the last field, to the stack. */
static inline void give_returned(stack_value *stack, const returned_tensors *returned, int count) {
    for (int i = 0; i < count; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = returned->impl[count - 1 - i];
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}

static inline stack_value give_double(double number) {
    stack_value value;
    memcpy(&value, &number, sizeof value);
    return value;
}

/* Boxes a value for an optional argument; whoever is called frees the box. */
static inline stack_value give_optional(stack_value value) {
    stack_value *box = NULL;
    if (torch.new_value)
        torch_check(torch.new_value(&box));
    else
        box = torch.operator_new(sizeof *box);
    *box = value;
    return (stack_value)(uintptr_t)box;
}

#endif
