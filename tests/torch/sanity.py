"""A row of the table of docs/guide/pytorch-details.md about the torch that is there;
.ci/torch-versions runs it.

    python sanity.py FILE

Exits with 1 where a value is not torch's.
"""

from __future__ import annotations

import sys

import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import planish
import torch
from planish.library.loaded import library
from torch import Tensor


def first_use() -> str:
    with FakeTensorMode():
        planish.enable()
        y = planish.layer_norm(torch.ones(2, 3), 0)
    planish.disable()
    return "works" if tuple(y.shape) == (2, 3) else "differs"


def results() -> list[Tensor]:
    """y, dx and dweight of every operator and layout."""
    found = []
    x = torch.arange(480.0).sin().reshape(2, 6, 4, 10)
    for layout in (x, x.contiguous(memory_format=torch.channels_last), x[..., :4], x[:1]):
        for function, count, sizes in (
            (F.layer_norm, layout.shape[-1], layout.shape[-1:]),
            (F.rms_norm, layout.shape[-1], layout.shape[-1:]),
            (F.group_norm, 6, 3),
        ):
            leaves = [
                layout.detach().requires_grad_(),
                torch.linspace(1, 2, count).requires_grad_(),
            ]
            y = function(leaves[0], sizes, leaves[1])  # type: ignore[arg-type]
            found += [y, *torch.autograd.grad(y.square().sum(), leaves)]
    return found


def values() -> str:
    native = results()
    with planish.enabled(devices="cpu"):
        before = planish.stats()
        ours = results()
        after = planish.stats()
    for name in ("native_layer_norm", "native_group_norm", "_fused_rms_norm"):
        for operator in (name, f"{name}_backward"):
            if after[operator]["planish"] == before[operator]["planish"]:
                return f"{operator} ran on torch"
    for one, other in zip(ours, native, strict=True):
        if one.stride() != other.stride() or not torch.allclose(one, other, 1e-4, 1e-4):
            return "differ"
    return "torch's"


def takes_strides() -> str:
    x = torch.randn(2, 6, 4, 10)[..., :5]
    try:
        torch.ops.aten.native_group_norm(x, None, None, 2, 6, 20, 3, 1e-5)
    except RuntimeError:
        return "no: raises"
    return "yes"


def keeps_strides() -> str:
    x = torch.empty_strided((1, 6, 4, 5), (777, 1, 30, 6)).normal_().requires_grad_()
    (dx,) = torch.autograd.grad(F.group_norm(x, 3).sum(), x)
    return "yes" if dx.stride(0) == 777 else "no"


def main() -> int:
    fake, same = first_use(), values()
    symbols, abi = library().symbols(), library().torch_version()
    unboxed = planish.stats()["native_layer_norm"]["unboxed"] > 0
    cells = [
        torch.__version__,
        f"{abi // 100}.{abi % 100}",
        f"{sum(symbol.found for symbol in symbols)} of {len(symbols)}",
        "yes" if unboxed else "no: boxed",
        takes_strides(),
        keeps_strides(),
        same,
        fake,
    ]
    with open(sys.argv[1], "w") as file:
        file.write(f"| {' | '.join(cells)} |")
    return 0 if same == "torch's" and fake == "works" else 1


if __name__ == "__main__":
    sys.exit(main())
