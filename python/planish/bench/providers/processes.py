"""Providers measured in processes of their own: with malloc as users have it or keeping its pages
(allocator.py says why), and planish-torch apart from torch, so that it stays enabled.

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
from ..timing import Seconds
from .base import Provider, Role, Run, UnsupportedError


def checksum(outputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """A checksum of the bits of each tensor."""
    return {
        name: zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        for name, tensor in outputs.items()
    }


class Worker:
    """The bench's end of one pipe. The process starts at the first request.

    ``kept``: its malloc keeps its pages. ``planish``: it enables planish once, at its start, so
    that no switching comes between the trials.
    """

    def __init__(self, kept: bool = False, planish: bool = False) -> None:
        self.kept = kept
        self.planish = planish
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> Any:
        """Sends one request and waits for its answer."""
        if self._process is None:
            threads = torch.get_num_threads()
            environment = allocator.keeping if self.kept else allocator.ordinary
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "planish.bench.worker",
                    str(threads),
                    str(int(self.planish)),
                ],
                env=environment(os.environ, threads),
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


class Workers:
    """One worker process for each way to run one."""

    def __init__(self) -> None:
        self._workers: dict[tuple[bool, bool], Worker] = {}

    def get(self, kept: bool, planish: bool) -> Worker:
        """The worker of that kind."""
        return self._workers.setdefault((kept, planish), Worker(kept, planish))

    def close(self) -> None:
        """Ends all of them."""
        for worker in self._workers.values():
            worker.close()


class Apart(Provider):
    """Another provider, measured in a worker process.

    Its results are checked through those of the same provider in this process: the bits must be the
    same.
    """

    def __init__(self, inner: Provider, kept: bool, workers: Workers) -> None:
        self.inner = inner
        self.name = f"{inner.name}-kept" if kept else inner.name
        allocation = "malloc keeps its pages" if kept else "malloc as users have it"
        self.what = f"{inner.what}; {allocation}"
        self.role: Role = inner.role
        self.images = inner.images
        self.worker = workers.get(kept, inner.role == "planish")

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
            return Seconds(*self.worker.ask(do="time", provider=self.inner.name, count=count))

        return Run(timed, outputs, close)
