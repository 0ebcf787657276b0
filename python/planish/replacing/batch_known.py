"""The batch norms of torch that planish's stand in for, and the activations that these do."""

from __future__ import annotations

from planish.modules import batch_modules
from torch import nn

__all__ = ["TYPES", "activation_of"]

#: planish's, by torch's that hold and compute the same.
TYPES: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: batch_modules.BatchNorm1d,
    nn.BatchNorm2d: batch_modules.BatchNorm2d,
    nn.BatchNorm3d: batch_modules.BatchNorm3d,
}

#: Activations that planish fuses behind a batch norm.
_ACTIVATIONS: dict[type[nn.Module], str | None] = {
    nn.Identity: None,
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
}


def activation_of(module: nn.Module | None) -> str | None:
    """What planish calls it. Raises KeyError for what it does not fuse."""
    if type(module) in _ACTIVATIONS:  # first: it is asked at every call of a block
        return _ACTIVATIONS[type(module)]  # type: ignore[index]
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    if type(module).__name__ in ("SiLU", "Swish") and not type(module).__module__.startswith(
        "torch"
    ):
        return _ACTIVATIONS[nn.SiLU]
    if module is None:
        return None
    raise KeyError(type(module))
