"""Layer norms that are right to every order.

torch differentiates the backward of a layer norm by a formula that takes mean and rstd for
constants, so its third derivatives are wrong. planish's own calls of torch's operator
(library/torch_calls.py) do without that formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from planish.library.loaded import library
from planish.library.seen import is_transformed
from planish.operators import ops
from torch import Tensor

__all__ = ["composed", "needs_composition"]

_Gradients = tuple[Tensor | None, ...]


def _replace(handle_of_dy: Any) -> None:
    """Called inside of the backward where autograd records it, with dy: puts planish's backward,
    which has derivatives of every order, in the place of torch's."""
    dy: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(handle_of_dy)
    node: Any = torch._C._current_autograd_node()
    if node is None or not hasattr(node, "_saved_normalized_shape"):
        return

    def backward(gradients: _Gradients, _: Any) -> _Gradients:
        handle.remove()
        x, weight, bias = node._saved_input, node._saved_weight, node._saved_bias
        mean, rstd = node._saved_result1.detach(), node._saved_result2.detach()
        first = x.dim() - len(node._saved_normalized_shape)
        axes = list(range(first, x.dim()))
        wanted = [gradient is not None for gradient in gradients]
        dx, dweight, dbias = ops.plain_backward(
            dy, x, mean, rstd, weight, axes, axes, False, wanted
        )
        if dbias is not None and bias is not None:
            dbias = dbias.to(bias.dtype)
        return dx, dweight, dbias

    handle = node.register_hook(backward)


library().when_recorded(_replace)


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
