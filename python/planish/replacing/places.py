"""Whether a norm and what stands around it, as one function, give what they gave apart: a probe of
one place of a block, and what is kept of it.

The norm's own class, from before planish changed it, runs with torch's operators around it, and
planish's function against that: seeded parameters of the block's sizes, the dtypes that the norm
was proven for, results and gradients of everything that goes in. Bounds are those of probe.py; what
a fused stage does not round may make a result differ by more, and then it has to be no farther from
the exact one (the same in float64) than the block's own.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from planish.library import counts
from planish.replacing import post_norms, probe, settings, stages, swapped
from planish.replacing.forms import Form, parameter_of, size_of
from planish.replacing.reading import Place
from torch import Tensor, nn

__all__ = ["Proven", "helper_of", "prove"]

#: For the class of a norm on planish, its form, and the dtypes of s and the weight.
Proven = tuple[type[nn.Module], Form, stages.Pairs]

_found: dict[Any, Any] = {}
_lock = threading.RLock()


def _pairs(norm: Any) -> list[probe.Pair]:
    """Dtypes to try: each with parameters of its own or of f32."""
    form: Any = stages.norm_form(norm)
    has = parameter_of(norm, form.weight) is not None or parameter_of(norm, form.bias) is not None
    found: list[probe.Pair] = []
    for dtype in probe.DTYPES:
        for other in (dtype, torch.float32) if has else (None,):
            if (dtype, other) not in found:
                found.append((dtype, other))
    if isinstance(norm, swapped.Swapped):
        found = [pair for pair in found if pair in norm._planish_proof.pairs]
    return found


class _Prober:
    """One place: the block's own way against planish's function."""

    def __init__(self, place: Place, norms: Sequence[Any], chain: Sequence[Any]) -> None:
        self.place, self.norms, self.chain = place, norms, chain
        form = stages.norm_form(norms[0])
        assert form is not None
        self.form = form
        self.size: int = size_of(self.form, norms[0]) or probe.DEFAULT_SIZE
        self.classes = tuple((type(one), stages.chain_kind(one)) for one in chain)

    def _tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What goes in, of several scales and with means."""
        generator = torch.Generator().manual_seed(4)
        shape = [3, 5, self.size]
        names = {"x": shape, "other": shape}
        if self.place.kind == "modulated":
            names |= {"scale": [3, 1, self.size], "shift": [3, 1, self.size]}
            names |= {"gate": [3, 1, self.size]} if self.place.gate else {}
            if not self.place.residual:
                del names["other"]
            if not self.place.shift:
                del names["shift"]
        found = {name: probe._seeded(s, generator, torch.float32) for name, s in names.items()}
        scales = torch.tensor([1.0, 0.01, 3.0, 0.002, 0.3])[None, :, None]
        for name in ("x", "other"):
            if name in found:
                found[name] = (found[name] + 0.25) * scales
        return {name: tensor.to(dtype) for name, tensor in found.items()}

    def _run(self, ours: bool, pairs: stages.Pairs, norms: list[Any], chain: Any, t: Any) -> Any:
        cls = type(self.norms[0])
        run: Any
        if self.place.kind == "queries and keys":
            run = stages.queries_and_keys_apart
            if ours:
                run = stages.queries_and_keys(cls, self.form, pairs)
            return run(*norms, t["x"], t["other"])
        if self.place.kind == "modulated":
            run = stages.modulated_apart
            if ours:
                run = stages.modulated(cls, self.form, pairs)
            given = t.get("other"), t.get("gate")
            return run(*norms, t["x"], t["scale"], t.get("shift"), *given)
        if self.place.kind == "added":
            run = post_norms.norm_added_apart
            if ours:
                run = post_norms.norm_added(cls, self.form, pairs, self.classes)
            return run(*norms, t["x"], t["other"], chain)
        run = stages.sum_norm_apart
        if ours:
            run = stages.sum_norm(cls, self.form, pairs, self.classes)
        return run(*norms, t["other"], t["x"], chain)

    def one(
        self, pair: probe.Pair, ours: bool, training: bool, wide: torch.dtype | None = None
    ) -> list[Tensor]:
        """Results and gradients of one of the two; with all values cast to ``wide``."""
        dtype, held = pair
        norms = []
        for norm in self.norms:
            new = probe._copy(swapped.original_class(norm), norm, self.size, held).to(wide)
            if ours:
                new.__class__ = type(norm)
            norms.append(new)
        chain = []
        for module in self.chain:
            new = probe._copy(type(module), module, self.size, dtype).to(wide)
            new.train(training)
            if stages.rate_name(new):
                setattr(new, stages.rate_name(new), 0.5)
            if hasattr(new, "inplace"):
                new.inplace = False  # type: ignore[assignment]
            chain.append(new)
        tensors = {k: t.to(wide or dtype) for k, t in self._tensors(dtype).items()}
        wanted = [t.requires_grad_() for t in tensors.values()]
        for module in (*norms, *chain):
            wanted += list(module.parameters())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            # Whether planish's function ran is not seen here: where it hands a call to the block's
            # own way, that is right, too. places.prove counts.
            ran = self._run(ours, frozenset({pair}), norms, tuple(chain), tensors)
        outputs = [ran] if isinstance(ran, Tensor) else list(ran)
        generator = torch.Generator().manual_seed(6)
        given = [probe._seeded(y.shape, generator, torch.bfloat16).to(y.dtype) for y in outputs]
        found = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
        grads = [
            torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted, strict=True)
        ]
        self.count = len(outputs)
        self.rows = len(tensors)
        return [t.detach() for t in (*outputs, *grads)]

    def agrees(self, pair: probe.Pair, training: bool) -> str:
        """Empty, or what differs."""
        theirs = self.one(pair, False, training)
        ours = self.one(pair, True, training)
        exact: list[Tensor] = []
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"a result is {other.dtype} and planish's {one.dtype}"
            gradient, row = index >= self.count, index < self.count + self.rows
            row = row and not (gradient and (self.size < probe.FEW or one.shape[1] == 1))
            limit = probe.GRADIENT_ULP if gradient else probe.BOUND_ULP
            near = self._apart(one, other, row)
            if other.dtype in probe.HALF and not gradient:
                twice = 2 if self.form.order in ("xhat", "weight") else 1
                limit = probe.NEIGHBOUR_ULP
                share = float((near > 0).double().mean())
                if float(near.max()) <= twice * limit and share <= probe.NEIGHBOUR_SHARE:
                    continue
            elif float(near.max()) <= limit:
                continue
            exact = exact or self.one(pair, False, training, torch.float64)
            mine, own = (
                float(self._apart(t, exact[index], row, t.dtype).max()) for t in (one, other)
            )
            if not mine <= max(limit, own):
                what = "a gradient" if gradient else "a result"
                return (
                    f"in {other.dtype} {what} is {mine:.3g} ULP from the exact one, the block's "
                    f"own {own:.3g}"
                )
        return ""

    @staticmethod
    def _apart(one: Tensor, other: Tensor, row: bool, dtype: torch.dtype | None = None) -> Tensor:
        pair = (one, other) if row else (one.reshape(-1), other.reshape(-1))
        return probe._ulp(*pair, -1, dtype or other.dtype)


def _prove(place: Place, norms: Sequence[Any], chain: Sequence[Any]) -> tuple[stages.Pairs, str]:
    prober = _Prober(place, norms, chain)
    drops = any(kind == "drop" for _, kind in prober.classes)
    found: set[probe.Pair] = set()
    why = ""
    for pair in _pairs(norms[0]):
        with contextlib.suppress(Exception), warnings.catch_warnings():  # what a forward raises
            warnings.simplefilter("ignore")  # torch's, of norms that have no fast kernel
            differs = ""
            for training in (False, True) if drops else (False,):
                differs = differs or prober.agrees(pair, training)
            if differs:
                why = why or differs
            else:
                found.add(pair)
    return frozenset(found), why or "it raises in the dtypes that were tried"


def _key(place: Place, norms: Sequence[Any], chain: Sequence[Any]) -> Any:
    shape = place.kind, place.residual, place.gate, place.shift
    return (
        shape,
        tuple((type(norm), settings.key_of(swapped.original_class(norm), norm)) for norm in norms),
        tuple(settings.key_of(type(module), module) for module in chain),
    )


def prove(place: Place, norms: Sequence[Any], chain: Sequence[Any]) -> tuple[stages.Pairs, str]:
    """The dtypes in which this place gives the same, and why not in others."""
    key = _key(place, norms, chain)
    with _lock:
        if key not in _found:
            with counts.uncounted(), probe.apart(), torch.device("cpu"):
                _found[key] = _prove(place, norms, chain)
        result: tuple[stages.Pairs, str] = _found[key]
        return result


def helper_of(place: Place, norms: Sequence[Any], chain: Sequence[Any], pairs: stages.Pairs) -> Any:
    """What to call at the place, and a key of it: equal keys, equal helpers."""
    cls, form = type(norms[0]), stages.norm_form(norms[0])
    assert form is not None
    if place.kind == "queries and keys":
        return stages.queries_and_keys(cls, form, pairs), (place.kind, cls, form, pairs)
    if place.kind == "modulated":
        return stages.modulated(cls, form, pairs), (place.kind, cls, form, pairs)
    classes = tuple((type(one), stages.chain_kind(one)) for one in chain)
    if place.kind == "added":
        return post_norms.norm_added(cls, form, pairs, classes), (
            place.kind,
            cls,
            form,
            pairs,
            classes,
        )
    return stages.sum_norm(cls, form, pairs, classes), (place.kind, cls, form, pairs, classes)
