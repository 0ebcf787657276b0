"""The algorithm of planish.composer, apart because its base class is Composer's."""

from __future__ import annotations

from typing import Any

from composer.core import Algorithm, Event, State

from planish.composer.function import apply_fused_layernorm

__all__ = ["FusedLayerNorm"]


class FusedLayerNorm(Algorithm):  # type: ignore[misc]
    """Puts planish.LayerNorm in the place of every torch.nn.LayerNorm when the Trainer is made, on
    Event.INIT; see :func:`planish.composer.apply_fused_layernorm`.

    ``apply_at``: another event, such as Event.AFTER_LOAD. Names, shapes and objects of the
    parameters do not change, so checkpoints written with it load without it and the other way
    round.
    """

    def __init__(self, apply_at: Any = Event.INIT) -> None:
        self.apply_at = Event(apply_at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(apply_at={self.apply_at})"

    @staticmethod
    def required_on_load() -> bool:
        """A checkpoint does not need it."""
        return False

    def match(self, event: Event, state: State) -> bool:
        """Whether this is its event."""
        del state
        return bool(event == self.apply_at)

    def apply(self, event: Event, state: State, logger: Any) -> None:
        """Replaces the norms of the state's model."""
        del event, logger
        apply_fused_layernorm(state.model, state.optimizers)


FusedLayerNorm.__module__ = "planish.composer"
