"""planish under torch: the same aten operators as the eager provider, with planish enabled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ..case import Case, Data
from .base import Provider, Role, Run
from .pytorch import eager_run

T = TypeVar("T")


def while_enabled(work: Callable[[], T]) -> T:
    """Runs something with planish enabled, and only that."""
    import planish

    with planish.enabled():
        return work()


class PlanishTorch(Provider):
    """What F.layer_norm costs after planish.enable()."""

    name = "planish-torch"
    what = "torch's operators after planish.enable()"
    role: Role = "planish"

    def missing(self) -> str | None:
        """Whether planish can be enabled under this torch."""
        try:
            while_enabled(lambda: None)
        except Exception as error:  # whatever keeps it from being enabled is the reason to print
            return f"planish.enable() fails: {error}"
        return None

    def version(self) -> str | None:
        """planish's version."""
        import planish

        return str(getattr(planish, "__version__", None))

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        run = while_enabled(lambda: eager_run(case, data))

        def outputs() -> dict[str, torch.Tensor]:
            return while_enabled(run.outputs)

        return Run(lambda count: while_enabled(lambda: run.timed(count)), outputs)
