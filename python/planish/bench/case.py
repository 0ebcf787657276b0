"""One piece of work to measure: a shape, a dtype, a layer and a direction, and its input.

Knows how many bytes the work has to move. Does not know who does the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from planish.library.dtypes import BY_NAME

Direction = Literal["forward", "backward"]
Kind = Literal["layer", "rms"]

DTYPE_BYTES = {name: dtype.itemsize for name, dtype in BY_NAME.items()}


@dataclass(frozen=True)
class Case:
    """LayerNorm or RMSNorm over the last axis of a dense (rows, cols) tensor, with weight and bias.

    With ``image``, (height, width), the rows are the pixels of a (batch, cols, height, width)
    tensor in NCHW: LayerNorm or RMSNorm over its channels. The data of a case is (rows, cols) all
    the same; a provider that knows images lays it out by ``nchw``, its results by ``by_pixel``.

    ``mean`` and ``scale`` set the distribution of x: scale * (normal + mean).
    """

    rows: int
    cols: int
    dtype: str = "f32"
    direction: Direction = "forward"
    kind: Kind = "layer"
    eps: float = 1e-5
    mean: float = 0.0
    scale: float = 1.0
    seed: int = 0
    device: str = "cpu"
    image: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """The shape as people write it."""
        if self.image is not None:
            height, width = self.image
            return f"{self.rows // (height * width)} x {self.cols} x {height} x {width}"
        return f"{self.rows} x {self.cols}"

    @property
    def elements(self) -> int:
        """Elements of x."""
        return self.rows * self.cols

    @property
    def needed_bytes(self) -> int:
        """The bytes that any implementation must move: every input read once, every output
        written once.

        Forward: x, y, weight, bias and the saved statistics. Backward: dy, x, dx, weight, the
        saved statistics, dweight and dbias. Statistics count as f32 (f64 for f64). RMSNorm has
        neither bias nor mean.
        """
        item = DTYPE_BYTES[self.dtype]
        parameters = 2 if self.kind == "layer" else 1
        statistics = parameters * max(item, 4) * self.rows
        if self.direction == "forward":
            return 2 * self.elements * item + parameters * self.cols * item + statistics
        return 3 * self.elements * item + (1 + parameters) * self.cols * item + statistics


def nchw(case: Case, t: torch.Tensor) -> torch.Tensor:
    """A (rows, cols) tensor as (batch, channels, height, width), dense; itself without an image."""
    if case.image is None:
        return t
    return t.view(-1, *case.image, case.cols).permute(0, 3, 1, 2).contiguous()


def by_pixel(case: Case, t: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    return t if case.image is None else t.permute(0, 2, 3, 1).reshape(case.rows, case.cols)


@dataclass(frozen=True)
class Data:
    """The input of a case. ``dy`` is there for backward only, ``bias`` for LayerNorm only.

    ``result`` is where y or dx goes with all who write to the caller's memory. It is the same for
    all of them: where a buffer lies in memory can make half of the difference between two cells.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    dy: torch.Tensor | None
    result: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", torch.empty_like(self.x))


def make_data(case: Case) -> Data:
    """Makes the input of a case: the same for the same case, in any process."""
    dtype = BY_NAME[case.dtype]
    generator = torch.Generator(case.device).manual_seed(case.seed)
    wide = torch.float64 if case.dtype == "f64" or case.scale != 1.0 else torch.float32

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=wide, device=case.device)

    x = normal(case.rows, case.cols)
    if case.mean != 0.0:
        x += case.mean
    if case.scale != 1.0:
        x *= case.scale
    weight = (normal(case.cols) * 0.25 + 1.0).to(dtype)
    bias = (normal(case.cols) * 0.25).to(dtype) if case.kind == "layer" else None
    dy = normal(case.rows, case.cols).to(dtype) if case.direction == "backward" else None
    return Data(x.to(dtype), weight, bias, dy)
