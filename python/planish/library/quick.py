"""What is asked of every call, in C (src/python): whether torch's modes and transforms see it, what
it is kept under, and the short way of a bare norm. Nothing is decided here.

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
__all__ += ["is_plain", "is_quiet", "key_of", "known", "norm", "runs_torchs"]

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
    "PyCFunction_NewEx",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
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

_VALUES = (None, True, False, 0, -1, torch.Tensor, torch.nn.Parameter, torch.strided)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CALLS = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._get_tracing_state,
    torch._C._autograd._top_saved_tensors_default_hooks,
    torch._C._is_any_autocast_enabled,
    torch.is_grad_enabled,
    torch.layer_norm,
    torch.group_norm,
    torch.rms_norm,
    torch._fused_rms_norm,
    fused_rms_norm_cpu,
    torch.ops.planish.norm_forward.default._handle.redispatch_boxed,
    CPU,
    CUDA,
    torch.autograd.forward_ad,
    torch.autograd.profiler,
)
_NAMES = "_current_level _is_profiler_enabled requires_grad layout is_nested is_neg _is_zerotensor"
_NAMES += " dtype shape device size is_contiguous is_inference is_cpu is_cuda"

#: Lives as long as the process: C refers to it.
_OBJECTS = (*_VALUES, *_DTYPES, *_CALLS, *map(sys.intern, _NAMES.split()))


def _functions() -> Any:
    addresses = [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p) for name in _FUNCTIONS]
    make = library().functions.planish_python_functions
    make.restype = ctypes.c_void_p
    make.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object
    made = make((ctypes.c_void_p * len(addresses))(*addresses), len(addresses), _OBJECTS)
    if made is None:
        raise ImportError(f"planish: {library().path} is not this package's library")
    return ctypes.cast(made, ctypes.py_object).value


is_quiet, is_plain, key_of, known, runs_torchs, norm = _functions()
