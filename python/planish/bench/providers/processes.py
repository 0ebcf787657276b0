"""The same provider in two processes: one whose malloc keeps its pages, one whose malloc is as
users have it (allocator.py says why).

This is the bench's end of the pipe; worker.py is the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from typing import Any

import torch

from .. import allocator
from ..case import Case, Data
from .base import Provider, Role, Run, UnsupportedError


def checksum(outputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """A checksum of the bits of each tensor."""
    return {
        name: zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        for name, tensor in outputs.items()
    }


class Worker:
    """The bench's end of the pipe. The process starts at the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> Any:
        """Sends one request and waits for its answer."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "planish.bench.worker", str(torch.get_num_threads())],
                env=allocator.ordinary(os.environ, torch.get_num_threads()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._process = None
            raise RuntimeError(f"the bench's worker process ended with status {code}")
        answer = json.loads(line)
        if "unsupported" in answer:
            raise UnsupportedError(answer["unsupported"])
        return answer["answer"]

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


class AsUsersSeeIt(Provider):
    """Another provider, measured in the worker process.

    Its results are checked through those of the same provider in this process: the bits must be the
    same.
    """

    def __init__(self, inner: Provider, name: str, worker: Worker) -> None:
        self.inner = inner
        self.name = name
        self.what = f"{inner.what}; malloc as users have it"
        self.role: Role = inner.role
        self.worker = worker

    def missing(self) -> str | None:
        """Whatever the inner provider misses."""
        return self.inner.missing()

    def version(self) -> str | None:
        """The inner provider's version."""
        return self.inner.version()

    def prepare(self, case: Case, data: Data) -> Run:
        """Prepares the case here for the check and in the worker for the clock."""
        if case.device != "cpu":
            raise UnsupportedError("malloc has no part in GPU memory")
        here = self.inner.prepare(case, data)
        there: dict[str, int] = self.worker.ask(
            do="prepare", provider=self.inner.name, case=vars(case)
        )

        def outputs() -> dict[str, torch.Tensor]:
            found = here.outputs()
            if checksum(found) != there:
                raise RuntimeError("two processes computed different bits from the same input")
            return found

        def close() -> None:
            here.close()
            self.worker.ask(do="close", provider=self.inner.name)

        def timed(count: int) -> float:
            return float(self.worker.ask(do="time", provider=self.inner.name, count=count))

        return Run(timed, outputs, close)


class Kept(Provider):
    """Another provider, measured in this process, whose malloc keeps its pages."""

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.name = f"{inner.name}-kept"
        self.what = f"{inner.what}; malloc keeps its pages"
        self.role: Role = inner.role

    def missing(self) -> str | None:
        """Whatever the inner provider misses, or an allocator that was not told."""
        if not allocator.keeps_pages():
            return "this process was not started with malloc told to keep its pages"
        return self.inner.missing()

    def version(self) -> str | None:
        """The inner provider's version."""
        return self.inner.version()

    def prepare(self, case: Case, data: Data) -> Run:
        """All that the inner provider does."""
        return self.inner.prepare(case, data)
