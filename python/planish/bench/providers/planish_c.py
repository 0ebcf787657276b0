"""planish itself through its plain C API: one plan per case, buffers and workspace of the caller.

The structs mirror include/planish.h. Which shared library is used is planish's own decision
(planish.library.loaded), so that the bench measures what the package runs.
"""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_void_p,
)
from functools import cache
from typing import Any

import torch
from planish.library.loaded import library
from planish.library.structs import (
    BFLOAT_CODE,
    CPU_DEVICE,
    CUDA_DEVICE,
    FLOAT_CODE,
    Buffers,
    DLDataType,
    DLDevice,
    DLTensor,
    Norm,
    Tensors,
    name_fields,
)

from ..case import Case, Data, by_pixel, nchw
from .base import Provider, Role, Run, UnsupportedError, run_of

FORWARD, BACKWARD = 0, 1


class Exec(ctypes.Structure):
    """planish_exec."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("message", c_char_p),
        ("message_bytes", c_size_t),
        ("apart", c_int),
    )


@cache
def load(path: str = "") -> ctypes.CDLL:
    """A libplanish with the signatures needed here; the one that the planish package uses where no
    path is given."""
    lib = ctypes.CDLL(path or str(library().path))
    name_fields(lib)
    lib.planish_plan_create.argtypes = [
        POINTER(Norm), c_int, POINTER(Tensors), POINTER(c_void_p), c_char_p, c_size_t,
    ]  # fmt: skip
    lib.planish_plan_workspace_bytes.argtypes = [c_void_p]
    lib.planish_plan_workspace_bytes.restype = c_size_t
    lib.planish_plan_run.argtypes = [c_void_p, POINTER(Buffers), POINTER(Exec)]
    lib.planish_plan_destroy.argtypes = [c_void_p]
    lib.planish_plan_destroy.restype = None
    lib.planish_cpu_tier.restype = c_char_p
    return lib


def dl_tensor(tensor: torch.Tensor) -> DLTensor:
    """A descriptor of a tensor. Its shape and strides live as long as it does."""
    code = BFLOAT_CODE if tensor.dtype == torch.bfloat16 else FLOAT_CODE
    sizes = (c_int64 * tensor.dim())(*tensor.shape)
    strides = (c_int64 * tensor.dim())(*tensor.stride())
    return DLTensor(
        tensor.data_ptr(),
        DLDevice(CUDA_DEVICE, tensor.device.index) if tensor.is_cuda else DLDevice(CPU_DEVICE, 0),
        tensor.dim(),
        DLDataType(code, 8 * tensor.element_size(), 1),
        sizes,
        strides,
        0,
    )


class Plan:
    """A plan with its buffers, ready to be run again and again."""

    def __init__(
        self,
        lib: ctypes.CDLL,
        case: Case,
        direction: int,
        tensors: dict[str, torch.Tensor | None],
    ) -> None:
        present = {name: t for name, t in tensors.items() if t is not None}
        descriptors = {name: dl_tensor(t) for name, t in present.items()}
        op = Norm(ctypes.sizeof(Norm), int(case.kind == "rms"), 0, 1 << 1, 1 << 1, case.eps)
        table = Tensors(
            ctypes.sizeof(Tensors),
            **{name: ctypes.pointer(d) for name, d in descriptors.items()},
        )
        message = ctypes.create_string_buffer(512)
        plan = c_void_p()
        status = lib.planish_plan_create(
            byref(op), direction, byref(table), byref(plan), message, len(message)
        )
        if status:
            raise UnsupportedError(f"planish: {message.value.decode()}")
        room = lib.planish_plan_workspace_bytes(plan)
        self._workspace = torch.empty(room + 256, dtype=torch.uint8, device=case.device)
        aligned = -(-self._workspace.data_ptr() // 256) * 256
        self._tensors = present  # the buffers point into these
        self._message = message
        self._lib, self._plan = lib, plan
        self._buffers = Buffers(
            ctypes.sizeof(Buffers), **{name: t.data_ptr() for name, t in present.items()}
        )
        self._exec = Exec(
            ctypes.sizeof(Exec),
            workspace=aligned,
            workspace_bytes=room,
            message=ctypes.cast(message, c_char_p),
            message_bytes=len(message),
        )
        self._arguments: Any = (plan, byref(self._buffers), byref(self._exec))
        self._on_gpu = case.device != "cpu"

    def run(self) -> None:
        """Runs the plan, on a GPU on torch's current stream; raises if it fails."""
        if self._on_gpu:
            self._exec.stream = torch.cuda.current_stream().cuda_stream
        if self._lib.planish_plan_run(*self._arguments):
            raise RuntimeError(f"planish: {self._message.value.decode()}")

    def close(self) -> None:
        """Frees the plan."""
        self._lib.planish_plan_destroy(self._plan)
        self._plan = c_void_p()


class PlanishC(Provider):
    """planish's kernels with nothing between them and the clock but one ctypes call."""

    name = "planish"
    what = "planish through its C API: a plan, caller-owned memory, OpenMP threads"
    role: Role = "planish"
    images = True
    path = ""

    def missing(self) -> str | None:
        """Whether libplanish is there."""
        try:
            load(self.path)
        except (ImportError, OSError) as error:
            return f"libplanish does not load: {error}"
        return None

    def version(self) -> str | None:
        """The library's version and the CPU tier it chose."""
        if self.missing():
            return None
        lib = load(self.path)
        number = lib.planish_version()
        text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return f"{text} ({lib.planish_cpu_tier().decode()})"

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        stat_dtype = torch.float64 if case.dtype == "f64" else torch.float32
        x = nchw(case, data.x)
        y = data.result.view(x.shape)
        stat_shape = (case.rows,) if case.image is None else (x.shape[0], *case.image)
        rstd = torch.empty(stat_shape, dtype=stat_dtype, device=case.device)
        mean = torch.empty_like(rstd) if case.kind == "layer" else None
        lib = load(self.path)
        forward = Plan(
            lib,
            case,
            FORWARD,
            {
                "x": x,
                "weight": data.weight,
                "bias": data.bias,
                "y": y,
                "mean": mean,
                "rstd": rstd,
            },
        )
        if case.direction == "forward":

            def forward_outputs() -> dict[str, torch.Tensor]:
                forward.run()
                return {"y": by_pixel(case, y)}

            run = run_of(forward.run, forward_outputs)
            return dataclasses.replace(run, close=forward.close)
        forward.run()
        forward.close()
        gradients = {"dx": y, "dweight": torch.empty_like(data.weight)}
        if data.bias is not None:
            gradients["dbias"] = torch.empty_like(data.bias)
        backward = Plan(
            lib,
            case,
            BACKWARD,
            {
                "dy": None if data.dy is None else nchw(case, data.dy),
                "x": x,
                "mean": mean,
                "rstd": rstd,
                "weight": data.weight,
                **gradients,
            },
        )

        def backward_outputs() -> dict[str, torch.Tensor]:
            backward.run()
            return {**gradients, "dx": by_pixel(case, gradients["dx"])}

        run = run_of(backward.run, backward_outputs)
        return dataclasses.replace(run, close=backward.close)


class PlanishBefore(PlanishC):
    """Another build of planish, to compare this one with."""

    name = "planish-before"
    what = "planish through its C API, another build: --before names its libplanish"

    def __init__(self, path: str) -> None:
        self.path = path

    def missing(self) -> str | None:
        """Whether a library was named and loads."""
        return super().missing() if self.path else "--before names no libplanish"
