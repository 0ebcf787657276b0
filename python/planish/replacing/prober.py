"""One module against one form: its own forward and planish's on the same inputs, and the bounds
within which the two agree. Which forms are tried and what is kept is probe.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from planish.operators.arguments import DTYPES, HALF
from planish.replacing import edges
from planish.replacing.edges import Changes
from planish.replacing.forms import Form, size_of
from planish.replacing.inputs import copied, ordinary, seeded
from planish.replacing.runners import runner
from torch import Tensor, nn

__all__ = ["BOUND_ULP", "DEFAULT_SIZE", "DTYPES", "FEW", "GRADIENT_ULP", "HALF", "NEIGHBOUR_SHARE"]
__all__ += ["NEIGHBOUR_ULP", "Differs", "Pair", "Prober", "Refuses", "ulp"]

Pair = tuple[torch.dtype, "torch.dtype | None"]


#: docs/guide/reproducibility.md: f32 and gradients, in ULP of the largest magnitude in the row.
BOUND_ULP = 4.0
#: 16-bit results are the same or neighbours, and these in at most so many elements.
NEIGHBOUR_ULP, NEIGHBOUR_SHARE = 1.0, 5e-3
#: Gradients: both round, the original up to three times on the way in 16-bit types.
GRADIENT_ULP = 8.0
DEFAULT_SIZE = 32
#: In rows of fewer elements a gradient may cancel to nothing; all rows' largest magnitude counts.
FEW = 16


def ulp(one: Tensor, other: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """Distances in ULP of the largest magnitude in the row."""
    exact = other.double()
    scale = exact.abs().amax(axis, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    eps = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps
    return (one.double() - exact).abs() / (torch.exp2(scale.log2().floor()) * eps)


class Differs(Exception):
    """Why a form is not the module's."""


class Refuses(Exception):
    """The original itself raises."""


class Prober:
    """One module against one form."""

    def __init__(
        self, cls: type[nn.Module], module: nn.Module, form: Form, originals: dict[Any, Any]
    ) -> None:
        self.cls, self.module, self.form, self.originals = cls, module, form, originals
        self.size = size_of(form, module) or DEFAULT_SIZE
        self.run = runner(form)
        self.has_parameters = any(p is not None for p in module._parameters.values())
        self.gated = form.gate is not None
        self.childless = all(child is None for child in module._modules.values())

    def copy(self, dtype: torch.dtype | None) -> nn.Module:
        """The module with seeded parameters of this dtype."""
        return copied(self.cls, self.module, self.size, dtype)

    def _given(self, new: Any, rank: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        x = ordinary(self.form, new, self.size, rank, dtype)
        return (x, x.flip(0) * 2) if self.gated else (x,)

    def kept(self, maker: Any, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What a function of inputs.py makes for this form: it is made once."""
        key = maker, rank, dtype, self.form.kind, self.form.axis, self.form.gate_activation
        if key not in self.originals:
            self.originals[key] = maker(self.form, self.module, self.size, rank, dtype)
        found: tuple[Tensor, Tensor] = self.originals[key]
        return found

    def first_calls(self, pair: Pair, rank: int) -> None:
        """Raises Changes where the module is more than a norm. Of forms that differ in more than
        the axis it is asked once."""
        key = "first", pair, rank, self.form.axis, self.gated
        if key not in self.originals:
            self.originals[key] = set()
            given = self._given(self.module, rank, pair[0])
            self.originals[key] = edges.first_calls(lambda: self.copy(pair[1]), given)
        self.read = self.originals[key]

    def results(
        self, pair: Pair, rank: int, gradients: bool = False
    ) -> tuple[list[Tensor], list[Tensor], int]:
        """The original's, planish's, and the axis of rows."""
        axis = 1 if self.form.axis == 1 or self.form.kind == "convolution" else -1
        key = pair, rank, gradients, axis
        if key not in self.originals:
            try:
                self.originals[key] = self.one(pair, rank, gradients, False)
            except Changes:
                raise
            except Exception as error:
                self.originals[key] = Refuses(f"it raises {type(error).__name__}: {error}")
        theirs = self.originals[key]
        if isinstance(theirs, Refuses):
            raise theirs
        return theirs, self.one(pair, rank, gradients, True), axis

    def one(
        self,
        pair: Pair,
        rank: int,
        gradients: bool,
        ours: bool,
        wide: torch.dtype | None = None,
        training: bool = False,
    ) -> list[Tensor]:
        """Result and gradients of one of the two; with all values cast to ``wide``. In training
        the gradient that comes in is a thousand times as large."""
        x_dtype, dtype = pair
        new = self.copy(dtype).to(wide).train(training)
        x, *gates = (t.to(wide or x_dtype) for t in self._given(new, rank, x_dtype))
        x.requires_grad_(gradients)
        y: Any = self.run(new, x, gates[0] if gates else None) if ours else new(x, *gates)
        if not isinstance(y, Tensor):
            raise Differs("its result is no tensor")
        if not gradients:
            return [y.detach()]
        wanted = [x, *(p for p in new.parameters())]
        dy = seeded(y.shape, torch.Generator().manual_seed(3), torch.bfloat16).to(y.dtype)
        dy = dy * 1024 if training else dy
        found = torch.autograd.grad(y, wanted, dy, allow_unused=True)
        return [y.detach()] + [
            torch.zeros_like(w) if g is None else g.detach()
            for g, w in zip(found, wanted, strict=True)
        ]

    def same_in_training(self, pair: Pair, rank: int) -> None:
        """Raises Changes where results or gradients are others in training, or what is drawn."""
        axis = 1 if self.form.axis == 1 or self.form.kind == "convolution" else -1
        theirs, there = self._in_training(pair, rank, False)
        ours, here = self._in_training(pair, rank, True)
        if there != here:
            raise Changes("in training it draws other random numbers")
        if not torch.allclose(ours[0], theirs[0], 1e-2, 1e-3):
            raise Changes("in training its result is another")
        try:
            self.gradients_agree(theirs, ours, axis)
        except Differs:
            theirs, _ = self._in_training(pair, rank, False, torch.float64)
            try:
                self.gradients_agree(theirs, ours, axis)
            except Differs as error:
                raise Changes(f"in training, {error}") from None

    def _in_training(
        self, pair: Pair, rank: int, ours: bool, wide: torch.dtype | None = None
    ) -> tuple[list[Tensor], float]:
        """Result and gradients, and the number that is drawn next where children may draw."""
        if self.childless:
            return self.one(pair, rank, True, ours, wide, True), 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return self.one(pair, rank, True, ours, wide, True), float(torch.rand(()))

    def gives_channels_last(self, pair: Pair) -> bool:
        """Whether the original's result of an image stored by channel is stored by pixel."""
        (y,) = self.one(pair, 4, False, False)
        return not y.is_contiguous() and y.is_contiguous(memory_format=torch.channels_last)

    def dropped(self, pair: Pair, ranks: Iterable[int]) -> frozenset[tuple[int, int]]:
        """Numbers of axes, and the axis, where one of size 1 is not there in the result."""
        if self.form.axis != -1:
            return frozenset()
        found = set()
        for rank in ranks:
            new = self.copy(pair[1])
            whole = ordinary(self.form, new, self.size, rank, pair[0])
            for axis in range(rank - self.form.count):
                x = whole.narrow(axis, 0, 1)
                try:
                    kept = new(*((x, x) if self.gated else (x,))).shape == x.shape
                except Exception:
                    kept = False
                if not kept:
                    found.add((rank, axis))
        return frozenset(found)

    def same_layout(self, theirs: Tensor, ours: Tensor) -> None:
        """Raises where shape or dtype differ."""
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise Differs(
                f"its result is {theirs.dtype} {list(theirs.shape)}, planish's {ours.dtype} "
                f"{list(ours.shape)}"
            )

    def agrees(self, pair: Pair, rank: int, gradients: bool = True) -> bool:
        """Whether roundings are the same, too; raises Differs where results are not."""
        theirs, ours, axis = self.results(pair, rank, gradients)
        self.same_layout(theirs[0], ours[0])
        dtype = theirs[0].dtype
        apart = ulp(ours[0], theirs[0], axis, dtype)
        largest, share = float(apart.max()), float((apart > 0).double().mean())
        if dtype in HALF:
            # One ULP of xhat is up to two of its product with a weight.
            twice = 2 if self.form.order in ("xhat", "weight") else 1
            same = largest <= twice * NEIGHBOUR_ULP and share <= NEIGHBOUR_SHARE
        else:
            same = largest <= BOUND_ULP or self.flipped(pair, apart, dtype)
        if not same:
            theirs = self.exact(pair, rank, gradients)
            mine = float(ulp(ours[0], theirs[0], axis, dtype).max())
            many = self.form.kind in ("evo", "convolution", "simple") or dtype not in HALF
            if not mine <= (BOUND_ULP if many else NEIGHBOUR_ULP):
                raise Differs(
                    f"in {dtype} its result is {largest:.3g} ULP from planish's, and that "
                    f"{mine:.3g} ULP from its own in float64"
                )
        try:
            self.gradients_agree(theirs, ours, axis)
        except Differs:
            if not same:
                raise
            self.gradients_agree(self.exact(pair, rank, gradients), ours, axis)
        return same

    def flipped(self, pair: Pair, apart: Tensor, dtype: torch.dtype) -> bool:
        """Whether a wide result differs only where xhat was rounded to 16 bits the other way."""
        half = [one for one in pair if one in HALF]
        if not half or not float((apart > BOUND_ULP).double().mean()) <= NEIGHBOUR_SHARE:
            return False
        wide = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps
        return float(apart.max()) * wide <= 2 * NEIGHBOUR_ULP * max(
            torch.finfo(h).eps for h in half
        )

    def exact(self, pair: Pair, rank: int, gradients: bool) -> list[Tensor]:
        """The original's results in float64, for the same values: what its roundings are off."""
        return self.one(pair, rank, gradients, False, torch.float64)

    def gradients_agree(self, theirs: list[Tensor], ours: list[Tensor], axis: int) -> None:
        """Both round on the way. A parameter's is a sum: its largest magnitude counts."""
        for index, (one, other) in enumerate(zip(theirs[1:], ours[1:], strict=True)):
            flat = index > 0 or self.size < FEW or self.form.kind == "convolution"
            pair = (other.reshape(-1), one.reshape(-1)) if flat else (other, one)
            apart = float(ulp(*pair, 0 if flat else axis, other.dtype).max())
            if not apart <= GRADIENT_ULP:
                what = "a parameter" if index else "x"
                raise Differs(f"its gradient of {what} is {apart:.3g} ULP from planish's")
