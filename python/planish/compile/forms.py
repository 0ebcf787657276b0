"""planish::graph_forward and graph_backward (src/torch/graph_norms.c): the forms of a norm that
stand in compiled graphs. All their arguments are tensors and numbers, so that what inductor writes
calls them without Python of planish's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from planish.operators import fakes
from planish.operators.call import Tensors
from planish.operators.formulas import Given

__all__ = ["BACKWARD", "FORWARD", "form", "given_bits", "is_form", "register"]

FORWARD, BACKWARD = "graph_forward", "graph_backward"

#: name: fake of the operator with every argument, its tensors, its numbers behind `given`, results
_FAMILIES: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    FORWARD: (fakes.forward, len(Tensors._fields), 5, 4),
    BACKWARD: (fakes.backward, len(Given._fields), 4, 8),
}


def given_bits(tensors: Sequence[Any]) -> int:
    """Which of an operator's tensors are there."""
    return sum(1 << place for place, tensor in enumerate(tensors) if tensor is not None)


def form(name: str, tensors: int, results: int) -> Any:
    """The operator of this family with so many tensors and results."""
    return getattr(getattr(torch.ops.planish, name), f"t{tensors}_r{results}")


def is_form(target: Any) -> bool:
    packet = getattr(target, "overloadpacket", None)
    return packet in (torch.ops.planish.graph_forward, torch.ops.planish.graph_backward)


def _fake(name: str) -> Callable[..., Any]:
    whole, count, numbers, _ = _FAMILIES[name]

    def fake(*arguments: Any) -> Any:
        tensors = iter(arguments[: -numbers - 1])
        given, *rest = arguments[-numbers - 1 :]
        full = [next(tensors) if given >> place & 1 else None for place in range(count)]
        results = [result for result in whole(*full, *rest) if result is not None]
        return results[0] if len(results) == 1 else tuple(results)

    return fake


@functools.cache
def register() -> None:
    """Tells torch what the forms return for fake tensors, once."""
    for name, (_, count, _, results) in _FAMILIES.items():
        fake = _fake(name)
        for tensors in range(1 if name == FORWARD else 3, count + 1):
            for result in range(1, results + 1):
                torch.library.register_fake(f"planish::{name}.t{tensors}_r{result}", fake)
