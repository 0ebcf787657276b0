"""planish_norm_run of stages around a norm, by ctypes: on a GPU, or of the kernels' text on the host.

`Library` is the library as it is built (PLANISH_LIBRARY, or what `make test` builds); its tensors are
on "cuda". `Emulation` compiles the kernels' text for the host, a specialisation at a time, and its
tensors are on "cpu".
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]

FIELDS = [
    "x",
    "weight",
    "bias",
    "y",
    "mean",
    "rstd",
    "m2",
    "dy",
    "dx",
    "dweight",
    "dbias",
    "residual",
    "sum",
    "row_scale",
    "column_scale",
    "scale",
    "shift",
    "gate",
    "rng",
    "mask",
    "q",
    "y_scale",
    "y_scales",
    "amax",
    "branch",
    "dsum",
    "dresidual",
    "dscale",
    "dshift",
    "dgate",
    "dcolumn_scale",
]

CODES = {
    torch.float32: (2, 32),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float64: (2, 64),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.bool: (6, 8),
    torch.int8: (0, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e8m0fnu: (14, 8),
}

LAYER, RMS = 0, 1
ACTIVATIONS = ("none", "silu", "relu", "gelu", "gelu_tanh")


class DLTensor(ctypes.Structure):
    """DLPack's."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Norm(ctypes.Structure):
    """planish_norm."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("weight_offset", ctypes.c_int32),
        ("reduce_axes", ctypes.c_uint64),
        ("affine_axes", ctypes.c_uint64),
        ("eps", ctypes.c_double),
        ("activation", ctypes.c_int),
        ("modulation_axes", ctypes.c_uint64),
        ("column_axes", ctypes.c_uint64),
        ("gate", ctypes.c_int),
        ("rounding", ctypes.c_int),
        ("dropout_p", ctypes.c_double),
        ("scale_block", ctypes.c_int64),
        ("scale_format", ctypes.c_int),
        ("scale_least", ctypes.c_double),
        ("scale_most", ctypes.c_double),
    )


class Tensors(ctypes.Structure):
    """planish_tensors."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.POINTER(DLTensor)) for name in FIELDS),
    )


class Exec(ctypes.Structure):
    """planish_exec."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_size_t),
        ("apart", ctypes.c_int),
    )


class StatusError(RuntimeError):
    """A status that is not PLANISH_OK, with its sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


def described(tensors: Mapping[str, torch.Tensor]) -> tuple[Tensors, list[Any]]:
    """planish_tensors of these, and what must live as long."""
    out = Tensors(ctypes.sizeof(Tensors))
    kept: list[Any] = []
    for name, t in tensors.items():
        shape = (ctypes.c_int64 * max(t.ndim, 1))(*t.shape)
        strides = (ctypes.c_int64 * max(t.ndim, 1))(*t.stride())
        code, bits = CODES[t.dtype]
        device = (2, t.device.index or 0) if t.is_cuda else (1, 0)
        d = DLTensor(t.data_ptr(), *device, t.ndim, code, bits, 1, shape, strides, 0)
        kept += [shape, strides, d]
        setattr(out, name, ctypes.pointer(d))
    return out, kept


def norm(**fields: Any) -> Norm:
    """planish_norm with these fields."""
    return Norm(struct_size=ctypes.sizeof(Norm), **fields)


class Library:
    """The library itself, on a GPU."""

    device = "cuda"

    def __init__(self, path: str = "") -> None:
        built = ROOT / "build/release/libplanish.so"
        self.lib = ctypes.CDLL(path or os.environ.get("PLANISH_LIBRARY") or str(built))

    def run(self, op: Norm, tensors: Mapping[str, torch.Tensor]) -> None:
        """One forward, to its end."""
        t, kept = described(tensors)
        text = ctypes.create_string_buffer(600)
        e = Exec(struct_size=ctypes.sizeof(Exec), message_bytes=len(text), apart=1)
        e.message = ctypes.addressof(text)
        size = ctypes.c_size_t()
        status = self.lib.planish_norm_workspace_bytes(
            ctypes.byref(op), 0, ctypes.byref(t), ctypes.byref(size), ctypes.byref(e)
        )
        work = None
        if not status:
            if size.value:
                work = torch.full((size.value,), 255, dtype=torch.uint8, device=self.device)
                e.workspace, e.workspace_bytes = work.data_ptr(), size.value
            if self.device == "cuda":
                e.stream = torch.cuda.current_stream().cuda_stream
            status = self.lib.planish_norm_run(
                ctypes.byref(op), 0, ctypes.byref(t), ctypes.byref(e)
            )
        if self.device == "cuda":
            torch.cuda.synchronize()
        del kept, work
        if status:
            raise StatusError(status, text.value.decode(errors="replace"))

    def describe(self, op: Norm, tensors: Mapping[str, torch.Tensor]) -> str:
        """The plan in one line."""
        t, kept = described(tensors)
        plan = ctypes.c_void_p()
        text = ctypes.create_string_buffer(600)
        status = self.lib.planish_plan_create(
            ctypes.byref(op), 0, ctypes.byref(t), ctypes.byref(plan), text, len(text)
        )
        if status:
            raise StatusError(status, text.value.decode())
        self.lib.planish_plan_describe(plan, text, len(text))
        self.lib.planish_plan_destroy(plan)
        del kept
        return text.value.decode()


SUPPORT = ("problem", "problem_layouts", "roles", "stages", "status")
OUTSIDE = ("ahead", "cache", "driver", "jit", "key", "launch", "pack", "report")


def call(command: Sequence[str | pathlib.Path]) -> None:
    """Runs a program that must not fail."""
    done = subprocess.run([str(c) for c in command], check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[:4000])


class Emulation(Library):
    """The kernels' text, run on the host thread by thread (tests/cuda/emulation)."""

    device = "cpu"

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.units = folder, folder / "units"
        self.units.mkdir(parents=True, exist_ok=True)
        kernels = sorted((ROOT / "src/cuda/kernels").rglob("*.cu"))
        texts, library = folder / "texts.c", folder / "libemulated.so"
        for old in self.units.glob("*.cpp"):
            old.unlink()
        made = folder / "made"
        made.mkdir(exist_ok=True)
        call([sys.executable, HERE / "emulation/host_text.py", made, *kernels])
        for text in made.glob("*.inc"):
            kept = folder / text.name
            if not kept.exists() or kept.read_bytes() != text.read_bytes():
                kept.write_bytes(text.read_bytes())
        call([sys.executable, ROOT / "src/cuda/embed.py", texts, *kernels])
        host = sorted((ROOT / "src/cuda").rglob("*.c"))
        sources = [HERE / f"emulation/{name}.c" for name in ("emulated", "device", "fiber")]
        sources += [texts, ROOT / "tests/c/check.c", *(ROOT / f"src/{n}.c" for n in SUPPORT)]
        sources += [s for s in host if s.stem not in OUTSIDE]
        flags = [
            "-std=gnu11",
            "-D_GNU_SOURCE",
            "-O1",
            "-w",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
        ]
        includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}", f"-I{HERE / 'emulation'}"]
        compiler = os.environ.get("CC", "clang")
        libraries = ["-lm", "-ldl", "-lpthread"]
        call([compiler, *flags, *includes, "-o", library, *sources, *libraries])
        self.lib = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._where = str(self.units).encode()  # the library keeps the address
        ctypes.c_char_p.in_dll(self.lib, "unit_folder").value = self._where
        ctypes.c_ubyte.in_dll(self.lib, "fill").value = 0xFF
        self.set_device(90, 4)

    def set_device(self, arch: int, multiprocessors: int) -> None:
        """What plans are made for."""
        self.lib.set_device(arch, multiprocessors)

    def shuffle(self, shuffled: bool) -> None:
        """Whether threads take turns in a random order."""
        ctypes.c_int.in_dll(self.lib, "order").value = int(shuffled)

    def writing(self, write: Callable[[], None]) -> None:
        """What runs within `write` is only written down as specialisations."""
        where = ctypes.c_char_p.in_dll(self.lib, "write_folder")
        where.value = self._where
        try:
            write()
        finally:
            where.value = None

    def compile(self, jobs: int = 2) -> int:
        """Compiles what was written down; how many there are."""
        sources = sorted(self.units.glob("*.cpp"))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(functools.partial(build_unit, self.folder), sources))
        return len(sources)


def build_unit(folder: pathlib.Path, source: pathlib.Path) -> None:
    """One specialisation as a library."""
    library = source.with_suffix(".so")
    newest = max(
        p.stat().st_mtime for p in [*folder.glob("*.inc"), *(HERE / "emulation").glob("*.hpp")]
    )
    if library.exists() and library.stat().st_mtime > newest:
        return
    flags = ["-std=c++17", "-fPIC", "-shared", "-w", "-O0", "-fvisibility=hidden"]
    flags += ["-ffp-contract=off", f"-I{HERE / 'emulation'}", f"-I{folder}"]
    call([os.environ.get("CXX", "clang++"), *flags, "-o", library, source])
