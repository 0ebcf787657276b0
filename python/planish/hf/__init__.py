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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from planish.functions import functional
from planish.hf import marks
from torch import Tensor, nn

__all__ = ["LAYERS", "register", "registered", "unregister"]

_HALF_AND_FLOAT = (torch.float16, torch.bfloat16, torch.float32)
_lock = threading.RLock()
_on = False


# ---- What a class computes ----------------------------------------------------------------------
#
# The same layer name stands for classes that round in different places, and for subclasses that
# inherit the mark and compute something else. So a class is asked: its own forward runs on a few
# small tensors, and the way of rounding that gives those very bits is the one that planish takes.

_EPSILONS = {"variance_epsilon": 0.25, "eps": 2.0}  # far apart: which of them a class reads shows

#: Where a class rounds to x's dtype, what is added to its weight, and where it has its eps. "xhat":
#: before the weight; "once": at the end; "alike": as "xhat" where x and weight have one dtype, and
#: otherwise in a way of its own (T5's rounds to the weight's dtype).
_WAYS = [
    (cast, offset, name)
    for cast in ("xhat", "once", "alike")
    for offset in (0.0, 1.0)
    for name in _EPSILONS
]
_WAY_DTYPES = [
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float32, torch.float32),
]
_known: dict[tuple[type[nn.Module], bool], int] = {}


def _plainly(x: Tensor, weight: Tensor, eps: float, cast: str, offset: float) -> Tensor:
    """A way of rounding in torch's operators; of f32 with "once", before the last rounding."""
    wide = x.float()
    xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    scale = weight.float() + offset if offset else weight
    return scale * xhat if cast == "once" else scale * xhat.to(x.dtype)


def _probe(x_dtype: torch.dtype, weight_dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and gate, without a random number drawn."""
    steps = torch.arange(3 * 128, dtype=torch.float32, device="cpu")
    x = (steps * 1.37).sin().mul(3).view(3, 128).to(x_dtype)
    weight = (steps[:128] * 0.71).cos().to(weight_dtype)
    return x, weight, (steps * 0.53).cos().view(3, 128).to(x_dtype)


def _made(cls: type[nn.Module], weight: Tensor) -> nn.Module:
    """A module of the class, with what its forward may read."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.weight = nn.Parameter(weight, requires_grad=False)
    for name, eps in _EPSILONS.items():
        setattr(module, name, eps)
    module.activation = "silu"  # type: ignore[assignment]
    return module


def _computes(cls: type[nn.Module], way: tuple[str, float, str], gated: bool) -> bool:
    cast, offset, name = way
    for x_dtype, weight_dtype in _WAY_DTYPES:
        if cast == "alike" and x_dtype != weight_dtype:
            continue
        x, weight, gate = _probe(x_dtype, weight_dtype)
        forward: Callable[..., Any] = cls.forward
        found = forward(_made(cls, weight), x, gate) if gated else forward(_made(cls, weight), x)
        y = _plainly(x, weight, _EPSILONS[name], cast, offset)
        if gated:
            y = y * nn.functional.silu(gate.float())
        if gated or cast == "once":
            y = y.to(x_dtype)
        if not isinstance(found, Tensor) or found.dtype != y.dtype or not torch.equal(found, y):
            return False
    return True


@torch.no_grad()
def _find(cls: type[nn.Module], gated: bool) -> int:
    for index, way in enumerate(_WAYS):
        try:
            if _computes(cls, way, gated):
                return index
        except Exception:  # whatever a class wants that these small modules have not
            return -1
    return -1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _way_of(cls: type[nn.Module], gated: bool) -> int:
    """Which of _WAYS the class computes; -1: none."""
    if (cls, gated) not in _known:
        with torch._C.DisableTorchFunction(), torch.autocast("cpu", enabled=False):
            _known[cls, gated] = _find(cls, gated)
    return _known[cls, gated]


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
        and x.device.type in functional.DEVICES
        and x.dim() > 0
        and weight.dim() == 1
        and x.shape[-1] == weight.shape[0]
        and x.numel() > 0
    )


def _way_here(module: Any, x: Tensor, gated: bool) -> int:
    """The way of the module's class, for this x; -1: its own forward runs."""
    if not _runs(x, module.weight):
        return -1
    way = _way_of(type(module), gated)
    alike = way >= 0 and _WAYS[way][0] == "alike"
    return -1 if alike and x.dtype != module.weight.dtype else way


def _norm(module: Any, x: Tensor, way: int) -> Tensor:
    cast, offset, name = _WAYS[way]
    cast = "xhat" if cast == "alike" else cast
    eps: float = getattr(module, name)
    return functional.rms_norm(x, -1, module.weight, eps=eps, weight_offset=offset, cast=cast)


class RMSNorm(nn.Module):
    """``weight * xhat`` of the last axis, rounded where the class rounds that this is bound to."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: Tensor) -> Tensor:
        cls: Any = type(self)
        way = _way_here(self, hidden_states, False)
        if way < 0:
            own: Tensor = cls.forward(self, hidden_states)
            return own
        return _norm(self, hidden_states, way)


class RMSNormZeroCentered(nn.Module):
    """``(1 + weight) * xhat`` of the last axis, in float, rounded once."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        cls: Any = type(self)
        way = _way_here(self, x, False)
        if way < 0:
            own: Tensor = cls.forward(self, x)
            return own
        return _norm(self, x, way)


class RMSNormGated(nn.Module):
    """``weight * xhat`` times the gate's activation; the norm on planish, the gate on torch."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        cls: Any = type(self)
        way = -1 if gate is None else _way_here(self, hidden_states, True)
        if way < 0 or gate is None:
            own: Tensor = cls.forward(self, hidden_states, gate)
            return own
        # Where the class rounds once, after the gate, the norm's result stays in float.
        wide = _WAYS[way][0] == "once"
        y = _norm(self, hidden_states.float() if wide else hidden_states, way)
        gated: Tensor = y * _activation(self.activation)(gate.float())
        return gated.to(hidden_states.dtype)


def _activation(name: Any) -> Any:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


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
        marks.begin(lambda cls: _way_of(cls, False) >= 0)
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
