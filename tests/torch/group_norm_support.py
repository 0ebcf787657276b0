"""What test_group_norm.py, test_group_norm_errors.py, test_group_norm_derivatives.py share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

aten = torch.ops.aten
SLOW = "a layout that no fast kernel takes, or no kernel could be made"
FASTER = "a norm of which torch's own kernel is faster"


def raised_by(call: Callable[[], object]) -> tuple[type[Exception], str] | None:
    """The exception, without the C++ stack that some torches add; None: it raises none."""
    try:
        call()
    except Exception as error:
        return type(error), str(error).split("\nException raised from")[0]
    return None


def gradients(model: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(leaf)
    return [y.detach(), *torch.autograd.grad(y.pow(3).sum(), leaf)]
