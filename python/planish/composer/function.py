"""The function of planish.composer, which does without Composer."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence

from torch.optim import Optimizer

from planish.modules import norm_modules
from torch import nn

__all__ = ["apply_fused_layernorm"]

_log = logging.getLogger("planish")


def apply_fused_layernorm(
    model: nn.Module, optimizers: Optimizer | Sequence[Optimizer] | None = None
) -> None:
    """Puts planish.LayerNorm in the place of every torch.nn.LayerNorm of ``model``, in place.

    The new modules hold the same Parameter objects: trained weights, and what any optimizer knows
    of them, stay as they are, also in the middle of a training. So ``optimizers`` is not needed; it
    is taken because Composer's functions take it. Under autocast half input is normalized as it is,
    with float weights and statistics, and the result is half: see :class:`planish.LayerNorm`.

    Subclasses of torch.nn.LayerNorm are left alone, since their forward is their own; so is a model
    that itself is a LayerNorm (it could not be replaced in place: ValueError). A model without any
    gets a warning, Composer's NoEffectWarning where Composer is there.

    Example:

    >>> from planish.composer import apply_fused_layernorm
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    >>> apply_fused_layernorm(model)
    >>> isinstance(model[1], planish.LayerNorm)
    True
    """
    del optimizers
    if type(model) is nn.LayerNorm:
        raise ValueError(
            "apply_fused_layernorm: model is a LayerNorm, which cannot be replaced in place; "
            "wanted a module that holds some (or use planish.replace, which returns the new one)"
        )
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and type(child) is nn.LayerNorm:
                if id(child) not in made:
                    made[id(child)] = norm_modules._replacement(child, norm_modules.LayerNorm)
                parent._modules[name] = made[id(child)]
    if not made:
        warnings.warn(_no_effect("No instances of torch.nn.LayerNorm found."), stacklevel=2)
    _log.info("replaced %d instances of torch.nn.LayerNorm by planish.LayerNorm", len(made))


def _no_effect(text: str) -> Warning:
    known = sys.modules.get("composer.algorithms.warnings")
    kind: type[Warning] = getattr(known, "NoEffectWarning", RuntimeWarning)
    return kind(text)


apply_fused_layernorm.__module__ = "planish.composer"
