"""What runs at the places that added.py finds: a norm and the residual that its result is added to,
as one function where nobody can tell, and else as the block's own source has it; as stages.py has
it, which this is a part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planish.functions import stage_norms
from planish.library.seen import is_plain
from planish.replacing import stages
from planish.replacing.forms import Form, parameter_of, weight_of
from torch import Tensor, nn

__all__ = ["norm_added", "norm_added_apart"]


def norm_added_apart(norm: Any, x: Any, residual: Any, chain: tuple[Any, ...] = ()) -> Any:
    """As the source has it."""
    y = norm(x)
    for module in reversed(chain):
        y = module(y)
    return residual + y


def _does_nothing(module: Any, cls: type[nn.Module], kind: str) -> bool:
    """Now, to what goes in."""
    if type(module) is not cls or stages.watched(module):
        return False
    return kind == "none" or not (module.training and getattr(module, stages.rate_name(module)))


def norm_added(
    cls: type[nn.Module],
    form: Form,
    pairs: stages.Pairs,
    classes: tuple[tuple[type[nn.Module], str], ...] = (),
) -> Callable[..., Any]:
    """residual + chain(norm(x)): a shift of the norm's result, where the chain does nothing."""
    rms = form.kind == "rms"
    known: set[Any] = set()  # calls that fitted

    def run(norm: Any, x: Tensor, residual: Tensor) -> Any:
        function = stage_norms.modulated_rms_norm if rms else stage_norms.modulated_layer_norm
        weight, bias = weight_of(form, norm), parameter_of(norm, form.bias)
        eps, offset = stages._eps(form, norm, x), stages._offset(form)
        return function(x, None, residual, weight, bias, eps, weight_offset=offset)

    def helper(norm: Any, x: Any, residual: Any, chain: tuple[Any, ...] = ()) -> Any:
        if (  # as in stages.sum_norm
            not chain
            and type(norm) is cls
            and is_plain(x, residual)
            and not stages.watched(norm)
            and x.shape == residual.shape
            and stages._key(form, norm, x, residual) in known
        ):
            return run(norm, x, residual)
        if (
            isinstance(x, Tensor)
            and isinstance(residual, Tensor)
            and residual.shape == x.shape
            and residual.dtype == x.dtype
            and all(_does_nothing(m, *was) for m, was in zip(chain, classes, strict=True))
            and stages._fits(cls, pairs, norm, x.dtype, form, x, residual)
        ):
            weight, bias = weight_of(form, norm), parameter_of(norm, form.bias)
            rounding = stages._rounding(form, x.dtype, weight, bias)
            if rounding is not None and rounding[1] == x.dtype:
                if not chain and is_plain(x, residual) and len(known) < stages._ROOM:
                    known.add(stages._key(form, norm, x, residual))
                return run(norm, x, residual)
        return norm_added_apart(norm, x, residual, chain)

    return helper
