"""Transformers' own switch: with register(), ``use_kernels=True`` runs planish's norms.

Transformers marks its norms for the package `kernels`: RMSNorm, RMSNormGated and
RMSNormZeroCentered, some 140 classes. That package looks in a table, by layer, device and mode, for
what to bind as their ``forward``. register() puts planish into that table, for the CPU and CUDA.
Nothing is fetched from the Hub.

Classes that Transformers does not mark (T5's, Gemma's) are marked here, when a model is bound that
has them (hf_marks.py). What is not done here: nn.LayerNorm and nn.GroupNorm in these models are
torch's operators, see planish.enable().
"""

from __future__ import annotations

import copy
import importlib
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from planish.hf import marks
from planish.operators.arguments import DEVICES, HALF
from planish.replacing import probe, runners
from torch import Tensor, nn

__all__ = ["LAYERS", "register", "registered", "unregister"]

_HALF_AND_FLOAT = (*HALF, torch.float32)
_lock = threading.RLock()
_on = False


# ---- What a class computes ----------------------------------------------------------------------
#
# The same layer name stands for classes that round in different places, and for subclasses that
# inherit the mark and compute something else. So a class is asked, as replace() asks it
# (replacing/probe.py): its own forward runs on seeded inputs, and planish takes the class for those
# dtypes in which it does the same.

_SIZE = 128
_EPSILONS = {"variance_epsilon": 1e-6, "eps": 1e-5}  # two: which of them a class reads shows


class _Known(NamedTuple):
    """How planish computes what a class computes, in which dtypes of x and weight."""

    run: runners.Run
    gated: bool
    pairs: frozenset[probe.Pair]


_found: list[_Known] = []
#: By class and activation: where it is in _found; -1: it is left to itself.
_places: dict[tuple[type[nn.Module], Any], int] = {}


def _made(cls: type[nn.Module], activation: Any) -> nn.Module:
    """A module of the class, with what its forward may read."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.weight = nn.Parameter(torch.ones(_SIZE, device="cpu"), requires_grad=False)
    for name, eps in _EPSILONS.items():
        setattr(module, name, eps)
    module.activation = activation
    return module


def _find(cls: type[nn.Module], activation: Any) -> int:
    proof = probe.prove(cls, _made(cls, activation))
    if isinstance(proof, str) or proof.form.kind != "rms" or proof.form.axis != -1:
        return -1
    _found.append(_Known(runners.runner(proof.form), proof.form.gate is not None, proof.pairs))
    return len(_found) - 1


def _place_of(cls: type[nn.Module], activation: Any) -> int:
    key = cls, activation
    if key not in _places:
        _places[key] = _find(cls, activation)
    return _places[key]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _place_for(
    cls: type[nn.Module], activation: Any, x: torch.dtype, weight: torch.dtype, gated: bool
) -> int:
    """Where the class is in _found, of tensors of these dtypes; -1: its own forward runs."""
    place = _place_of(cls, activation)
    if place < 0 or _found[place].gated != gated or (x, weight) not in _found[place].pairs:
        return -1
    return place


def _is_known(cls: type[nn.Module]) -> bool:
    """Whether planish computes what this class, which has no gate, does."""
    place = _place_of(cls, "silu")
    return place >= 0 and not _found[place].gated


# ---- The layers ---------------------------------------------------------------------------------


def _runs(x: Tensor, weight: Any) -> bool:
    """Whether planish computes this as the class does. A subclass of Tensor (a DTensor, what an
    export traces with) is the class's own."""
    return (
        _on
        and type(x) in (Tensor, nn.Parameter)
        and isinstance(weight, Tensor)
        and x.dtype in _HALF_AND_FLOAT
        and weight.dtype in _HALF_AND_FLOAT
        and x.device == weight.device
        and x.device.type in ("cpu", "cuda")
        and x.device.type in DEVICES
        and x.dim() > 0
        and weight.dim() == 1
        and x.shape[-1] == weight.shape[0]
        and x.numel() > 0
    )


def _forward(module: Any, x: Tensor, *gate: Tensor | None) -> Tensor:
    """By planish, or by the class's own forward."""
    cls: Any = type(module)
    behind = gate[0] if gate else None
    fits = behind is None or (
        isinstance(behind, Tensor) and behind.shape == x.shape and behind.device == x.device
    )
    if fits and _runs(x, module.weight):
        activation = getattr(module, "activation", None)
        dtypes = x.dtype, module.weight.dtype
        place = _place_for(cls, activation, *dtypes, behind is not None)
        if place >= 0:
            y: Tensor = _found[place].run(module, x, behind)
            return y
    own: Tensor = cls.forward(module, x, *gate)
    return own


class RMSNorm(nn.Module):
    """``weight * xhat`` of the last axis, rounded where the class rounds that this is bound to."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _forward(self, hidden_states)


class RMSNormZeroCentered(nn.Module):
    """``(1 + weight) * xhat`` of the last axis, in float, rounded once."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _forward(self, x)


class RMSNormGated(nn.Module):
    """``weight * xhat`` times the gate's activation, in one kernel where that is SiLU."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return _forward(self, hidden_states, gate)


#: Layer name in Transformers -> what planish binds for it.
LAYERS: dict[str, type[nn.Module]] = {
    "RMSNorm": RMSNorm,
    "RMSNormGated": RMSNormGated,
    "RMSNormZeroCentered": RMSNormZeroCentered,
}


# ---- The table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Here:
    """What `kernels` takes for a repository: something that loads a layer. This one is here."""

    name: str

    def load(self) -> type[nn.Module]:
        return LAYERS[self.name]


#: The tables before register(): Transformers' own, and that of `kernels`.
_before: tuple[dict[str, Any], dict[str, Any]] | None = None


def _needed(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"planish.hf.register: needs {what}, but {error}") from error


def _tables() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The module `kernels`, the table that Transformers registers at every ``use_kernels=True``,
    and the one that `kernels` has now. Raises where use_kernels=True could do nothing."""
    kernels = _needed("kernels", "the package kernels")
    hub = _needed("transformers.integrations.hub_kernels", "transformers with use_kernels")
    limits = importlib.import_module("transformers.utils.import_utils")
    if not limits.is_kernels_available():
        least = getattr(limits, "KERNELS_MIN_VERSION", "another version")
        most = getattr(limits, "KERNELS_MAX_VERSION", "")
        raise ImportError(
            "planish.hf.register: this version of transformers does not use kernels "
            f"{getattr(kernels, '__version__', '(unknown version)')}; it wants {least} or newer"
            + (f", older than {most}" if most else "")
        )
    if not getattr(hub, "_kernels_enabled", True):
        raise RuntimeError(
            "planish.hf.register: use_kernels is switched off by USE_HUB_KERNELS in the environment"
        )
    try:
        current = importlib.import_module("kernels.layer.globals")._KERNEL_MAPPING.get()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            "planish.hf.register: this version of kernels keeps its table elsewhere than 0.17 "
            f"does: {error}"
        ) from error
    return kernels, hub.get_kernel_mapping_transformers(), current


def register(*, hub: bool = False) -> None:
    """From now on ``use_kernels=True`` of Transformers' models, and ``kernels.kernelize``, bind
    planish's norms: RMSNorm, RMSNormGated and RMSNormZeroCentered, on the CPU and on CUDA, for
    inference, training and both with torch.compile; by ``use_kernels=True`` also norms that
    Transformers does not mark, such as Gemma's and T5's.

    Each computes what the class computes that it stands in for, rounding where that rounds; what
    planish does not run (f64, a DTensor, another device), and a class whose order of rounding it
    does not know, runs the class's own forward. Whether planish is enabled plays no part.

    ``hub=False``: the kernels that Transformers' own table would fetch from the Hub for other
    layers are taken out of it, so that nothing is fetched and nothing but planish is bound.
    ``hub=True`` leaves them.

    Registering again changes ``hub`` only. Raises ImportError where `kernels` or Transformers is
    missing or does not fit the other, RuntimeError where USE_HUB_KERNELS switches this off.

    Example (with Transformers and kernels)::

        planish.hf.register()
        model = AutoModelForCausalLM.from_pretrained(name, use_kernels=True)
    """
    global _before, _on
    with _lock:
        unregister()
        kernels, table, current = _tables()
        _before = copy.deepcopy(table), copy.deepcopy(current)
        if not hub:
            for name in table:  # a layer that is not there at all would be warned of
                table[name], current[name] = {}, {}
        mode = kernels.Mode
        compiled = mode.TORCH_COMPILE
        modes = (mode.INFERENCE, mode.TRAINING, mode.INFERENCE | compiled, mode.TRAINING | compiled)
        for name in LAYERS:
            here = {mode: _Here(name) for mode in modes}
            table.setdefault(name, {}).update({"cpu": here, "cuda": here})
        kernels.register_kernel_mapping({name: table[name] for name in LAYERS})
        marks.begin(_is_known)
        _on = True


def unregister() -> None:
    """Takes it back: both tables are what they were before register(), and models whose norms were
    bound to planish run their own forward again. Does nothing where nothing is registered.

    Example:

    >>> planish.hf.unregister()
    """
    global _before, _on
    with _lock:
        if _before is None:
            return
        _on = False
        marks.end()
        _, table, current = _tables()
        for now, before in zip((table, current), _before, strict=True):
            now.clear()
            now.update(before)
        _before = None


def registered() -> bool:
    """Whether register() holds.

    Example:

    >>> planish.hf.registered()
    False
    """
    return _on


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__file__"})
