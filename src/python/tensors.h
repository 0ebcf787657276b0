/*
 * Python's tensors as libtorch has them: read where they lie, without asking Python.
 *
 * Where an object has its at::Tensor, and where that has its dispatch keys, no interface tells.
 * python/planish/library/quick.py finds both by tensors of which torch says what stands there, and
 * hands them over where exactly one place fits each. Until then, and with a torch that lacks one of
 * the functions that are needed, nothing is read so, and calls go the long way.
 */
#ifndef PLANISH_PYTHON_TENSORS_H
#define PLANISH_PYTHON_TENSORS_H

#include "../torch/aoti.h"
#include "interpreter.h"

/* Whether tensors can be read so. */
bool tensors_are_known(void);

/* A tensor of torch's own classes, dense in the memory of the CPU or of a CUDA GPU: nothing lazy,
 * nested or wrapped. It is borrowed from its object. False: it is none, or not known for one. */
bool tensor_of(object *given, tensor_handle *tensor);
/* Whether it is on the CPU; of those that tensor_of has. */
bool tensor_is_on_cpu(tensor_handle tensor);
/* Whether it was made in inference mode, likewise. */
bool tensor_is_inference(tensor_handle tensor);

bool tensor_is_contiguous(tensor_handle tensor);

/* Runs a kernel of a call of x inside of libtorch's own catching, as guard.c does; the
 * interpreter's lock is free meanwhile, as torch has it, but where that takes longer than the
 * kernel. False: it threw. */
bool run_caught(tensor_handle x, void (*kernel)(int64_t begin, int64_t end, void *context),
                void *context);

/* Whether autograd records a call of these objects; so it may where one is not None and no tensor
 * that tensor_of has. */
bool is_recorded(object *const *tensors, int count);

/* (place of the tensor in an object, place of its dispatch keys, the keys of a plain tensor on the
 * CPU, the same made in inference mode, both on CUDA): whether these are taken. */
object *python_know_tensors(object *self, object *const *arguments, ptrdiff_t count);

#endif
