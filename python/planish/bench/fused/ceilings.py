"""Ceilings: an element-wise loop that reads and writes as many bytes in as many streams as a work.

On a GPU a kernel in Triton (triton_streams.py). On a CPU a loop in C that is compiled on the spot,
with plain stores and with such as pass the caches by, whichever is the faster.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .way import Prepared, Way
from .works import Data, Work

# A line of 64 bytes of the widest stream at a time. Every stream has as many elements.
TEXT = r"""
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
typedef struct {
    const char *reads[4];
    char *writes[2];
    long size_of_read[4], size_of_write[2];
    int count_of_reads, count_of_writes;
} streams;
typedef unsigned v16 __attribute__((vector_size(64)));
static inline void put(char *to, v16 v, long bytes, int past) {
#if defined(__AVX512F__)
    if (past && bytes == 64) { _mm512_stream_si512((void *)to, (__m512i)v); return; }
#elif defined(__AVX__)
    if (past && bytes == 64) {
        _mm256_stream_si256((void *)to, ((__m256i *)&v)[0]);
        _mm256_stream_si256((void *)(to + 32), ((__m256i *)&v)[1]);
        return;
    }
#endif
    if (bytes == 64) memcpy(to, &v, 64);
    else if (bytes == 32) memcpy(to, &v, 32);
    else if (bytes == 16) memcpy(to, &v, 16);
    else memcpy(to, &v, 8);
}
void stream(const streams *s, long elements, int past, int threads) {
    long widest = 0;
    for (int i = 0; i < s->count_of_reads; i++)
        if (s->size_of_read[i] > widest) widest = s->size_of_read[i];
    long each = 64 / widest, steps = elements / each;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long step = 0; step < steps; step++) {
        v16 v = {0};
        for (int i = 0; i < s->count_of_reads; i++) {
            v16 w = {0};
            memcpy(&w, s->reads[i] + step * each * s->size_of_read[i], 64);
            v += w;
        }
        for (int i = 0; i < s->count_of_writes; i++)
            put(s->writes[i] + step * each * s->size_of_write[i], v, each * s->size_of_write[i],
                past);
    }
#if defined(__x86_64__)
    if (past) _mm_sfence();
#endif
}
"""


class _Streams(ctypes.Structure):
    _fields_ = (
        ("reads", ctypes.c_void_p * 4),
        ("writes", ctypes.c_void_p * 2),
        ("size_of_read", ctypes.c_long * 4),
        ("size_of_write", ctypes.c_long * 2),
        ("count_of_reads", ctypes.c_int),
        ("count_of_writes", ctypes.c_int),
    )


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="planish-bench-") as folder:
        source, made = Path(folder) / "streams.c", Path(folder) / "streams.so"
        source.write_text(TEXT)
        subprocess.run(
            ["cc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", source, "-o", made],
            check=True,
            capture_output=True,
        )
        return ctypes.CDLL(str(made))


def _prepare_cpu(work: Work) -> Prepared:
    reads, writes = work.streams
    inputs = [torch.randint(0, 100, (work.elements * size,), dtype=torch.int8) for size in reads]
    results = [torch.zeros(work.elements * size, dtype=torch.int8) for size in writes]
    described = _Streams(
        (ctypes.c_void_p * 4)(*(t.data_ptr() for t in inputs)),
        (ctypes.c_void_p * 2)(*(t.data_ptr() for t in results)),
        (ctypes.c_long * 4)(*reads),
        (ctypes.c_long * 2)(*writes),
        len(reads),
        len(writes),
    )
    run, threads = _library().stream, torch.get_num_threads()
    elements = ctypes.c_long(work.elements)

    def call(past: int, _kept: object = (inputs, results)) -> None:
        run(ctypes.byref(described), elements, past, threads)

    taken = {0: 1e9, 1: 1e9}
    for _ in range(5):
        for past in taken:
            begin = time.perf_counter()
            call(past)
            taken[past] = min(taken[past], time.perf_counter() - begin)
    best = min(taken, key=lambda past: taken[past])

    def outputs() -> dict[str, Tensor]:
        call(best)
        total = sum(t.view(torch.int32) for t in inputs)
        assert isinstance(total, Tensor)
        # A narrower stream takes the first bytes of each line of 64.
        lines = total.view(torch.int8).view(-1, 64)
        return {
            str(i): t - lines[:, : 64 * size // reads[0]].reshape(-1)
            for i, (t, size) in enumerate(zip(results, writes, strict=True))
        }

    return Prepared([lambda: call(best)], outputs)


class Ceiling(Way):
    """The same bytes in the same streams, with no arithmetic worth speaking of."""

    name = "ceiling"
    what = "an element-wise loop over as many bytes in as many streams"

    def missing(self, device: str) -> str | None:
        """Whether there is Triton, or a C compiler."""
        if device == "cuda":
            found = importlib.util.find_spec("triton")
            return None if found else "triton is not installed"
        return None if shutil.which("cc") else "there is no C compiler (cc) on PATH"

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """All works."""
        if work.device == "cpu":
            return _prepare_cpu(work)
        from . import triton_streams

        return triton_streams.prepare(work, sets)
