"""Whether a module computes what a form says: its own forward against planish, on seeded inputs.

It looks at copies with seeded parameters on the CPU, so parameters may be anywhere, on no device or
in shards. What is found holds for a class with these settings and is kept; it says for which dtypes
and numbers of axes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

import torch
from planish.replacing import families
from planish.replacing.forms import Form, NotExact, runner, size_of
from planish.replacing.settings import key_of, unmarked
from torch import Tensor, nn

__all__ = ["Proof", "apart", "prove"]

Pair = tuple[torch.dtype, "torch.dtype | None"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HALF = (torch.bfloat16, torch.float16)
#: docs/guide/reproducibility.md: f32 and gradients, in ULP of the largest magnitude in the row.
BOUND_ULP = 4.0
#: 16-bit results are the same or neighbours, and these in at most so many elements.
NEIGHBOUR_ULP, NEIGHBOUR_SHARE = 1.0, 5e-3
#: Gradients: both round, the original up to three times on the way in 16-bit types.
GRADIENT_ULP = 8.0
DEFAULT_SIZE = 32
#: In rows of fewer elements a gradient may cancel to nothing; all rows' largest magnitude counts.
FEW = 16


@dataclasses.dataclass(frozen=True)
class Proof:
    """The form that a class has, for which dtypes of x and weight, and numbers of axes."""

    form: Form
    pairs: frozenset[Pair]
    ranks: frozenset[int]
    #: Whether all dtypes are there, and 16-bit results the original's but for neighbours.
    same_rounding: bool
    #: Numbers of axes, with an axis that the original does not keep where its size is 1.
    dropped: frozenset[tuple[int, int]] = frozenset()


_proofs: dict[Any, Proof | str] = {}
_lock = threading.RLock()


def _seeded(shape: Any, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype)


def _copy(
    cls: type[nn.Module], module: nn.Module, size: int, dtype: torch.dtype | None
) -> nn.Module:
    """The module with seeded parameters of this dtype, in eval."""
    generator = torch.Generator().manual_seed(1)
    new: nn.Module = cls.__new__(cls)
    new.__dict__ = unmarked(module)
    new.__dict__["training"] = False
    new.__dict__["_parameters"] = {
        name: None
        if p is None
        else nn.Parameter(
            _seeded(p.shape if p.numel() else (size,), generator, torch.float32)
            .mul_(0.3)
            .add_(1.0)
            .to(dtype or torch.float32)
        )
        for name, p in module._parameters.items()
    }
    new.__dict__["_buffers"] = {
        name: b if b is None else _seeded(b.shape, generator, b.dtype)
        for name, b in module._buffers.items()
    }
    new.__dict__["_modules"] = {
        name: child if child is None else copy.deepcopy(child).eval()
        for name, child in module._modules.items()
    }
    return new


def _input(form: Form, module: Any, size: int, rank: int, dtype: torch.dtype) -> Tensor:
    """Rows with means and of several scales, the smallest as small as eps."""
    generator = torch.Generator().manual_seed(2)
    if form.kind == "convolution":
        size = module.in_channels
    sides = [3, 5, 2, 4]
    if form.kind == "convolution":
        # One pixel of one channel: the results are the weights, with no sums that round.
        x = torch.zeros(2, size, 9, 8)
        x[0, 0, 4, 4] = x[1, size - 1, 4, 4] = 1.0
        return x.to(dtype)
    if form.axis == 1:
        shape = [2, size, *sides[: rank - 2]]
    else:
        last = list(module.normalized_shape) if form.count > 1 else [size]
        shape = [*sides[: rank - form.count], *last]
    x = _seeded(shape, generator, torch.float32) + 0.25
    scales = torch.tensor([1.0, 0.01, 3.0, 0.002, 0.3])
    along = 0 if shape[0] > 2 else -1
    where = [1] * len(shape)
    where[along] = -1
    return (x * scales.repeat(-(-shape[along] // 5))[: shape[along]].view(where)).to(dtype)


def _ulp(one: Tensor, other: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """Distances in ULP of the largest magnitude in the row."""
    exact = other.double()
    scale = exact.abs().amax(axis, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    eps = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps
    return (one.double() - exact).abs() / (torch.exp2(scale.log2().floor()) * eps)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """No mode, autocast or gradient setting of the caller's is seen inside."""
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield


class _Differs(Exception):
    """Why a form is not the module's."""


class _Refuses(Exception):
    """The original itself raises."""


class _Prober:
    """One module against one form."""

    def __init__(
        self, cls: type[nn.Module], module: nn.Module, form: Form, originals: dict[Any, Any]
    ) -> None:
        self.cls, self.module, self.form, self.originals = cls, module, form, originals
        self.size = size_of(form, module) or DEFAULT_SIZE
        self.run = runner(form)
        self.has_parameters = any(p is not None for p in module._parameters.values())
        self.gated = form.gate is not None

    def results(
        self, pair: Pair, rank: int, gradients: bool = False
    ) -> tuple[list[Tensor], list[Tensor], int]:
        """The original's, planish's, and the axis of rows."""
        axis = 1 if self.form.axis == 1 or self.form.kind == "convolution" else -1
        key = pair, rank, gradients, axis
        if key not in self.originals:
            try:
                self.originals[key] = self.one(pair, rank, gradients, False)
            except _FAILURES as error:
                self.originals[key] = _Refuses(f"it raises {type(error).__name__}: {error}")
        theirs = self.originals[key]
        if isinstance(theirs, _Refuses):
            raise theirs
        return theirs, self.one(pair, rank, gradients, True), axis

    def one(
        self,
        pair: Pair,
        rank: int,
        gradients: bool,
        ours: bool,
        wide: torch.dtype | None = None,
    ) -> list[Tensor]:
        """Result and gradients of one of the two; with all values cast to ``wide``."""
        x_dtype, dtype = pair
        new = _copy(self.cls, self.module, self.size, dtype).to(wide)
        x = _input(self.form, new, self.size, rank, x_dtype).to(wide or x_dtype)
        gate = x.flip(0) * 2 if self.gated else None
        x.requires_grad_(gradients)
        given = (x, gate) if self.gated else (x,)
        y: Any = self.run(new, x, gate) if ours else new(*given)
        if not isinstance(y, Tensor):
            raise _Differs("its result is no tensor")
        if not gradients:
            return [y.detach()]
        wanted = [x, *(p for p in new.parameters())]
        dy = _seeded(y.shape, torch.Generator().manual_seed(3), torch.bfloat16).to(y.dtype)
        found = torch.autograd.grad(y, wanted, dy, allow_unused=True)
        return [y.detach()] + [
            torch.zeros_like(w) if g is None else g.detach()
            for g, w in zip(found, wanted, strict=True)
        ]

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
            new = _copy(self.cls, self.module, self.size, pair[1])
            whole = _input(self.form, new, self.size, rank, pair[0])
            for axis in range(rank - self.form.count):
                x = whole.narrow(axis, 0, 1)
                try:
                    kept = new(*((x, x) if self.gated else (x,))).shape == x.shape
                except _FAILURES:
                    kept = False
                if not kept:
                    found.add((rank, axis))
        return frozenset(found)

    def same_layout(self, theirs: Tensor, ours: Tensor) -> None:
        """Raises where shape or dtype differ."""
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise _Differs(
                f"its result is {theirs.dtype} {list(theirs.shape)}, planish's {ours.dtype} "
                f"{list(ours.shape)}"
            )

    def agrees(self, pair: Pair, rank: int, gradients: bool = True) -> bool:
        """Whether roundings are the same, too; raises _Differs where results are not."""
        theirs, ours, axis = self.results(pair, rank, gradients)
        self.same_layout(theirs[0], ours[0])
        dtype = theirs[0].dtype
        apart = _ulp(ours[0], theirs[0], axis, dtype)
        largest, share = float(apart.max()), float((apart > 0).double().mean())
        if dtype in HALF:
            # One ULP of xhat is up to two of its product with a weight.
            twice = 2 if self.form.order in ("xhat", "weight") else 1
            same = largest <= twice * NEIGHBOUR_ULP and share <= NEIGHBOUR_SHARE
        else:
            same = largest <= BOUND_ULP or self.flipped(pair, apart, dtype)
        if not same:
            theirs = self.exact(pair, rank, gradients)
            mine = float(_ulp(ours[0], theirs[0], axis, dtype).max())
            many = self.form.kind in ("evo", "convolution", "simple") or dtype not in HALF
            if not mine <= (BOUND_ULP if many else NEIGHBOUR_ULP):
                raise _Differs(
                    f"in {dtype} its result is {largest:.3g} ULP from planish's, and that "
                    f"{mine:.3g} ULP from its own in float64"
                )
        try:
            self.gradients_agree(theirs, ours, axis)
        except _Differs:
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
            apart = float(_ulp(*pair, 0 if flat else axis, other.dtype).max())
            if not apart <= GRADIENT_ULP:
                what = "a parameter" if index else "x"
                raise _Differs(f"its gradient of {what} is {apart:.3g} ULP from planish's")


def _ranks(form: Form) -> tuple[int, ...]:
    if form.kind in ("evo", "convolution"):
        return (4,)
    if form.axis == 1:
        return (4, 3, 5, 2)
    return tuple(rank + form.count - 1 for rank in (3, 2, 4, 5))


_FAILURES = (
    *(RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError),
    *(AssertionError, KeyError, NotExact, _Differs, _Refuses),
)


def _first(prober: _Prober) -> int | str:
    """A number of axes for which the mathematics are the same, or why there is none: in float64,
    where the original's own roundings are least."""
    why = ""
    for rank in _ranks(prober.form):
        for dtype in (torch.float64, torch.float32):
            try:
                pair = dtype, dtype if prober.has_parameters else None
                theirs, ours, axis = prober.results(pair, rank)
                prober.same_layout(theirs[0], ours[0])
                largest = float(_ulp(ours[0], theirs[0], axis, torch.float32).max())
                if largest <= BOUND_ULP:
                    return rank
                return f"its result is {largest:.3g} ULP from planish's"
            except _FAILURES as error:
                why = why or f"{type(error).__name__}: {error}".splitlines()[0][:120]
    return why


def _prove(cls: type[nn.Module], module: nn.Module) -> Proof | str:
    candidates: list[tuple[float, Proof]] = []
    nearest = ""
    settled: set[Any] = set()
    refuted: set[Any] = set()
    originals: dict[Any, Any] = {}
    for form in families.forms(module):
        mathematics = dataclasses.replace(form, order="", offset_in_weight=False)
        if mathematics in refuted or (settled and mathematics not in settled):
            continue  # not the mathematics of this class
        prober = _Prober(cls, module, form, originals)
        rank = _first(prober)
        if isinstance(rank, str):
            nearest = nearest or f"not a {form}: {rank}"
            refuted.add(mathematics)
            continue
        settled.add(mathematics)
        proof, score = _prove_dtypes(prober, rank)
        if proof is not None:
            candidates.append((score, proof))
            if proof.same_rounding:
                break
    if not candidates:
        return nearest or families.no_forms(module)
    return max(candidates, key=lambda candidate: candidate[0])[1]


def _prove_dtypes(prober: _Prober, rank: int) -> tuple[Proof | None, float]:
    pairs: set[Pair] = set()
    same = refused = 0
    for dtype in DTYPES if prober.has_parameters else (None,):
        for x_dtype in DTYPES:
            try:
                same += prober.agrees((x_dtype, dtype), rank)
                pairs.add((x_dtype, dtype))
            except _Refuses:
                refused += 1
            except _FAILURES:
                continue
    if not pairs:
        return None, 0.0
    one = (torch.float32, torch.float32 if prober.has_parameters else None)
    ranks = {rank}
    for other in _ranks(prober.form):
        with contextlib.suppress(*_FAILURES):
            prober.agrees(one, other, gradients=False)
            ranks.add(other)
    every = len(DTYPES) * (len(DTYPES) if prober.has_parameters else 1)
    form = prober.form
    if form.axis == 1 and 4 in ranks:
        form = dataclasses.replace(form, channels_last=prober.gives_channels_last(one))
    dropped = prober.dropped(one, ranks)
    proof = Proof(form, frozenset(pairs), frozenset(ranks), same + refused == every, dropped)
    return proof, same + len(pairs) / 100


def prove(cls: type[nn.Module], module: nn.Module) -> Proof | str:
    """The proof of a module whose forward is that of ``cls``, or why there is none."""
    key = key_of(cls, module)
    with _lock:
        if key not in _proofs:
            from planish import _counts

            with _counts.uncounted(), apart():
                _proofs[key] = _prove(cls, module)
        return _proofs[key]
