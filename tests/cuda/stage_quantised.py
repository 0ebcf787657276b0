"""What quantised outputs of a forward with stages have to be: their scales, and q itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stage_reference import UNITS, ordered
from torch.nn import functional

import torch

if TYPE_CHECKING:
    from stage_forward import ForwardCase

QUANTISED = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i8": torch.int8}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "i8": 127.0}


def scale_of(case: ForwardCase, most: torch.Tensor) -> torch.Tensor:
    """The scale of elements of which the largest is `most`."""
    found = most.float() / LARGEST[case.q]
    if case.least:
        found = found.clamp_min(case.least)
    found = torch.where(found == 0, torch.ones(()), found)
    if case.power_of_two or case.e8m0:
        found = torch.exp2(torch.ceil(torch.log2(found.double()))).float()
    return (found.clamp_max(case.most) if case.most else found).double()


def quantised(case: ForwardCase, v: torch.Tensor) -> torch.Tensor:
    """v in the type of q."""
    v = v.clamp(-LARGEST[case.q], LARGEST[case.q])
    return v.round() if case.q == "i8" else v.to(QUANTISED[case.q]).double()


def check_q(
    case: ForwardCase, got: dict[str, torch.Tensor], y: torch.Tensor, room: torch.Tensor
) -> Iterable[str]:
    """q against y divided by the scale that was written, and that against the largest y."""
    cols = math.prod(case.shape[i] for i in case.dims())
    last = list(range(-len(case.dims()), 0))
    unit = UNITS[case.wide()]

    def rows(t: torch.Tensor) -> torch.Tensor:
        return t.expand(case.shape).movedim(case.dims(), last).reshape(-1, cols)

    y, room, q = rows(y), rows(room), rows(got["q"].float()).double()
    block = case.block or cols
    if case.y_scale:
        scale = got["y_scale"].double().reshape(1, 1)
    else:
        scale = got["y_scales"].float().double().reshape(y.shape[0], -1)
        low, best, high = (
            scale_of(
                case,
                functional.pad((y.abs() + side * room).clamp_min(0), (0, -cols % block))
                .reshape(y.shape[0], -1, block)
                .amax(-1),
            )
            for side in (-1, 0, 1)
        )
        slack = 0 if case.power_of_two or case.e8m0 else 2 * UNITS["f32"]  # of a division
        wrong = ordered(scale, low * (1 - slack), high * (1 + slack), best)
        yield from (f"y_scales: {w}" for w in wrong)
        scale = scale.repeat_interleave(block, 1)[:, :cols]
    v = y / scale
    room = room / scale + 2 * unit * v.abs()
    sides = (quantised(case, v + side * room) for side in (-1, 1, 0))
    yield from (f"q: {w}" for w in ordered(q, *sides))
