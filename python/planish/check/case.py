"""One kernel at one shape: what it is asked to do, and which plan has to run it. Runs nothing.

A case is a row of a table (cpu_table.py, cuda_table.py). The tiers of a CPU are not part of it:
every case is run by each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Direction = Literal["forward", "backward", "from-y", "statistics", "apply"]
Kind = Literal["layer", "rms"]
Activation = Literal["", "silu", "relu"]
#: What stands around the norm: x + residual before it, scale and shift or a gate behind it.
Stage = Literal["residual", "modulated", "gated"]

#: planish_pass, planish_kind and planish_activation by their names here.
DIRECTIONS = ("forward", "backward", "from-y", "statistics", "apply")
KINDS = ("layer", "rms")
ACTIVATIONS = ("", "silu", "relu")

#: Tensors of x's shape, and those of the affine axes. The others have a value for each row.
FULL = ("x", "y", "dy", "dx", "residual", "sum", "dsum", "gate")
AFFINE = ("weight", "bias", "dweight", "dbias", "scale", "shift")
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "forward": (("x", "weight", "bias"), ("y", "mean", "rstd")),
    "backward": (("dy", "x", "mean", "rstd", "weight"), ("dx", "dweight", "dbias")),
    "from-y": (("dy", "y", "rstd", "weight", "bias"), ("dx", "dweight", "dbias")),
    "statistics": (("x",), ("mean", "m2")),
    "apply": (("x", "mean", "rstd", "weight", "bias"), ("y",)),
}
#: What a stage adds to them: inputs and outputs.
STAGE_ROLES: dict[tuple[Stage, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("residual", "forward"): (("residual",), ("sum",)),
    ("residual", "backward"): (("dsum",), ()),
    ("modulated", "forward"): (("scale", "shift"), ()),
    ("gated", "forward"): (("gate",), ()),
}


@dataclass(frozen=True)
class Case:
    """A norm of one dtype over one shape, and the plan that has to take it."""

    #: What it is called by: the family of kernels, and words that tell it from others of it.
    kernel: str
    words: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    #: Axes of x that the moments are taken over, and those of weight and bias.
    reduce: tuple[int, ...]
    affine: tuple[int, ...]
    direction: Direction
    #: What planish_plan_describe has to say: on a CPU the path, on a GPU a regular expression.
    wanted: str
    kind: Kind = "layer"
    activation: Activation = ""
    stage: Stage | None = None
    #: Dtype of weight, bias and their gradients where it is not x's; of y and dx likewise.
    weight_dtype: str = ""
    result_dtype: str = ""
    #: Order of the axes in memory, outermost first, where it is not theirs; that of y and dx where
    #: it is not x's; and how many elements the innermost ones are apart.
    order: tuple[int, ...] = ()
    result_order: tuple[int, ...] = ()
    step: int = 1
    #: What x is multiplied by; dy likewise, whose mean is then as large, of another sign along axis
    #: 0 by turns; and how often the first rows are repeated along axis 0.
    scale: float = 1.0
    dy_scale: float = 1.0
    repeats: int = 1
    #: Shapes that are checked but not timed.
    also: tuple[tuple[int, ...], ...] = field(default=())
    device: str = "cpu"

    @property
    def names(self) -> tuple[str, ...]:
        """All words it can be chosen by."""
        return (self.kernel, *self.words, self.dtype)

    @property
    def variant(self) -> str:
        """What tells it from others of its kernel."""
        return " ".join(self.words)

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"{self.kernel} {self.variant} {self.dtype}"

    @property
    def is_double(self) -> bool:
        """Whether the arithmetic is f64."""
        return "f64" in (self.dtype, self.weight_dtype, self.result_dtype)

    @property
    def statistics_dtype(self) -> str:
        """Of mean, rstd and m2: f64 where f32 would lose what the pass needs."""
        exact = self.is_double or self.activation or self.direction in ("statistics", "apply")
        return "f64" if exact else "f32"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that are read."""
        roles = ROLES[self.direction][0]
        if self.direction == "backward" and self.activation:
            roles = (*roles, "bias")
        return tuple(role for role in (*roles, *self._stage_roles[0]) if self._has(role))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that are written."""
        roles = (*ROLES[self.direction][1], *self._stage_roles[1])
        return tuple(role for role in roles if self._has(role))

    @property
    def _stage_roles(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return STAGE_ROLES[self.stage, self.direction] if self.stage else ((), ())

    def _has(self, role: str) -> bool:
        return not (self.kind == "rms" and role in ("mean", "bias", "dbias"))

    def dtype_of(self, role: str) -> str:
        """The dtype of a tensor."""
        if role in AFFINE:
            return self.weight_dtype or self.dtype
        if role in FULL:
            return (self.result_dtype or self.dtype) if role in ("y", "dx") else self.dtype
        return self.statistics_dtype

    def sizes_of(self, role: str) -> tuple[int, ...]:
        """The shape of a tensor, of x's rank, with 1 on the axes that it has not."""
        if role in FULL:
            return self.shape
        affine = role in AFFINE
        own = [
            i
            for i in range(len(self.shape))
            if (i in self.affine if affine else i not in self.reduce)
        ]
        return tuple(size if i in own else 1 for i, size in enumerate(self.shape))

    def order_of(self, role: str) -> tuple[int, ...]:
        """The order of a tensor's axes in memory."""
        plain = tuple(range(len(self.shape)))
        if role not in FULL:
            return plain
        order = self.order or plain
        return (self.result_order or order) if role in ("y", "dx") else order

    @property
    def label(self) -> str:
        """The shape as people write it."""
        return "x".join(map(str, self.shape))

    def checked(self) -> list[Case]:
        """The case itself, and one for each of the shapes that are only checked."""
        return [self, *(replace(self, shape=shape, also=(), repeats=1) for shape in self.also)]


def mask(axes: Sequence[int]) -> int:
    """A set of axes as planish has it."""
    return sum(1 << axis for axis in axes)
