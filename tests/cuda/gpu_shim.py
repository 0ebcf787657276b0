"""ctypes over tests/cuda/shim.c: row problems as plans of the GPU backend.

Needs neither torch nor a GPU to make and compile plans. PLANISH_GPU_SHIM names the shared library;
without it, it is the one that `make test` builds.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

ROLES = ("x", "weight", "bias", "y", "mean", "rstd", "m2", "dy", "dx", "dweight", "dbias")
MOST_ROLES = 64  #: with those of the stages around a norm, which the shim's plans do not have
DTYPES = ("f32", "f16", "bf16", "f64", "none")
FORWARD, BACKWARD, FROM_Y, STATISTICS, APPLY = range(5)
LAYER, RMS, L2 = 0, 1, 2
SILU, RELU, GELU, GELU_TANH, RELU6, HARDSWISH = 1, 2, 3, 4, 5, 6


class ShimError(RuntimeError):
    """A status of the backend, with its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


BUILT = pathlib.Path(__file__).parents[2] / "build/release/tests/cuda/libgpu_shim.so"


def find_nvrtc() -> None:
    """Names the folder of NVRTC's wheel, which is not found from this process's other libraries."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nvidia-cuda-nvrtc") or ():
            if file.name.startswith("libnvrtc.so"):
                os.environ.setdefault("PLANISH_NVRTC_PATH", str(file.locate().parent))


def load() -> ctypes.CDLL:
    """The shim library, its functions declared."""
    find_nvrtc()
    lib = ctypes.CDLL(os.environ.get("PLANISH_GPU_SHIM") or str(BUILT))
    lib.planish_tensor_name.restype = ctypes.c_char_p
    names = tuple(lib.planish_tensor_name(k) for k in range(len(ROLES)))
    assert names == tuple(map(str.encode, ROLES)), f"the library's first roles are {names}"
    p, i, long, s = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
    text = ctypes.c_char_p
    lib.shim_plan.argtypes = [p, i, i, long, long, p, p, i, ctypes.c_double, i, i, text, s]
    u = ctypes.c_uint64
    lib.shim_problem.argtypes = [p, i, i, i, i, p, u, u, p, p, i, ctypes.c_double, i, i, text, s]
    lib.shim_make.argtypes = [p, p, i, p, i, text, s]
    lib.shim_free.argtypes = [p]
    lib.shim_workspace.argtypes = [p]
    lib.shim_workspace.restype = s
    lib.shim_describe.argtypes = [p, text, s]
    lib.shim_why_general.argtypes = [p, text, s]
    lib.shim_launches.argtypes = [p, p, text, s]
    lib.shim_get.argtypes = [p, text]
    lib.shim_set.argtypes = [p, text, i]
    lib.shim_run.argtypes = [p, p, p, p, text, s]
    lib.shim_prepare.argtypes = [p, p, text, s]
    lib.shim_code.argtypes = [p, p, i, p, s, ctypes.POINTER(s), text, s]
    lib.shim_compile.argtypes = [p, i, i, i, text, s, text, s]
    lib.shim_pairs.argtypes = [p]
    lib.shim_compile_pair.argtypes = [p, i, i, text, s, text, s]
    lib.shim_compile_merge.argtypes = [i, text, s, text, s]
    return lib


_lib: list[ctypes.CDLL] = []


def lib() -> ctypes.CDLL:
    """The shim library, loaded once."""
    if not _lib:
        _lib.append(load())
    return _lib[0]


class Plan:
    """A plan for dense rows; `dtypes` maps each role that is there to its dtype."""

    def __init__(
        self,
        direction: int,
        kind: int,
        rows: int,
        cols: int,
        dtypes: Mapping[str, str],
        *,
        strides: Mapping[str, int] | None = None,
        offset: int = 0,
        eps: float = 1e-5,
        device: int = 0,
        arch: int = 0,
        **constants: int,
    ) -> None:
        full = {"x", "y", "dy", "dx"}
        steps = {r: cols if r in full else 1 if r in ("mean", "rstd") else 0 for r in ROLES}
        steps |= dict(strides or {})
        stride_array = (ctypes.c_int64 * len(ROLES))(*(steps[r] for r in ROLES))
        dtype_array = (ctypes.c_int * len(ROLES))(
            *(DTYPES.index(dtypes.get(r, "none")) for r in ROLES)
        )
        self.handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(600)
        status = lib().shim_plan(
            ctypes.byref(self.handle),
            direction,
            kind,
            rows,
            cols,
            stride_array,
            dtype_array,
            offset,
            eps,
            device,
            arch,
            text,
            len(text),
        )
        if status:
            raise ShimError(status, text.value.decode())
        self._text = text
        self.workspace_bytes = 0
        self.set(constants)

    def set(self, constants: Mapping[str, int]) -> None:
        """Changes constants of the main kernel."""
        for name, value in constants.items():
            if not lib().shim_set(self.handle, name.encode(), value):
                raise ValueError(f"{name}: no constant of {self.describe()}")
        self.workspace_bytes = int(lib().shim_workspace(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            lib().shim_free(self.handle)

    def get(self, constant: str) -> int:
        """A compile-time constant of the main kernel."""
        return int(lib().shim_get(self.handle, constant.encode()))

    def describe(self) -> str:
        """The plan in one line."""
        text = ctypes.create_string_buffer(300)
        lib().shim_describe(self.handle, text, len(text))
        return text.value.decode()

    def why_general(self) -> str:
        """Why only the general kernels run it; "" where others do."""
        text = ctypes.create_string_buffer(2000)
        lib().shim_why_general(self.handle, text, len(text))
        return text.value.decode()

    def launches(self, pointers: Mapping[str, int]) -> list[str]:
        """A line for each kernel of a run with these addresses: entry, grid, threads, memory."""
        array = (ctypes.c_void_p * MOST_ROLES)(*(pointers.get(r) or None for r in ROLES))
        text = ctypes.create_string_buffer(1000)
        lib().shim_launches(self.handle, array, text, len(text))
        return text.value.decode().splitlines()

    def run(self, pointers: Mapping[str, int], stream: int = 0, workspace: int = 0) -> None:
        """Queues the plan; `pointers` are device addresses by role."""
        array = (ctypes.c_void_p * MOST_ROLES)(*(pointers.get(r) or None for r in ROLES))
        self.run_array(array, stream, workspace)

    def run_array(self, array: ctypes.Array[ctypes.c_void_p], stream: int, workspace: int) -> None:
        """As run, with the array of addresses made beforehand."""
        status = lib().shim_run(self.handle, array, stream, workspace, self._text, len(self._text))
        if status:
            raise ShimError(status, self._text.value.decode())

    def prepare(self, pointers: Mapping[str, int]) -> None:
        """Compiles to disk what run() needs for buffers at these addresses."""
        array = (ctypes.c_void_p * MOST_ROLES)(*(pointers.get(r) or None for r in ROLES))
        status = lib().shim_prepare(self.handle, array, self._text, len(self._text))
        if status:
            raise ShimError(status, self._text.value.decode())

    def code(self, pointers: Mapping[str, int], number: int) -> bytes | None:
        """The code of the kernel of this number in a run; None where there is none."""
        array = (ctypes.c_void_p * MOST_ROLES)(*(pointers.get(r) or None for r in ROLES))
        room, bytes_there = ctypes.create_string_buffer(1 << 20), ctypes.c_size_t()
        status = lib().shim_code(
            self.handle,
            array,
            number,
            room,
            len(room),
            ctypes.byref(bytes_there),
            self._text,
            len(self._text),
        )
        if status == 100:
            return None
        if status:
            raise ShimError(status, self._text.value.decode())
        return room.raw[: bytes_there.value]

    def compile(self, arch: int, access: int = 16, number: int = 0) -> str | None:
        """The compiler's report on the plan's kernel of this number; None where there is none."""
        return self._compile(lib().shim_compile, number, arch, access)

    def pairs(self) -> bool:
        """Whether two problems of the plan are run by one launch."""
        return bool(lib().shim_pairs(self.handle))

    def compile_pair(self, arch: int, number: int = 0) -> str | None:
        """The same of a kernel for two problems of the plan at once."""
        return self._compile(lib().shim_compile_pair, number, arch)

    def _compile(self, function: Callable[..., int], *what: int) -> str | None:
        log = ctypes.create_string_buffer(1 << 16)
        text = ctypes.create_string_buffer(2000)
        status = function(self.handle, *what, log, len(log), text, len(text))
        if status == 100:
            return None
        if status:
            raise ShimError(status, text.value.decode())
        return log.value.decode()


class AnyPlan(Plan):
    """A plan for any axes: sizes of x, bit masks of axes, and strides by role (x's rank each)."""

    def __init__(
        self,
        direction: int,
        kind: int,
        shape: Sequence[int],
        reduce: int,
        affine: int,
        dtypes: Mapping[str, str],
        strides: Mapping[str, Sequence[int]],
        *,
        activation: int = 0,
        offset: int = 0,
        eps: float = 1e-5,
        device: int = 0,
        arch: int = 0,
        **constants: int,
    ) -> None:
        n = len(shape)
        flat = [s for r in ROLES for s in strides.get(r, [0] * n)]
        self.handle = ctypes.c_void_p()
        self._text = ctypes.create_string_buffer(600)
        status = lib().shim_problem(
            ctypes.byref(self.handle),
            direction,
            kind,
            activation,
            n,
            (ctypes.c_int64 * n)(*shape),
            reduce,
            affine,
            (ctypes.c_int64 * len(flat))(*flat),
            (ctypes.c_int * len(ROLES))(*(DTYPES.index(dtypes.get(r, "none")) for r in ROLES)),
            offset,
            eps,
            device,
            arch,
            self._text,
            len(self._text),
        )
        if status:
            raise ShimError(status, self._text.value.decode())
        self.set(constants)
