"""The norms of a compiled model beside the same norms in eager mode while planish is enabled: their
bits, forward and backward, for what came to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import Record, compiled

import planish
import torch
from planish import zoo
from planish.compile import forms
from planish.operators import call, ops
from planish.operators.call import Call, Tensors
from planish.operators.formulas import Given
from torch import Tensor

MODELS = ("llama", "bert", "vit", "convnext", "sd_unet")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def full(arguments: tuple[Any, ...], count: int, numbers: int) -> tuple[list[Any], Any]:
    """A form's tensors in the operator's order, and its numbers."""
    tensors, (given, *rest) = iter(arguments[: -numbers - 1]), arguments[-numbers - 1 :]
    return [next(tensors) if given >> place & 1 else None for place in range(count)], rest


def eager(given: Tensors, made: Call) -> Tensor:
    """y of the function of torch that says the same, where there is one, else of planish's."""
    x, weight, bias = given.x, given.weight, given.bias
    plain = [t for at, t in enumerate(given) if at not in (0, 5, 6)]
    options = made.options & ~(call.SAVE | call.DENSE)
    alone = all(t is None for t in plain) and not options & ~(call.RMS | 0xFF << 24)
    reduce = call.axes_of(made.axes, 0)
    last = list(range(x.dim() - len(reduce), x.dim()))
    if alone and made.split > 0:
        return F.group_norm(x, made.split, weight, bias, made.eps)
    if alone and reduce == last and options & call.RMS and bias is None:
        return F.rms_norm(x, x.shape[-len(reduce) :], weight, made.eps)
    if alone and reduce == last and not options & call.RMS:
        return F.layer_norm(x, x.shape[-len(reduce) :], weight, bias, made.eps)
    return ops.FORWARD(*given, *made)[0]  # type: ignore[no-any-return]


def kept_by_torch() -> int:
    """Calls of group norm that planish left to torch's own kernel, which is measured to be faster
    on some CPUs."""
    counted = planish.stats()
    names = ("native_group_norm", "native_group_norm_backward")
    return sum(sum(counted[name]["torch"].values()) for name in names)


def copied(given: Given) -> bool:
    """Whether what is copied on a GPU, as x and its gradient lie otherwise, is x in eager mode, and
    its gradient in a graph."""
    return given.s.is_cuda and given.dy.is_contiguous() and not given.s.is_contiguous()


def same(one: Tensor, other: Tensor, otherwise: bool, name: str) -> None:
    """Bits, where both are of one kernel of planish's."""
    if otherwise:
        assert float((one - other).abs().max()) <= 2e-2 * float(other.abs().max()), name
    else:
        assert torch.equal(one, other), name


def leaf(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.detach().requires_grad_()


def check(forward: Record, backwards: list[Record]) -> int:
    """Compares one norm; how many gradients it had."""
    _, arguments, (y, *_) = forward
    tensors, numbers = full(arguments, len(Tensors._fields), 5)
    given = Tensors(*(leaf(t) for t in tensors))
    before = kept_by_torch()
    ours = eager(given, Call(*numbers))
    same(ours, y, kept_by_torch() > before, f"forward of {tuple(y.shape)}")
    compared = 0
    for _, others, results in backwards:
        seen = Given(*full(others, len(Given._fields), 4)[0])
        options = others[-3]
        alike = seen.s.data_ptr() == tensors[0].data_ptr() and seen.s.shape == tensors[0].shape
        if not alike or seen.dsum is not None:
            continue
        names = [n for n, want in zip(call.GRADIENTS, call.wanted_in(options), strict=True) if want]
        leaves = [getattr(given, name) for name in names]
        before = kept_by_torch()
        gradients = torch.autograd.grad(ours, leaves, seen.dy, retain_graph=True)
        otherwise = kept_by_torch() > before or copied(seen)
        for name, one, other in zip(names, gradients, results, strict=True):
            same(one, other, otherwise, f"gradient of {name}, {tuple(y.shape)}")
            compared += 1
    return compared


def compare(name: str, dtype: torch.dtype, device: str) -> None:
    """Every norm of a training step of a model of the zoo."""
    entry = zoo.entries()[name]
    missing = zoo.missing_packages(entry.packages)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    model, inputs = zoo.build(entry, dtype)
    model.to(device).train()
    inputs = {key: t.to(device) if isinstance(t, Tensor) else t for key, t in inputs.items()}
    planish.enable()
    run, graphs = compiled(model, fullgraph=False)
    zoo.loss_of(run(**inputs)).backward()  # type: ignore[no-untyped-call]
    graphs.record = True
    torch.manual_seed(0)
    zoo.loss_of(run(**inputs)).backward()  # type: ignore[no-untyped-call]
    assert graphs.calls
    by_family = {
        name: [one for one in graphs.calls if one[0].name().startswith(f"planish::{name}.")]
        for name in (forms.FORWARD, forms.BACKWARD)
    }
    compared = sum(check(one, by_family[forms.BACKWARD]) for one in by_family[forms.FORWARD])
    wanted = sum(len(results) for *_, results in by_family[forms.BACKWARD])
    assert compared == wanted > 0, (compared, wanted)
    names = graphs.counted()
    assert not any("native_" in op and "norm" in op for op in names), names
