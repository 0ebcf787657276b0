"""Finds libplanish.so and talks to it through ctypes.

This module knows no torch: what it loads works without it. The library is ``$PLANISH_LIBRARY``,
where that is set, or else the one beside this package, where the wheel puts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from planish.library import structs, variables

__all__ = ["ERROR_OVERLAP", "ERROR_UNAVAILABLE", "Library", "OperatorStats", "Symbol", "library"]

#: The C API this package was written for (PLANISH_VERSION in planish.h).
_WANTED_VERSION = 100
_MESSAGE_BYTES = 1024
_log = logging.getLogger("planish")
#: Of planish_status: PLANISH_ERROR_OVERLAP, _UNAVAILABLE, _FILE and _NO_FAST_KERNEL.
ERROR_OVERLAP, ERROR_UNAVAILABLE, _ERROR_FILE, _ERROR_NO_FAST_KERNEL = 9, 12, 14, 15


class OperatorStats(TypedDict):
    """What became of the calls of one operator."""

    #: Calls that ran on planish.
    planish: int
    #: Calls that came without torch's boxed stack, wherever they ran.
    unboxed: int
    #: Calls handed to torch's own kernel, by reason.
    torch: dict[str, int]


class Symbol(NamedTuple):
    """One function of libtorch that planish looks up."""

    name: str
    use: str
    required: bool
    found: bool


class _CSymbol(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("use", ctypes.c_char_p),
        ("required", ctypes.c_bool),
        ("found", ctypes.c_bool),
    ]


def _whole_text(write: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> str:
    """What a C function writes that returns the length of the whole text."""
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        length = write(text, size)
        if length < size:
            return text.value.decode(errors="surrogateescape")
        size = length + 256


class Library:
    """The C functions that the package needs, with Python's types and exceptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # PyDLL keeps the interpreter lock: while planish registers or removes kernels no other
        # Python thread can start an operator.
        try:
            self._dll = ctypes.PyDLL(str(path))
        except OSError as error:
            raise ImportError(f"planish: {path} does not load: {error}") from error
        dll = self._dll
        try:
            dll.planish_version.restype = ctypes.c_int
            self.version: int = dll.planish_version()
            dll.planish_cpu_tier.restype = ctypes.c_char_p
            structs.name_fields(dll)
            for report in (dll.planish_gpu_report, dll.planish_cache_path):
                report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            text = (ctypes.c_char_p, ctypes.c_size_t)
            dll.planish_pack_load.argtypes = [ctypes.c_char_p, *text]
            dll.planish_pack_takes.argtypes = text
            dll.planish_pack_prepare.argtypes = [
                ctypes.POINTER(structs.Gpu),
                ctypes.POINTER(structs.Norm),
                ctypes.c_int,
                ctypes.POINTER(structs.Tensors),
                *text,
            ]
            dll.planish_norm_supports.argtypes = [
                ctypes.POINTER(structs.Norm),
                ctypes.c_int,
                ctypes.POINTER(structs.Tensors),
                *text,
            ]
            dll.planish_torch_enabled.restype = ctypes.c_uint32
            dll.planish_torch_enable.argtypes = [
                ctypes.c_uint32,
                ctypes.c_char_p,
                ctypes.c_size_t,
            ]
            dll.planish_torch_disable.argtypes = [
                ctypes.c_int64,
                ctypes.POINTER(ctypes.c_bool),
                ctypes.c_char_p,
                ctypes.c_size_t,
            ]
            dll.planish_torch_has_cuda.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            dll.planish_torch_quiet.argtypes = [ctypes.c_bool]
            dll.planish_torch_stay.argtypes = [ctypes.c_uint32, *text]
            dll.planish_torch_own_begin.restype = None
            dll.planish_torch_own_end.restype = None
            dll.planish_torch_when_recorded.restype = None
            dll.planish_torch_define.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            dll.planish_torch_check_cuda.argtypes = [ctypes.c_int, *text]
            dll.planish_torch_stats.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            dll.planish_torch_symbol_get.argtypes = [ctypes.c_int, ctypes.POINTER(_CSymbol)]
            dll.planish_torch_symbol_get.restype = ctypes.c_bool
            dll.planish_torch_version.restype = ctypes.c_int
        except AttributeError as error:
            raise ImportError(f"planish: {path} is not this package's library: {error}") from error
        if self.version != _WANTED_VERSION:
            raise ImportError(
                f"planish: {path} has version {self.version}, this package wants {_WANTED_VERSION}"
            )

    @property
    def functions(self) -> ctypes.CDLL:
        """The library's functions as they are, for bindings that hand their addresses on."""
        return self._dll

    def workspace_bytes(self, norm: structs.Norm, direction: int, tensors: structs.Tensors) -> int:
        """What such a pass needs (planish_norm_workspace_bytes); 0 where its device is not there.
        ValueError where it is no norm."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        how = structs.Exec(
            struct_size=ctypes.sizeof(structs.Exec),
            message=ctypes.addressof(text),
            message_bytes=len(text),
        )
        size = ctypes.c_size_t()
        status = self._dll.planish_norm_workspace_bytes(
            ctypes.byref(norm), direction, ctypes.byref(tensors), ctypes.byref(size),
            ctypes.byref(how),
        )  # fmt: skip
        if status not in (0, ERROR_UNAVAILABLE):
            raise ValueError(f"planish: {text.value.decode(errors='replace')}")
        return size.value

    def cpu_tier(self) -> str:
        """The instruction set in use: portable, avx2, avx512, avx512bf16 or neon."""
        tier: bytes = self._dll.planish_cpu_tier()
        return tier.decode()

    def gpu_report(self) -> dict[str, Any]:
        """What there is for GPUs: driver, devices, nvrtc, packs, cache."""
        report: dict[str, Any] = json.loads(_whole_text(self._dll.planish_gpu_report))
        return report

    def cache_path(self) -> Path | None:
        """The folder of the GPU kernel cache; None if none is kept."""
        path = _whole_text(self._dll.planish_cache_path)
        return Path(path) if path else None

    def load_pack(self, path: str) -> None:
        """Loads a pack of GPU kernels; OSError where it is none that can be used."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = self._dll.planish_pack_load(os.fsencode(path), text, len(text))
        if status != 0:
            words = f"planish.load_pack: {text.value.decode(errors='replace')}"
            raise OSError(words) if status == _ERROR_FILE else RuntimeError(words)

    def pack_takes(self, file: bytes) -> bool:
        """Whether this file of the kernel cache belongs into a pack."""
        return bool(self._dll.planish_pack_takes(file, len(file)))

    def pack_prepare(
        self,
        gpu: structs.Gpu,
        norm: structs.Norm,
        direction: int,
        tensors: structs.Tensors,
    ) -> None:
        """Compiles into the cache what these tensors need on such a GPU (src/cuda/ahead.h)."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._dll.planish_pack_prepare(gpu, norm, direction, tensors, text, len(text)) != 0:
            raise RuntimeError(text.value.decode(errors="replace"))

    def why_not(self, norm: structs.Norm, direction: int, tensors: structs.Tensors) -> str:
        """Why such a norm cannot be run here at all, in one sentence; empty where it can, be it by
        kernels made for any layout. RuntimeError where it is none."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = self._dll.planish_norm_supports(norm, direction, tensors, text, len(text))
        reason = text.value.decode(errors="replace")
        if status not in (0, _ERROR_NO_FAST_KERNEL, ERROR_UNAVAILABLE):
            raise RuntimeError(f"planish: {reason}")
        return reason if status == ERROR_UNAVAILABLE else ""

    def take_thrown(self) -> int:
        """The status with which an operator of planish's own threw last on this thread, and is
        forgotten; 0: none did since. What catches an operator's exception asks at once."""
        status: int = self._dll.planish_torch_take_thrown()
        return status

    def enable(self, groups: int) -> None:
        """Registers the groups of operators; raises RuntimeError where that cannot be."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._dll.planish_torch_enable(groups, text, len(text)) != 0:
            raise RuntimeError(f"planish.enable: {text.value.decode(errors='replace')}")

    def disable(self, wait_microseconds: int) -> bool:
        """Switches planish off; true if the registrations are gone too."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        removed = ctypes.c_bool()
        if self._dll.planish_torch_disable(wait_microseconds, removed, text, len(text)) != 0:
            raise RuntimeError(f"planish.disable: {text.value.decode(errors='replace')}")
        return removed.value

    def enabled(self) -> int:
        """The groups of operators that run on planish now."""
        return int(self._dll.planish_torch_enabled())

    def cuda_is_missing(self) -> str:
        """What this torch lacks for CUDA, in one sentence; empty if nothing."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = self._dll.planish_torch_has_cuda(text, len(text))
        return text.value.decode(errors="replace") if status != 0 else ""

    def stay(self, groups: int) -> str:
        """Puts planish's kernels under the operators of these groups that its own functions call,
        for the rest of the process; why that cannot be, in one sentence, or nothing."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = self._dll.planish_torch_stay(groups, text, len(text))
        return text.value.decode(errors="replace") if status != 0 else ""

    def own(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What is called before a call of such an operator that is planish's own, and behind it."""
        return self._dll.planish_torch_own_begin, self._dll.planish_torch_own_end

    def when_recorded(self, recorded: Callable[[Any], None]) -> None:
        """Has this called in the backward of a layer or batch norm that is planish's own where
        autograd records it, with the gradient of y: a handle of libtorch's that is its own, in a
        capsule."""
        capsule = ctypes.pythonapi["PyCapsule_New"]
        capsule.restype = ctypes.py_object
        capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

        def call(handle: int) -> None:
            recorded(capsule(handle, None, None))

        self._recorded = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
        self._dll.planish_torch_when_recorded(self._recorded)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Torch's warning about overriding a kernel is not given in this block."""
        self._dll.planish_torch_quiet(True)
        try:
            yield
        finally:
            self._dll.planish_torch_quiet(False)

    def define(self) -> None:
        """Defines planish's own operators, once."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._dll.planish_torch_define(text, len(text)) != 0:
            raise RuntimeError(f"planish: {text.value.decode(errors='replace')}")

    def check_cuda(self, device: int) -> None:
        """Raises RuntimeError where torch's own CUDA norms, called by their C++ names on this GPU,
        do not return what they should."""
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._dll.planish_torch_check_cuda(device, text, len(text)) != 0:
            raise RuntimeError(f"planish.enable: {text.value.decode(errors='replace')}")

    def stats(self) -> dict[str, OperatorStats]:
        """What became of every call so far, by operator."""
        result: dict[str, OperatorStats] = json.loads(_whole_text(self._dll.planish_torch_stats))
        return result

    def torch_version(self) -> int:
        """100 * major + minor of the libtorch C ABI in this process; 0 without libtorch."""
        return int(self._dll.planish_torch_version())

    def symbols(self) -> list[Symbol]:
        """Every function of libtorch that planish looks up, found or missing."""
        found: list[Symbol] = []
        symbol = _CSymbol()
        while self._dll.planish_torch_symbol_get(len(found), symbol):
            found.append(
                Symbol(symbol.name.decode(), symbol.use.decode(), symbol.required, symbol.found)
            )
        return found


def refusal() -> str:
    """Why planish cannot run on this system, in one sentence; empty where it can."""
    supported = "planish runs on 64-bit Linux with glibc, on x86-64 and aarch64"
    if sys.platform != "linux":
        return f"{supported}; this is {platform.system() or sys.platform}"
    if sys.maxsize <= 2**32:
        return f"{supported}; this Python has 32 bits"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        libc = None
    return "" if libc else f"{supported}; this Python's libc is another, such as musl"


@functools.cache
def library() -> Library:
    """Loads libplanish.so, once; ImportError says where it was looked for, or that planish does not
    run on such a system."""
    if refused := refusal():
        raise ImportError(f"planish: {refused}")
    named = os.environ.get("PLANISH_LIBRARY")
    beside = Path(__file__).parents[1] / "libplanish.so"
    if named and not Path(named).is_file():
        raise ImportError(f"planish: no libplanish.so: there is no file $PLANISH_LIBRARY ({named})")
    if not named and not beside.is_file():
        raise ImportError(
            f"planish: no libplanish.so: looked for {beside}; $PLANISH_LIBRARY is not set"
        )
    found = Library(Path(named) if named else beside)
    for sentence in variables.misset().values():
        _log.warning("planish: %s", sentence)
    return found
