"""planish under torch: the same aten operators as the eager provider, with planish enabled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property

import torch

from ..case import Case, Data
from .base import Provider, Role, Run
from .pytorch import eager_run


def enabled() -> AbstractContextManager[object]:
    """A block in which planish is under torch's operators."""
    import planish

    return planish.enabled()


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """A block in which torch is as it is, after the same switching: that leaves the caches cold."""
    with enabled():
        pass
    yield


class PlanishTorch(Provider):
    """What F.layer_norm costs after planish.enable()."""

    name = "planish-torch"
    what = "torch's operators after planish.enable()"
    role: Role = "planish"

    @cached_property
    def _reason(self) -> str | None:
        try:
            with enabled():
                return None
        except Exception as error:  # whatever keeps it from being enabled is the reason to print
            return f"planish.enable() fails: {error}"

    def missing(self) -> str | None:
        """Whether planish can be enabled under this torch; tried once."""
        return self._reason

    def version(self) -> str | None:
        """planish's version."""
        import planish

        return str(getattr(planish, "__version__", None))

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        with enabled():
            run = eager_run(case, data)

        def outputs() -> dict[str, torch.Tensor]:
            with enabled():
                return run.outputs()

        def timed(count: int) -> float:
            with enabled():
                return run.timed(count)

        def call() -> object:
            with enabled():
                return run.call()

        return Run(timed, outputs, call=call)
