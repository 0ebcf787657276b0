"""Compiles what the cases of a sweep need, in several processes at once, before anything is timed.

Providers that compile (torch.compile, Triton, quack, planish) keep what they make on disk, where
the bench's own process then finds it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
from collections.abc import Sequence

from .case import Case, make_data
from .providers import gpu_providers


def _prepare(case: Case, names: Sequence[str]) -> None:
    """One case over all providers; what fails here fails again, and is reported, when measured."""
    data = make_data(case)
    for provider in gpu_providers():
        if provider.name in names and provider.missing() is None:
            with contextlib.suppress(Exception):
                run = provider.prepare(case, data)
                run.outputs()
                run.close()


def compile_ahead(cases: Sequence[Case], names: Sequence[str], processes: int) -> None:
    """Prepares every case once, in `processes` processes; shows progress."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        jobs = [pool.submit(_prepare, case, names) for case in cases]
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            job.result()
            print(f"\rcompiled ahead: {done} of {len(cases)} cases", end="", flush=True)
    print()
