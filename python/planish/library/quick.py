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

__all__ = ["BATCH_NORM", "GROUP_NORM", "LAYER_NORM", "RMS_NORM"]
__all__ += ["is_plain", "is_quiet", "key_of", "norm", "runs_torchs"]

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
    "PyLong_AsLong",
    "PyCFunction_NewEx",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
)

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
    torch.autograd.forward_ad,
)
_NAMES = "_current_level layout is_nested is_neg _is_zerotensor dtype shape device size"
_NAMES += " is_contiguous is_inference is_cpu is_cuda"

#: Lives as long as the process: C refers to it.
_OBJECTS = (*_VALUES, *_DTYPES, *_CALLS, *map(sys.intern, _NAMES.split()))


def _functions() -> Any:
    addresses = [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p) for name in _FUNCTIONS]
    make = library().functions.planish_python_functions
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object)
    return make((ctypes.c_void_p * len(addresses))(*addresses), _OBJECTS)


is_quiet, is_plain, key_of, runs_torchs, norm = _functions()
