"""What an installed planish does, in whatever Python this is: installed.py (with torch or without).

It must be the installed one, and be all of one version. Without torch the C library is loaded and
called, and enable() must say that torch is missing; with torch layer_norm must run on planish after
enable(), with one OpenMP runtime in the process.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from pathlib import Path


class Device(ctypes.Structure):
    """DLDevice."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Type(ctypes.Structure):
    """DLDataType."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int),
        ("dtype", Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


def c_call(path: Path) -> None:
    """LayerNorm of 0 1 2 3, which is -3 -1 1 3 over the root of 5."""
    x, y = (ctypes.c_float * 4)(0, 1, 2, 3), (ctypes.c_float * 4)()
    shape = (ctypes.c_int64 * 2)(1, 4)
    tensors = [
        Tensor(ctypes.addressof(data), Device(1, 0), 2, Type(2, 32, 1), shape, None, 0)
        for data in (x, y)
    ]
    run = ctypes.CDLL(str(path)).planish_layer_norm_forward
    run.argtypes = [ctypes.c_int32, ctypes.c_double, *[ctypes.c_void_p] * 7]
    at = [ctypes.addressof(tensor) for tensor in tensors]
    assert run(1, 0.0, at[0], None, None, at[1], None, None, None) == 0
    for value, numerator in zip(y, (-3, -1, 1, 3)):  # noqa: B905
        assert abs(value - numerator / 5**0.5) < 1e-6, list(y)


def under_torch() -> str:
    """layer_norm by torch's own name."""
    import torch.nn.functional as F

    import planish
    import torch

    x = torch.randn(64, 1000)
    wanted = F.layer_norm(x, (1000,))
    planish.enable()
    found = F.layer_norm(x, (1000,))
    torch.testing.assert_close(found, wanted)
    assert planish.stats()["native_layer_norm"]["planish"] == 1
    with open("/proc/self/maps") as maps:
        files = {Path(line.split(maxsplit=5)[5].strip()).name for line in maps if "/" in line}
    runtimes = sorted(f for f in files if f.startswith(("libgomp", "libomp", "libiomp")))
    assert len(runtimes) == 1, runtimes
    return f"torch {torch.__version__}: layer_norm runs on planish; {runtimes[0]} alone"


def main() -> None:
    """Checks and says in one line what was found."""
    import planish
    from planish.library.loaded import library

    here = Path(planish.__file__).parent
    assert here.is_relative_to(sys.prefix), f"planish is {here}, not installed in {sys.prefix}"
    assert library().path.parent == here, library().path
    assert importlib.metadata.version("planish") == planish.__version__
    c_call(library().path)
    says = f"tier {library().cpu_tier()}"
    if importlib.util.find_spec("torch"):
        says += f", {under_torch()}"
    else:
        try:
            planish.enable()
        except ImportError as error:
            assert "torch" in str(error), error
            says += f", a C call runs; enable() says: {error}"
        else:
            raise AssertionError("enable() without torch raised nothing")
    print(f"Python {sys.version.split()[0]}: planish {planish.__version__}, {says}")


if __name__ == "__main__":
    main()
