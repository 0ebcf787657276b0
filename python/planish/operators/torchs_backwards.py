"""Backwards of planish's own calls of torch's operators (library/torch_calls.py) where autograd
records them.

torch differentiates the backward of a layer norm or batch norm by a formula that takes mean and
rstd for constants, so its third derivatives are wrong; and that of a batch norm does without a
weight or a gradient that its formula has to have. Of planish's own calls the backward that is
recorded is planish's.
"""

from __future__ import annotations

from typing import Any

import torch
from planish.library.loaded import library
from planish.operators import batch_ops, ops
from torch import Tensor

__all__: list[str] = []

_Gradients = tuple[Tensor | None, ...]


def _statistics(node: Any) -> tuple[Tensor, Tensor]:
    return node._saved_result1.detach(), node._saved_result2.detach()


def _layer_norm(node: Any, dy: Tensor, wanted: list[bool]) -> _Gradients:
    x, weight, bias = node._saved_input, node._saved_weight, node._saved_bias
    first = x.dim() - len(node._saved_normalized_shape)
    axes = list(range(first, x.dim()))
    dx, dweight, dbias = ops.plain_backward(
        dy, x, *_statistics(node), weight, axes, axes, False, wanted
    )
    if dbias is not None and bias is not None:
        dbias = dbias.to(bias.dtype)
    return dx, dweight, dbias


def _batch_norm(node: Any, dy: Tensor, wanted: list[bool]) -> _Gradients:
    if node._saved_training:
        mean, spread = _statistics(node)
    else:
        mean, spread = node._saved_running_mean, node._saved_running_var
    x, weight = node._saved_input, node._saved_weight
    return batch_ops.bare_backward(
        dy, x, spread, mean, weight, node._saved_eps, not node._saved_training, wanted
    )


_BACKWARDS = {"NativeLayerNormBackward0": _layer_norm, "NativeBatchNormBackward0": _batch_norm}


def _replace(handle_of_dy: Any) -> None:
    """Called inside of the backward where autograd records it, with dy: puts planish's backward,
    which has derivatives of every order, in the place of torch's."""
    dy: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(handle_of_dy)
    node: Any = torch._C._current_autograd_node()
    found = None if node is None else _BACKWARDS.get(node.name())
    if found is None:
        return

    def backward(gradients: _Gradients, _: Any) -> _Gradients:
        handle.remove()
        wanted = [gradient is not None for gradient in gradients[:3]]
        return *found(node, dy, wanted), *gradients[3:]

    handle = node.register_hook(backward)


library().when_recorded(_replace)
