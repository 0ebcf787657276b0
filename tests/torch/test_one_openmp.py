"""One OpenMP runtime in a process that has torch and planish, whichever ran first: a second would
keep a second set of threads on the same cores."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# LayerNorm of a tensor that is worth several threads, by the C API, which asks for OpenMP.
C_API = """
import ctypes, os
from planish.library.loaded import library

class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int),
                ("dtype", Type), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]

def c_api():
    rows, cols = 4096, 1024
    dll = ctypes.CDLL(str(library().path))
    shape = (ctypes.c_int64 * 2)(rows, cols)
    values = [(ctypes.c_float * (rows * cols))() for _ in range(2)]
    x, y = (Tensor(ctypes.addressof(v), Device(1, 0), 2, Type(2, 32, 1), shape, None, 0)
            for v in values)
    values[0][:cols] = range(cols)
    run = dll.planish_layer_norm_forward
    run.argtypes = [ctypes.c_int32, ctypes.c_double, *[ctypes.c_void_p] * 7]
    assert run(1, 1e-5, ctypes.byref(x), None, None, ctypes.byref(y), None, None, None) == 0
    assert values[1][0] < -1.7 and values[1][cols - 1] > 1.7

def torchs():
    import torch, planish
    import torch.nn.functional as F
    planish.enable()
    x = torch.randn(4096, 1024)
    F.layer_norm(x, (1024,))
    assert planish.stats()["native_layer_norm"]["planish"] == 1
    torch.set_num_threads(3)
    (x[:256] @ x[:256].T).sum()
"""

REPORT = """
import json
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
names = ("libgomp", "libomp", "libiomp")
print(json.dumps({
    "runtimes": sorted(f for f in files if os.path.basename(f).startswith(names)),
    "threads": len(os.listdir("/proc/self/task")),
}))
"""


@pytest.mark.parametrize("order", ["torchs()", "c_api()", "torchs(); c_api()", "c_api(); torchs()"])
def test_a_second_openmp_runtime_is_mapped(order: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{C_API}\n{order}\n{REPORT}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["runtimes"]) <= 1, found
    if order != "c_api()":
        assert len(found["runtimes"]) == 1, found
