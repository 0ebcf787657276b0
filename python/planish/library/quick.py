"""What is asked of every call, in C (src/python): whether torch's modes and transforms see it, what
it is kept under, the short way of a bare norm, and planish's operators without the dispatcher.
Nothing is decided here.

The C functions are handed the interpreter's and torch's, and objects to compare with, in the order
of src/python/interpreter.h. torch.compile cannot look into them: whoever calls one asks first
whether a graph is being traced.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from typing import Any

import torch
from planish.library.loaded import library

__all__ = ["BATCH_NORM", "CPU", "CUDA", "GROUP_NORM", "LAYER_NORM", "RMS_NORM"]
__all__ += ["batch_norm", "is_plain", "is_quiet", "is_recorded", "key_of", "know_tensors", "known"]
__all__ += ["norm", "own", "runs_torchs"]

#: torch's operators by their numbers in src/python/short_calls.c.
LAYER_NORM, GROUP_NORM, RMS_NORM, BATCH_NORM = range(4)

_FUNCTIONS = (
    "PyObject_GetAttr",
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "PyObject_Type",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyTuple_GetItem",
    "PyTuple_Size",
    "PyDict_GetItemWithError",
    "PyObject_IsTrue",
    "PyLong_AsLong",
    "PyFloat_AsDouble",
    "PyLong_FromLong",
    "PyBytes_FromStringAndSize",
    "PyCFunction_NewEx",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Occurred",
    "PyErr_Clear",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)

#: Of kernels on the CPU, and on CUDA: for the short ways past all else in the dispatcher.
KEYS = CPU, CUDA = tuple(
    torch._C.DispatchKeySet(key) for key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
)

library().define()  # at import: tracing must not come across it

#: With these keys a call goes to autograd's kernel of aten::_fused_rms_norm and from there to
#: planish's for the CPU, which C put under a key that no tensor has (src/torch/registry.c).
_LAZY = functools.reduce(
    operator.or_,
    (
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        for key in ("AutogradLazy", "Lazy")
    ),
)
fused_rms_norm_cpu = functools.partial(
    torch.ops.aten._fused_rms_norm.default._handle.redispatch_boxed, _LAZY
)

_VALUES = (None, True, False, 0, -1, NotImplemented)
_TYPES = (torch.Tensor, torch.nn.Parameter, torch.strided)
_CALLS = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._get_tracing_state,
    torch._C._autograd._top_saved_tensors_default_hooks,
    torch._C._is_any_autocast_enabled,
    torch.layer_norm,
    torch.group_norm,
    torch.rms_norm,
    torch._fused_rms_norm,
    fused_rms_norm_cpu,
    torch.native_batch_norm,
    torch.autograd.forward_ad,
)
_NAMES = "_current_level layout is_nested is_neg _is_zerotensor size"

#: Lives as long as the process: C refers to it.
_OBJECTS = (*_VALUES, *_TYPES, *_CALLS, *map(sys.intern, _NAMES.split()))


def _functions() -> Any:
    addresses = [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p) for name in _FUNCTIONS]
    make = library().functions.planish_python_functions
    make.restype = ctypes.c_void_p
    make.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object
    made = make((ctypes.c_void_p * len(addresses))(*addresses), len(addresses), _OBJECTS)
    if made is None:
        raise ImportError(f"planish: {library().path} is not this package's library")
    return ctypes.cast(made, ctypes.py_object).value


_made = _functions()
is_quiet, is_plain, is_recorded, key_of, known, runs_torchs, norm, *_rest = _made
batch_norm, _know_tensors, *_own = _rest

#: planish's operators by their names: the results for tensors that only eager autograd sees and
#: that it does not record; NotImplemented where the call has to go another way.
own = {function.__name__: function for function in _own}


# ---- Where a tensor has what ---------------------------------------------------------------------


def _places(addresses: list[int], size: int, words: list[int]) -> list[int]:
    """At which offsets all of these have their word."""
    found = []
    for offset in range(0, size, ctypes.sizeof(ctypes.c_uint64)):
        read = [ctypes.c_uint64.from_address(address + offset).value for address in addresses]
        if read == words:
            found.append(offset)
    return found


def _keys(*names: str) -> int:
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return int(functools.reduce(operator.or_, sets).raw_repr())


#: The largest c10::TensorImpl of the torches that planish serves; behind a smaller one there is
#: memory of the same heap.
_BYTES = 192
_is_known = False


def know_tensors() -> None:
    """Finds, by tensors of which torch says the same, where an object has its tensor and where that
    has its dispatch keys, and hands it to C (src/python/tensors.h). Not where a mode or transform
    would see that: then the next call does."""
    global _is_known
    if _is_known or not is_quiet():
        return
    _is_known = True
    with torch.inference_mode(False):
        plain = torch.empty(3)
        seen = [plain, torch.nn.Parameter(plain), torch.empty(2, device="meta")]
        seen += [torch._neg_view(plain), torch._efficientzerotensor(2)]
    with torch.inference_mode():
        seen.append(torch.empty(1))
    inside = [tensor._cdata for tensor in seen]
    keys = [int(torch._C._dispatch_keys(tensor).raw_repr()) for tensor in seen]
    of_objects = _places([id(tensor) for tensor in seen], torch.Tensor.__basicsize__, inside)
    of_tensors = _places(inside, _BYTES, keys)
    sets = [
        _keys(*names, *more)
        for names in (("CPU", "AutocastCPU"), ("CUDA", "AutocastCUDA"))
        for more in ((f"Autograd{names[0]}", "ADInplaceOrView"), ())
    ]
    if len(of_objects) == len(of_tensors) == 1 and sets[:2] == [keys[0], keys[-1]]:
        _know_tensors(*of_objects, *of_tensors, *sets)


know_tensors()
