"""The rows of the table: which stages stand around which norm, in which shapes, and their data.

Knows how many bytes a work has to move, in how many streams. Does not know who does it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from planish.library.dtypes import BY_NAME
from torch import Tensor

from ..case import DTYPE_BYTES

#: Samples that scale and shift are of.
SAMPLES = 8
HEAD = 128
DROPOUT = 0.1
#: The static scale of a whole tensor: y is about normal, and 11 of it becomes 448.
STATIC = 0.025

Shapes = tuple[tuple[int, int], ...]
LONG = ((4096, 1024), (4096, 4096), (4096, 8192), (4096, 15872), (16384, 4096))
SHORT = ((401408, 96), (401408, 512))
FEW = ((4096, 4096), (16384, 4096), (401408, 512))
DECODE = ((1, 4096), (16, 8192), (128, 4096))
# From the cache, then from memory.
CPU = ((256, 1024), (64, 4096), (32768, 1024), (8192, 4096))
CPU_FEW = ((64, 4096), (8192, 4096))
#: Where torch.compile is measured unless all of them are asked for: it compiles each for seconds.
COMPILED = {(4096, 4096), (16384, 4096), (401408, 512), (16, 8192), (64, 4096), (8192, 4096)}


@dataclass(frozen=True)
class Work:
    """One norm with its stages, one direction, one shape.

    ``row`` names the stages: add (a residual), dropout (and a residual), modulated, gated, fp8-row,
    fp8-tensor, fp8-128, fp8-row-add (a residual), qk (``heads`` of queries and of keys, slices of
    a packed qkv, each row of a head being a row).
    """

    group: str  # what --only names
    row: str
    kind: str
    direction: str
    rows: int
    cols: int
    dtype: str
    device: str
    heads: int = 1

    @property
    def label(self) -> str:
        """The shape as people write it."""
        heads = f"{self.heads} x " if self.heads > 1 else ""
        return f"{self.rows} x {heads}{self.cols}"

    @property
    def title(self) -> str:
        """The norm and its stages."""
        layer = "LayerNorm" if self.kind == "layer" else "RMSNorm"
        return f"{self.row} {layer} {self.direction}, {self.dtype}"

    @property
    def has_residual(self) -> bool:
        """Whether a residual is added."""
        return self.row in ("add", "dropout", "fp8-row-add")

    @property
    def quantised(self) -> str:
        """What has a scale of its own: row, tensor, 128, or nothing."""
        return self.row.split("-")[1] if self.row.startswith("fp8") else ""

    @property
    def eps(self) -> float:
        """Added to the variance."""
        return 1e-6

    @property
    def streams(self) -> tuple[list[int], list[int]]:
        """(bytes of an element of each tensor of x's size that is read, of each written)."""
        item = DTYPE_BYTES[self.dtype]
        if self.quantised:
            residual = [item] if self.has_residual else []
            return [item, *residual], [*residual, 1]
        reads, writes = {
            ("add", "forward"): (2, 2),
            ("add", "backward"): (3, 1),  # dx is dresidual
            ("dropout", "forward"): (2, 2),
            ("dropout", "backward"): (3, 2),
            ("modulated", "forward"): (1, 1),
            ("modulated", "backward"): (2, 1),
            ("gated", "forward"): (2, 1),
            ("gated", "backward"): (3, 2),
            ("qk", "forward"): (2, 2),
            ("qk", "backward"): (4, 2),
        }[self.row, self.direction]
        return [item] * reads, [item] * writes

    @property
    def elements(self) -> int:
        """Elements of one stream."""
        return self.rows * self.heads * self.cols

    @property
    def needed_bytes(self) -> int:
        """The bytes of all streams."""
        reads, writes = self.streams
        return self.elements * (sum(reads) + sum(writes))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that have a gradient, in the order of all functions."""
        if self.row == "qk":
            return ("q", "k", "q_weight", "k_weight")
        names = ["x"]
        if self.has_residual:
            names.append("residual")
        if self.row == "modulated":
            return (*names, "scale", "shift")
        if self.row == "gated":
            names.append("gate")
        return (*names, "weight", "bias") if self.kind == "layer" else (*names, "weight")

    @property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that come in, in the order of the results."""
        if self.row == "qk":
            return ("dq", "dk")
        return ("dy", "dsum") if self.has_residual else ("dy",)


Data = dict[str, Tensor]


def make_data(work: Work, seed: int = 0) -> Data:
    """Every tensor of a work: the same for the same work, in any process."""
    generator = torch.Generator(work.device).manual_seed(seed)
    dtype = BY_NAME[work.dtype]

    def normal(*shape: int) -> Tensor:
        made = torch.randn(*shape, generator=generator, device=work.device)
        return made.to(dtype)

    def around(value: float, *shape: int) -> Tensor:
        made = torch.randn(*shape, generator=generator, device=work.device)
        return (made * 0.25 + value).to(dtype)

    cols, data = work.cols, Data()
    if work.row == "qk":
        data["qkv"] = normal(work.rows, 3, work.heads, cols)
        data["q_weight"], data["k_weight"] = around(1.0, cols), around(1.0, cols)
        if work.direction == "backward":
            data["dq"], data["dk"] = (normal(work.rows, work.heads, cols) for _ in range(2))
        return data
    shape: tuple[int, ...] = (work.rows, cols)
    if work.row == "modulated":
        samples = math.gcd(SAMPLES, work.rows)
        shape = (samples, work.rows // samples, cols)
        data["scale"], data["shift"] = (around(0.0, samples, 1, cols) for _ in range(2))
    data["x"] = normal(*shape)
    if work.row == "dropout":  # dropped or not must be seen in the rounded sum
        data["x"] += torch.sign(data["x"])
    if work.has_residual:
        data["residual"] = normal(*shape)
    if work.row == "gated":
        data["gate"] = normal(*shape)
    if work.row != "modulated":
        data["weight"] = around(1.0, cols)
        if work.kind == "layer":
            data["bias"] = around(0.0, cols)
    if work.quantised == "tensor":
        data["static"] = torch.full((), STATIC, device=work.device)
    if work.direction == "backward":
        data["dy"] = normal(*shape)
        if work.has_residual:
            data["dsum"] = normal(*shape)
    return data


def with_slices(data: Data) -> Data:
    """The data with queries and keys as slices of the packed tensor."""
    if "qkv" not in data:
        return data
    return {**data, "q": data["qkv"][:, 0], "k": data["qkv"][:, 1]}


def copies(data: Data, count: int) -> list[Data]:
    """The data and copies of it in memory of their own."""
    made = [data, *({name: t.clone() for name, t in data.items()} for _ in range(count - 1))]
    return [with_slices(one) for one in made]


GROUPS = ("add", "dropout", "modulated", "gated", "fp8", "qk", "decode")
BOTH = ("forward", "backward")


def works(
    device: str, dtypes: Iterable[str], only: Sequence[str], quick: bool = False
) -> list[Work]:
    """The table's works, group after group."""
    cuda = device == "cuda"
    every: Shapes = (*LONG, *SHORT) if cuda else CPU
    few: Shapes = FEW if cuda else CPU_FEW
    decode: Shapes = DECODE if cuda else DECODE[:2]
    if quick:
        every = few = ((16384, 4096),) if cuda else ((64, 4096),)
        decode = decode[:1]
    made: list[Work] = []

    def add(
        group: str,
        row: str,
        kinds: Sequence[str],
        directions: Sequence[str],
        shapes: Shapes,
        heads: int = 1,
    ) -> None:
        made.extend(
            Work(group, row, kind, direction, *shape, dtype, device, heads)
            for dtype in dtypes
            for kind in kinds
            for direction in directions
            for shape in shapes
        )

    add("add", "add", ("rms", "layer"), BOTH, every)
    add("dropout", "dropout", ("rms", "layer"), BOTH, few)
    add("modulated", "modulated", ("layer",), BOTH, every)
    add("gated", "gated", ("rms",), BOTH, every)
    add("fp8", "fp8-row", ("rms",), ("forward",), every)
    for row in ("fp8-tensor", "fp8-128", "fp8-row-add"):
        add("fp8", row, ("rms",), ("forward",), few)
    add("qk", "qk", ("rms",), BOTH, ((4096 if cuda else 512, HEAD),), 32)
    add("decode", "add", ("rms",), ("forward",), decode)
    add("decode", "fp8-row", ("rms",), ("forward",), decode)
    return [work for work in made if not only or work.group in only]
