"""torch's layer norm as planish's own functions and modules call it, right to every order.

torch differentiates the backward of a layer norm by a formula that takes mean and rstd for
constants, so its third derivatives are wrong. Where planish is under torch's operator, that is the
shortest way to planish's kernels; here it is taken without that formula.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from planish.library.seen import is_transformed
from planish.operators import ops
from torch import Tensor

__all__ = ["composed", "needs_composition", "through_torch"]

_Gradients = tuple[Tensor | None, ...]


@functools.lru_cache(maxsize=256)
def _hook(eps: float) -> Callable[[_Gradients, _Gradients], _Gradients | None]:
    """Puts planish's backward, which has derivatives of every order, in the place of torch's where
    the backward is recorded."""

    def backward(gradients: _Gradients, given: _Gradients) -> _Gradients | None:
        dy = given[0]
        if dy is None or not torch.is_grad_enabled():
            return None
        node: Any = torch._C._current_autograd_node()
        x, weight, bias = node._saved_input, node._saved_weight, node._saved_bias
        first = x.dim() - len(node._saved_normalized_shape)
        axes = list(range(first, x.dim()))
        with torch.no_grad():  # torch's are rounded to x's dtype
            _, mean, rstd = ops.plain_forward(x, None, None, axes, axes, eps, False, dense=True)
        wanted = [gradient is not None for gradient in gradients]
        dx, dweight, dbias = ops.plain_backward(
            dy, x, mean, rstd, weight, axes, axes, False, wanted
        )
        if dbias is not None and bias is not None:
            dbias = dbias.to(bias.dtype)
        return dx, dweight, dbias

    return backward


def through_torch(
    x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch.layer_norm, of a call whose saved tensors no hooks take."""
    y = torch.layer_norm(x, shape, weight, bias, eps)
    node = y.grad_fn
    if node is not None and hasattr(node, "_saved_result2"):
        node.register_hook(_hook(eps))
    return y


# ---- In elementary operators --------------------------------------------------------------------


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
