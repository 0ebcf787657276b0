"""Layer norms in elementary operators, right to every order, which torch's formula of the second
derivative is not (torchs_backwards.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from planish.library.seen import is_transformed
from torch import Tensor

__all__ = ["composed", "needs_composition"]


def _levels() -> int:
    """Transforms of torch.func at work that differentiate."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return sum(one.key() in (kinds.Grad, kinds.Jvp) for one in stack)


_levels._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in ways.py


def needs_composition(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func, or forward mode, is at work in which torch's formula might
    be differentiated once more."""
    if _levels() > 1:
        return True
    if torch.compiler.is_compiling() or not is_transformed():
        return False
    return any(_is_recorded_below(tensor) for tensor in tensors if tensor is not None)


def _is_recorded_below(tensor: Tensor) -> bool:
    """Whether autograd records it outside of all transforms."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def composed(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Over the last axes, in operators that torch differentiates right to every order."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(axes, keepdim=True)
    y = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)
