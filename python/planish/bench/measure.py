"""Measures one case over many providers: prepare, check against the reference, then time by turns.

A provider that computes something else is reported as wrong and never timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .accuracy import WRONG_ULP, Spread, compare
from .case import Case, Data, make_data
from .gpu import data_sets, replayed, side_stream
from .providers.base import Provider, Run, UnsupportedError
from .timing import Effort, Sample, Timed, interleave


@dataclass(frozen=True)
class Result:
    """One provider at one case. Times and errors are None unless the status is "ok" (errors also
    where it is "wrong")."""

    work: str
    rows: int
    cols: int
    dtype: str
    kind: str
    direction: str
    provider: str
    role: str
    status: str  # ok, wrong, unsupported, failed
    reason: str = ""
    microseconds: float | None = None
    microseconds_q1: float | None = None
    microseconds_q3: float | None = None
    trials: int = 0
    gb_per_s: float | None = None
    ulp_y: float | None = None
    ulp_dx: float | None = None
    ulp_dweight: float | None = None
    ulp_dbias: float | None = None
    noisy: bool = False  # whether the trials leave open what it takes: then no time is shown


def _result(case: Case, provider: Provider, status: str, reason: str = "") -> Result:
    return Result(
        case.label, case.rows, case.cols, case.dtype, case.kind, case.direction, provider.name,
        provider.role, status, reason,
    )  # fmt: skip


def _ceiling_error(data: Data, outputs: dict[str, torch.Tensor]) -> str | None:
    """Why a ceiling's result is wrong; None if it is right."""
    if "copy" in outputs and not torch.equal(outputs["copy"], data.x):
        return "the copy differs from x"
    if "add" in outputs and not torch.equal(outputs["add"], torch.add(data.x, data.dy)):  # type: ignore[arg-type]
        return "the sum differs from dy + x"
    return None


def _verdict(spreads: dict[str, Spread]) -> str:
    """What is wrong with a result; empty if nothing is."""
    worst = [
        f"{key} is {s.coarse:.3g} ULP off" for key, s in spreads.items() if s.coarse > WRONG_ULP
    ]
    return "; ".join(worst)


def _timed(result: Result, case: Case, sample: Sample) -> Result:
    q1, q3 = sample.quartiles
    return Result(
        **{
            **vars(result),
            "microseconds": sample.median * 1e6,
            "microseconds_q1": q1 * 1e6,
            "microseconds_q3": q3 * 1e6,
            "trials": len(sample.seconds),
            "gb_per_s": case.needed_bytes / sample.median / 1e9,
            "noisy": sample.noisy,
        }
    )


def _clock(case: Case, runs: Sequence[Run]) -> Timed:
    """How a provider's runs, one for each set of data, are timed."""
    return runs[0].timed if case.device == "cpu" else replayed([run.call for run in runs])


def measure(case: Case, providers: Sequence[Provider], effort: Effort) -> list[Result]:
    """One result for each provider, in the order given; a missing provider gets none (it is named
    once for the whole run)."""
    data = make_data(case)
    sets = data_sets(case, data)
    results: dict[str, Result] = {}
    works: dict[str, Timed] = {}
    outputs: dict[str, dict[str, torch.Tensor]] = {}
    kept: list[Run] = []  # a timed call may write where only the run's outputs() hold the memory
    with contextlib.ExitStack() as stack:
        for provider in providers:
            if provider.missing() is not None:
                continue
            try:
                if case.image is not None and not provider.images:
                    raise UnsupportedError("no LayerNorm over the channels of NCHW here")
                runs = []
                with side_stream() if case.device == "cuda" else contextlib.nullcontext():
                    for one in sets:
                        runs.append(provider.prepare(case, one))
                        stack.callback(runs[-1].close)
                    kept += runs
                    # The next provider may write to the same memory.
                    outputs[provider.name] = {k: v.clone() for k, v in runs[0].outputs().items()}
                works[provider.name] = _clock(case, runs)
            except UnsupportedError as error:
                results[provider.name] = _result(case, provider, "unsupported", str(error))
            except Exception as error:  # a peer's failure must not end the run, and is reported
                text = str(error).strip() or type(error).__name__
                results[provider.name] = _result(case, provider, "failed", text.splitlines()[0])
        spreads = compare(case, data, outputs)
        for provider in providers:
            if provider.name not in works:
                continue
            found = spreads[provider.name]
            ceiling_error = _ceiling_error(data, outputs[provider.name])
            verdict = ceiling_error or _verdict(found)
            errors = {
                f"ulp_{key}": round(found[key].largest, 4)
                for key in ("y", "dx", "dweight", "dbias")
                if key in found
            }
            checked = _result(case, provider, "wrong" if verdict else "ok", verdict)
            results[provider.name] = Result(**{**vars(checked), **errors})
            if verdict:
                del works[provider.name]
        del outputs, spreads
        samples = interleave(works, effort)
        for name, sample in samples.items():
            results[name] = _timed(results[name], case, sample)
    return [results[p.name] for p in providers if p.name in results]
