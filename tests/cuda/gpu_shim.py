"""ctypes over tests/cuda/shim.c: row problems as plans of the GPU backend.

Needs neither torch nor a GPU to make and compile plans. PLANISH_GPU_SHIM names the shared library.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

ROLES = ("x", "weight", "bias", "y", "mean", "rstd", "m2", "dy", "dx", "dweight", "dbias")
DTYPES = ("f32", "f16", "bf16", "f64", "none")
FORWARD, BACKWARD = 0, 1
LAYER, RMS = 0, 1
CONSTANTS = [
    "REAL_DOUBLE",
    "KIND",
    "COLS",
    "X_TYPE",
    "Y_TYPE",
    "G_TYPE",
    "D_TYPE",
    "W_TYPE",
    "B_TYPE",
    "MEAN_TYPE",
    "RSTD_TYPE",
    "DW_TYPE",
    "DB_TYPE",
    "WEIGHT_OFFSET",
    "WIDTH",
    "LANES",
    "VECS",
    "ROWS",
    "WARPS",
    "TEAMS",
    "CLUSTER",
    "HOLD",
    "STAGES",
    "EARLY",
    "CORRECT",
    "SLICES",
    "MIN_BLOCKS",
    "WANT_DWEIGHT",
    "WANT_DBIAS",
    "X_ACCESS",
    "Y_ACCESS",
    "G_ACCESS",
    "D_ACCESS",
    "W_ACCESS",
    "B_ACCESS",
    "PASS",
    "M2_TYPE",
]


class ShimError(RuntimeError):
    """A status of the backend, with its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


def load() -> ctypes.CDLL:
    """The shim library, its functions declared."""
    lib = ctypes.CDLL(os.environ["PLANISH_GPU_SHIM"])
    p, i, long, s = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
    text = ctypes.c_char_p
    lib.shim_plan.argtypes = [p, i, i, long, long, p, p, i, ctypes.c_double, i, i, text, s]
    lib.shim_free.argtypes = [p]
    lib.shim_workspace.argtypes = [p]
    lib.shim_workspace.restype = s
    lib.shim_describe.argtypes = [p, text, s]
    lib.shim_get.argtypes = [p, i]
    lib.shim_set.argtypes = [p, i, i]
    lib.shim_run.argtypes = [p, p, p, p, text, s]
    lib.shim_prepare.argtypes = [p, p, text, s]
    lib.shim_compile.argtypes = [p, i, i, i, text, s, text, s]
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
        for name, value in constants.items():
            lib().shim_set(self.handle, -1 if name == "TURNS" else CONSTANTS.index(name), value)
        self.workspace_bytes: int = lib().shim_workspace(self.handle)
        self._text = text

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            lib().shim_free(self.handle)

    def get(self, constant: str) -> int:
        """A compile-time constant of the main kernel."""
        return int(lib().shim_get(self.handle, CONSTANTS.index(constant)))

    def describe(self) -> str:
        """The plan in one line."""
        text = ctypes.create_string_buffer(300)
        lib().shim_describe(self.handle, text, len(text))
        return text.value.decode()

    def run(self, pointers: Mapping[str, int], stream: int = 0, workspace: int = 0) -> None:
        """Queues the plan; `pointers` are device addresses by role."""
        array = (ctypes.c_void_p * len(ROLES))(*(pointers.get(r) or None for r in ROLES))
        self.run_array(array, stream, workspace)

    def run_array(self, array: ctypes.Array[ctypes.c_void_p], stream: int, workspace: int) -> None:
        """As run, with the array of addresses made beforehand."""
        status = lib().shim_run(self.handle, array, stream, workspace, self._text, len(self._text))
        if status:
            raise ShimError(status, self._text.value.decode())

    def prepare(self, pointers: Mapping[str, int]) -> None:
        """Compiles to disk what run() needs for buffers at these addresses."""
        array = (ctypes.c_void_p * len(ROLES))(*(pointers.get(r) or None for r in ROLES))
        status = lib().shim_prepare(self.handle, array, self._text, len(self._text))
        if status:
            raise ShimError(status, self._text.value.decode())

    def compile(self, arch: int, access: int = 16, last: int = 0) -> str | None:
        """The compiler's report for an architecture; None where there is no such kernel."""
        log = ctypes.create_string_buffer(1 << 16)
        text = ctypes.create_string_buffer(2000)
        status = lib().shim_compile(self.handle, last, arch, access, log, len(log), text, len(text))
        if status == 100:
            return None
        if status:
            raise ShimError(status, text.value.decode())
        return log.value.decode()
