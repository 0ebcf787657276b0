"""Compiles the kernels that cases need on this GPU into the kernel cache, by several processes.

Imports no torch: it is what every one of those processes imports.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import multiprocessing
import os
from collections.abc import Sequence

from planish.commands.pack import gpus_here
from planish.library import structs
from planish.library.ahead import Gpu
from planish.library.loaded import library

from .case import ACTIVATIONS, DIRECTIONS, FULL, KINDS, Case, mask

#: Of every tensor's data, as problem.py has them, in bytes.
ALIGNMENT = 128
MOST_PROCESSES = 16


def _tensor(case: Case, role: str) -> structs.DLTensor:
    sizes, dtype = case.sizes_of(role), case.dtype_of(role)
    steps, length = [0] * len(sizes), case.step if role in FULL else 1
    for axis in reversed(case.order_of(role)):
        steps[axis] = length
        length *= sizes[axis]
    return structs.DLTensor(
        data=ALIGNMENT,
        device=structs.DLDevice(structs.CUDA_DEVICE, 0),
        ndim=len(sizes),
        dtype=structs.dtype_of(dtype),
        shape=(ctypes.c_int64 * len(sizes))(*sizes),
        strides=(ctypes.c_int64 * len(sizes))(*steps),
    )


def norm_of(case: Case, eps: float) -> structs.Norm:
    """The operator of a case."""
    return structs.Norm(
        ctypes.sizeof(structs.Norm),
        kind=KINDS.index(case.kind),
        reduce_axes=mask(case.reduce),
        affine_axes=mask(case.affine),
        eps=eps,
        activation=ACTIVATIONS.index(case.activation),
        modulation_axes=mask(case.affine) if case.stage == "modulated" else 0,
    )


def compile_one(case: Case, gpu: Gpu, eps: float) -> str:
    """Compiles what one case needs; an empty text, or why that cannot be."""
    planish = library()  # it says which tensors there are
    tensors = structs.Tensors(ctypes.sizeof(structs.Tensors))
    for role in (*case.inputs, *case.outputs):
        setattr(tensors, role, ctypes.pointer(_tensor(case, role)))
    norm = norm_of(case, eps)
    direction = DIRECTIONS.index(case.direction)
    try:
        planish.pack_prepare(structs.Gpu(*gpu, 1), norm, direction, tensors)
    except RuntimeError as error:
        return str(error)
    return ""


def compile_all(cases: Sequence[Case], eps: float = 1e-5) -> list[tuple[str, str]]:
    """Compiles what all need for the first GPU here; the names and problems of those that are not,
    which is no error: they are compiled when they run."""
    gpus = gpus_here()
    if not gpus:
        return []
    processes = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(cases)))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        running = [(case.name, pool.submit(compile_one, case, gpus[0], eps)) for case in cases]
        found = [(name, future.result()) for name, future in running]
    return [(name, problem) for name, problem in found if problem]
