"""A list of norms -> GPU kernels, compiled without a GPU: what ``planish pack --norms`` does.

What a list holds is said by ``planish pack --help``. Each norm is planned by the library for a GPU
of given limits, by several processes: NVRTC compiles one kernel at a time.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planish.library import structs
from planish.library.loaded import library

__all__ = ["Gpu", "Problem", "compile_norms", "kernel_files"]

_KINDS = ("layer", "rms", "l2")
_FIELDS = (
    *("kind", "cols", "shape", "reduce", "affine", "rows", "dtype", "weight", "bias"),
    *("statistics", "passes", "gradients", "offset", "alignment"),
)
_MOST_ROWS = 1 << 20


class Problem(ValueError):
    """What the command was given makes no sense; its text says what was found and wanted."""


# ---- The list of norms ---------------------------------------------------------------------------


class Gpu(NamedTuple):
    """What planning asks of a GPU."""

    arch: int
    multiprocessors: int
    shared_per_block: int
    max_cluster: int


class _Wanted(NamedTuple):
    """One object of the list, every field filled."""

    kind: str
    shapes: list[list[int | None]]
    reduce: list[int]
    affine: list[int]
    rows: list[int]
    #: planish_pass, and role -> dtype of its tensors.
    passes: list[tuple[int, dict[str, str]]]
    offset: int
    alignments: list[int]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _numbers(value: Any, name: str, least: int) -> list[int]:
    found = _listed(value)
    for number in found:
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise Problem(f"{name} has {number!r}; wanted whole numbers from {least}")
    return found


def _choice(value: Any, name: str, known: Iterable[object]) -> Any:
    if value not in tuple(known):
        raise Problem(f"{name} is {value!r}; known are {', '.join(map(str, known))}")
    return value


def _row_classes() -> list[int]:
    """Which kernels a plan takes depends on the rows by a few thresholds that depend on the GPU and
    on the row length; steps this small meet every class."""
    found, rows = [], 1.0
    while rows <= _MOST_ROWS:
        found.append(int(rows))
        rows = max(rows + 1, rows * 1.2)
    return found


def _roles(item: dict[str, Any], kind: str) -> list[tuple[int, dict[str, str]]]:
    """Each pass, and its tensors with their dtypes."""
    dtype = _choice(item.get("dtype", "f32"), "dtype", structs.DTYPES)
    maybe = (*structs.DTYPES, None)
    weight = _choice(item.get("weight", dtype), "weight", maybe)
    bias = _choice(item.get("bias", dtype if kind == "layer" else None), "bias", maybe)
    exact = "f64" if dtype == "f64" else "f32"
    statistics = _choice(item.get("statistics", exact), "statistics", maybe)
    means = ["mean", "rstd"] if kind == "layer" else ["rstd"]
    parameters = {"weight": weight, "bias": bias}
    gradients = {"dx": dtype, "dweight": weight, "dbias": bias}
    for name in _listed(item.get("gradients", list(gradients))):
        _choice(name, "gradients", gradients)
    kept = {n: t for n, t in gradients.items() if n in item.get("gradients", gradients)}
    both = dict.fromkeys(("x", "dy"), dtype)
    # Of parts of rows, with what stands between the halves, as src/torch/norm_parts.c has it.
    whole, sums = dict.fromkeys(means, "f64"), dict.fromkeys(["c1", "c2"][-len(means) :], "f64")
    passes: dict[str, list[tuple[int, dict[str, str | None]]]] = {
        "forward": [
            (0, {"x": dtype, "y": dtype, **parameters, **dict.fromkeys(means, statistics)})
        ],
        "backward": [
            (1, {**both, "weight": weight, **dict.fromkeys(means, statistics or exact), **kept})
        ],
        "parts": [
            (3, {"x": dtype, **dict.fromkeys(["mean", "m2"][-len(means) :], "f64")}),
            (4, {"x": dtype, "y": dtype, **parameters, **whole}),
            (5, {**both, "weight": weight, **whole, **sums, **kept, "dx": None}),
            (1, {**both, "weight": weight, **whole, **sums, "dx": kept.get("dx")}),
        ],
    }
    wanted = _listed(item.get("passes", ["forward", "backward"]))
    if kind == "l2" and "parts" in wanted:
        raise Problem("passes has 'parts' of an l2 norm; wanted one of layer or rms")
    return [
        (number, {role: t for role, t in roles.items() if t is not None})
        for name in wanted
        for number, roles in passes[_choice(name, "passes", passes)]
    ]


def _wanted(item: Any) -> _Wanted:
    if not isinstance(item, dict):
        raise Problem(f"found {item!r}; wanted an object with cols or shape")
    for name in item:
        _choice(name, "a field", _FIELDS)
    kind = _choice(item.get("kind", "layer"), "kind", _KINDS)
    if ("cols" in item) == ("shape" in item):
        raise Problem(f"found {sorted(item)}; wanted either cols or shape")
    shapes: list[list[int | None]]
    if "cols" in item:
        shapes = [[None, cols] for cols in _numbers(item["cols"], "cols", 1)]
        reduce = affine = [1]
    else:
        shape = item["shape"]
        if not isinstance(shape, list) or len(shape) < 2 or shape[0] is not None:
            raise Problem(f"shape is {shape!r}; wanted a list whose first size is null")
        shapes = [[None, *_numbers(shape[1:], "shape", 1)]]
        reduce = _numbers(item.get("reduce", [len(shape) - 1]), "reduce", 0)
        affine = _numbers(item.get("affine", reduce), "affine", 0)
    return _Wanted(
        kind,
        shapes,
        reduce,
        affine,
        _numbers(item["rows"], "rows", 1) if "rows" in item else _row_classes(),
        _roles(item, kind),
        _choice(item.get("offset", 0), "offset", (0, 1)),
        _numbers(item.get("alignment", 16), "alignment", 1),
    )


def _read_norms(path: Path) -> list[_Wanted]:
    try:
        items = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {error}") from error
    if not isinstance(items, list) or not items:
        raise Problem(f"{path}: wanted a list of norms (planish pack --help)")
    found = []
    for number, item in enumerate(items):
        try:
            found.append(_wanted(item))
        except Problem as problem:
            raise Problem(f"{path}, norm {number}: {problem}") from problem
    return found


# ---- Compiling it, by several processes: NVRTC compiles one kernel at a time ---------------------


class _Job(NamedTuple):
    """One pass of one norm on one GPU, over all its rows."""

    gpu: Gpu
    kind: str
    reduce: list[int]
    affine: list[int]
    offset: int
    direction: int
    shape: list[int | None]
    rows: list[int]
    dtypes: dict[str, str]
    alignment: int


def _jobs(norms: list[_Wanted], gpus: Sequence[Gpu]) -> list[_Job]:
    return [
        _Job(
            gpu,
            wanted.kind,
            wanted.reduce,
            wanted.affine,
            wanted.offset,
            direction,
            shape,
            wanted.rows,
            dtypes,
            alignment,
        )
        for wanted in norms
        for gpu, shape, (direction, dtypes), alignment in itertools.product(
            gpus, wanted.shapes, wanted.passes, wanted.alignments
        )
    ]


def _tensor(shape: list[int], dtype: str, alignment: int) -> structs.DLTensor:
    """A dense tensor on a GPU, without data. Its shape lives as long as it does."""
    return structs.DLTensor(
        data=alignment,
        device=structs.DLDevice(structs.CUDA_DEVICE, 0),
        ndim=len(shape),
        dtype=structs.dtype_of(dtype),
        shape=(ctypes.c_int64 * len(shape))(*shape),
    )


def _tensors(job: _Job, rows: int) -> structs.Tensors:
    """All of x's rank: an axis that a tensor has not is of size 1."""
    shape = [rows, *(size or 1 for size in job.shape[1:])]
    every = set(range(len(shape)))
    axes = {role: set(job.affine) for role in ("weight", "bias", "dweight", "dbias")}
    axes |= {role: every - set(job.reduce) for role in ("mean", "rstd", "m2", "c1", "c2")}
    tensors = structs.Tensors(ctypes.sizeof(structs.Tensors))
    for role, dtype in job.dtypes.items():
        own = axes.get(role, every)
        sizes = [size if axis in own else 1 for axis, size in enumerate(shape)]
        setattr(tensors, role, ctypes.pointer(_tensor(sizes, dtype, job.alignment)))
    return tensors


def _norm(job: _Job) -> structs.Norm:
    return structs.Norm(
        ctypes.sizeof(structs.Norm),
        _KINDS.index(job.kind),
        job.offset,
        sum(1 << axis for axis in set(job.reduce)),
        sum(1 << axis for axis in set(job.affine)),
        1e-5,
    )


def _prepare(job: _Job) -> str:
    """Compiles into the cache folder; an empty text, or why that cannot be."""
    for rows in job.rows:
        try:
            library().pack_prepare(
                structs.Gpu(*job.gpu, 1), _norm(job), job.direction, _tensors(job, rows)
            )
        except RuntimeError as error:
            return f"{rows} x {job.shape[1:]}: {error}"
    return ""


def _use_folder(folder: str) -> None:
    os.environ["PLANISH_CACHE_DIR"] = folder
    os.environ.pop("PLANISH_PACK", None)


def _progress(done: int, count: int, kernels: int) -> None:
    line = f"{done} of {count} passes of norms, {kernels} kernels"
    if sys.stderr.isatty():
        print(f"\r{line}", end="" if done < count else "\n", file=sys.stderr, flush=True)
    elif done == count:
        print(line, file=sys.stderr)


def kernel_files(folder: Path, known: set[str]) -> dict[str, bytes]:
    """The cache's files by name, but for those that are known."""
    found = {}
    for path in folder.glob("*.kernel"):
        if path.name not in known:
            try:
                found[path.name] = path.read_bytes()
            except OSError:  # another process removed it meanwhile
                continue
    return found


def compile_norms(path: Path, gpus: Sequence[Gpu], processes: int) -> dict[str, bytes]:
    """The compiled kernels by the names of their files. They are taken as they come: the cache
    keeps no more than its limit."""
    jobs = _jobs(_read_norms(path), gpus)
    found: dict[str, bytes] = {}
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="planish-pack-") as folder,
        concurrent.futures.ProcessPoolExecutor(
            processes, mp_context=spawn, initializer=_use_folder, initargs=(folder,)
        ) as pool,
    ):
        running = [pool.submit(_prepare, job) for job in jobs]
        for done, future in enumerate(concurrent.futures.as_completed(running), 1):
            if problem := future.result():
                pool.shutdown(cancel_futures=True)
                raise Problem(problem)
            found |= kernel_files(Path(folder), set(found))
            _progress(done, len(jobs), len(found))
    return found
