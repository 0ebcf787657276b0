"""oneDNN's layer_normalization primitive, through the C API of the installed shared library.

Uses caller-owned, dense memory, forward_training (statistics are written) and backward (all three
gradients). oneDNN keeps weight and bias in f32; they are given the same values.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..case import Case, Data
from .base import Provider, Run, UnsupportedError, run_of

# Values of oneDNN 3's enums and argument numbers (dnnl_types.h).
CPU = 1
STREAM_DEFAULT = 1
FORWARD_TRAINING = 64
BACKWARD = 128
USE_SCALE_AND_SHIFT = 2 | 4
DTYPE_CODES = {"f16": 1, "bf16": 2, "f32": 3}
SRC, DST, MEAN, VARIANCE, SCALE, SHIFT = 1, 17, 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256
STATUSES = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 6: "not required"}


class ExecArg(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (("arg", c_int), ("memory", c_void_p))


class Version(ctypes.Structure):
    """The head of dnnl_version_t."""

    _fields_ = (("major", c_int), ("minor", c_int), ("patch", c_int))


def find_library() -> Path | None:
    """The library: PLANISH_BENCH_ONEDNN, or libdnnl.so.3 in this environment's lib folder."""
    named = os.environ.get("PLANISH_BENCH_ONEDNN")
    if named:
        return Path(named)
    found = Path(sys.prefix) / "lib" / "libdnnl.so.3"
    return found if found.exists() else None


@cache
def load(path: Path) -> ctypes.CDLL:
    """Loads the library so that its symbols meet no other copy of oneDNN in the process."""
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)


def _check(status: int, what: str) -> None:
    if status != 0:
        raise UnsupportedError(f"oneDNN: {what}: {STATUSES.get(status, f'status {status}')}")


class Session:
    """One engine and stream, with the objects made on it."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.cleanups = contextlib.ExitStack()
        self.kept: list[torch.Tensor] = []
        self.engine = self._make(
            "dnnl_engine_create", "dnnl_engine_destroy", c_int(CPU), c_size_t(0)
        )
        self.stream = self._make(
            "dnnl_stream_create", "dnnl_stream_destroy", self.engine, c_uint(STREAM_DEFAULT)
        )

    def _make(self, create: str, destroy: str, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        _check(getattr(self.lib, create)(byref(handle), *arguments), create)
        self.cleanups.callback(getattr(self.lib, destroy), handle)
        return handle

    def close(self) -> None:
        """Frees everything; nothing made here may be used afterwards."""
        self.cleanups.close()
        self.kept.clear()

    def describe(self, sizes: list[int], dtype: int) -> c_void_p:
        """A memory descriptor of a dense row-major tensor."""
        strides = [1] * len(sizes)
        for i in reversed(range(len(sizes) - 1)):
            strides[i] = strides[i + 1] * sizes[i + 1]
        dims = c_int64 * 12
        return self._make(
            "dnnl_memory_desc_create_with_strides",
            "dnnl_memory_desc_destroy",
            c_int(len(sizes)),
            dims(*sizes),
            c_int(dtype),
            dims(*strides),
        )

    def memory(self, descriptor: c_void_p, tensor: torch.Tensor) -> c_void_p:
        """A memory object over a tensor's data, which lives as long as the session."""
        self.kept.append(tensor)
        return self._make(
            "dnnl_memory_create",
            "dnnl_memory_destroy",
            descriptor,
            self.engine,
            c_void_p(tensor.data_ptr()),
        )

    def descriptor(self, name: str, *arguments: Any) -> c_void_p:
        """A primitive descriptor made by the function of that name."""
        return self._make(name, "dnnl_primitive_desc_destroy", self.engine, *arguments)

    def primitive(self, descriptor: c_void_p) -> c_void_p:
        """A primitive ready to run."""
        return self._make("dnnl_primitive_create", "dnnl_primitive_destroy", descriptor)

    def executor(self, primitive: c_void_p, memories: dict[int, c_void_p]) -> Any:
        """A function that runs the primitive on these memories and waits for it."""
        arguments = (ExecArg * len(memories))(
            *(ExecArg(key, memory.value) for key, memory in memories.items())
        )
        execute, wait = self.lib.dnnl_primitive_execute, self.lib.dnnl_stream_wait
        stream, count, session = self.stream, c_int(len(memories)), self

        def run() -> None:
            assert session.kept  # the closure keeps the session, and with it the tensors, alive
            status = execute(primitive, stream, count, arguments) or wait(stream)
            if status:
                raise RuntimeError(f"oneDNN failed while running: {STATUSES.get(status, status)}")

        return run


class OneDnn(Provider):
    """oneDNN's own kernels, called as its C API is meant to be."""

    name = "onednn"
    what = "oneDNN layer_normalization, forward_training and backward, caller-owned memory"

    def missing(self) -> str | None:
        """Whether the shared library is there and loads."""
        path = find_library()
        if path is None:
            return "libdnnl.so.3 not found: pip install onednn-cpu-gomp"
        try:
            load(path)
        except OSError as error:
            return f"{path} does not load: {error}"
        return None

    def version(self) -> str | None:
        """What dnnl_version says."""
        path = find_library()
        if path is None or self.missing():
            return None
        lib = load(path)
        lib.dnnl_version.restype = POINTER(Version)
        version = lib.dnnl_version().contents
        return f"{version.major}.{version.minor}.{version.patch}"

    def prepare(self, case: Case, data: Data) -> Run:
        """LayerNorm in the dtypes that oneDNN has on this CPU."""
        if case.device != "cpu":
            raise UnsupportedError("the installed oneDNN is a CPU build")
        if case.kind != "layer":
            raise UnsupportedError("this oneDNN has no RMSNorm")
        if case.dtype not in DTYPE_CODES:
            raise UnsupportedError(f"oneDNN's layer_normalization has no {case.dtype}")
        path = find_library()
        assert path is not None and data.bias is not None
        session = Session(load(path))
        try:
            return self._prepare(session, case, data)
        except BaseException:
            session.close()
            raise

    def _prepare(self, session: Session, case: Case, data: Data) -> Run:
        code = DTYPE_CODES[case.dtype]
        assert data.bias is not None
        scale, shift = data.weight.float(), data.bias.float()
        y = data.result
        mean, variance = torch.empty(case.rows), torch.empty(case.rows)
        rows_desc = session.describe([case.rows, case.cols], code)
        stat_desc = session.describe([case.rows], DTYPE_CODES["f32"])
        param_desc = session.describe([case.cols], DTYPE_CODES["f32"])
        settings = (c_float(case.eps), c_uint(USE_SCALE_AND_SHIFT))
        forward_desc = session.descriptor(
            "dnnl_layer_normalization_forward_primitive_desc_create",
            c_int(FORWARD_TRAINING),
            rows_desc,
            rows_desc,
            stat_desc,
            *settings,
            None,
        )
        shared = {
            SRC: session.memory(rows_desc, data.x),
            MEAN: session.memory(stat_desc, mean),
            VARIANCE: session.memory(stat_desc, variance),
            SCALE: session.memory(param_desc, scale),
            SHIFT: session.memory(param_desc, shift),
        }
        forward = session.executor(
            session.primitive(forward_desc), {**shared, DST: session.memory(rows_desc, y)}
        )
        if case.direction == "forward":

            def forward_outputs() -> dict[str, torch.Tensor]:
                forward()
                return {"y": y}

            run = run_of(forward, forward_outputs)
            return Run(run.timed, run.outputs, session.close)

        assert data.dy is not None
        forward()
        dx, dweight, dbias = (
            data.result,
            torch.empty_like(scale),
            torch.empty_like(shift),
        )
        backward_desc = session.descriptor(
            "dnnl_layer_normalization_backward_primitive_desc_create",
            c_int(BACKWARD),
            rows_desc,
            rows_desc,
            rows_desc,
            stat_desc,
            *settings,
            forward_desc,
            None,
        )
        backward = session.executor(
            session.primitive(backward_desc),
            {
                **shared,
                DIFF_DST: session.memory(rows_desc, data.dy),
                DIFF_SRC: session.memory(rows_desc, dx),
                DIFF_SCALE: session.memory(param_desc, dweight),
                DIFF_SHIFT: session.memory(param_desc, dbias),
            },
        )

        def backward_outputs() -> dict[str, torch.Tensor]:
            backward()
            return {"dx": dx, "dweight": dweight, "dbias": dbias}

        run = run_of(backward, backward_outputs)
        return Run(run.timed, run.outputs, session.close)
