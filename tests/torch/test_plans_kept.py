"""Plans are kept by what x is: other tensors that do not go with it must not be run by one."""

from __future__ import annotations

import pytest

import torch
from planish.operators import ops
from torch import Tensor

X, W = torch.randn(2, 3, 8), torch.ones(8)
IMAGE, CHANNELS = torch.randn(2, 2, 4, 3, 3), torch.ones(2, 4)

#: x, a weight that goes with it, reduced and affine axes: rows, heads of rows, groups.
NORMS = {
    "rows": (X, W, [2], [2]),
    "two axes": (X, torch.ones(3, 8), [1, 2], [1, 2]),
    "groups": (IMAGE, CHANNELS, [2, 3, 4], [1, 2]),
}


def others(tensor: Tensor) -> list[Tensor]:
    """Tensors of other sizes, of as many elements among them."""
    short = tensor.flatten()[: max(tensor.numel() // 3, 1)]
    made = [torch.ones(()), short.clone(), tensor.reshape(2, -1, 1, 1), tensor[..., :1].clone()]
    return [other for other in made if other.shape != tensor.shape]


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_plan_reads_past_a_tensor_that_does_not_go_with_x(norm: str, rms: bool) -> None:
    x, weight, reduce, affine = NORMS[norm]
    forward = {"x": x, "weight": weight, "bias": weight}
    y, mean, rstd = ops.plain_forward(*forward.values(), reduce, affine, 1e-5, rms, dense=True)
    backward = {"dy": y, "x": x, "mean": mean, "rstd": rstd, "weight": weight}
    rest = reduce, affine, rms
    ops.plain_backward(*backward.values(), *rest)
    for name, tensor in backward.items():
        if name == "x" or (name == "mean" and rms):
            continue
        for other in others(tensor):
            if name in forward:
                with pytest.raises(RuntimeError, match="planish: weight has"):
                    given = {**forward, name: other}
                    ops.plain_forward(*given.values(), reduce, affine, 1e-5, rms, dense=True)
            with pytest.raises(RuntimeError, match=f"planish: {name} has"):
                ops.plain_backward(*{**backward, name: other}.values(), *rest)
    for other in others(weight):
        with pytest.raises(RuntimeError, match="planish: bias has"):
            given = {**forward, "bias": other}
            ops.plain_forward(*given.values(), reduce, affine, 1e-5, rms, dense=True)
