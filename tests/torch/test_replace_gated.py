"""planish.replace() on norms with a gate: one kernel for norm and gate, in the class's own order of
rounding."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
from torch.nn import functional

import planish
import torch
from planish import zoo
from torch import Tensor, nn

WIDTH = 48
CLASSES: dict[str, dict[str, Any]] = {
    "mamba2.MambaRMSNormGated": {},
    "bamba.BambaRMSNormGated": {},
    "granitemoehybrid.GraniteMoeHybridRMSNormGated": {},
    "zamba2.Zamba2RMSNormGated": {"group_size": 16},
    "nemotron_h.NemotronHRMSNormGated": {"group_size": 12},
    "falcon_h1.FalconH1RMSNormGated": {"n_groups": 3, "norm_before_gate": False},
    "qwen3_next.Qwen3NextRMSNormGated": {},
    "qwen3_5.Qwen3_5RMSNormGated": {},
    "olmo_hybrid.OlmoHybridRMSNormGated": {},
}


class Gated(nn.Module):
    """Rounds the product with the weight, then gates: as Qwen3-Next's."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        dtype = hidden_states.dtype
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        assert gate is not None
        y: Tensor = (self.weight * x.to(dtype)) * functional.silu(gate.float())
        return y.to(dtype)


class OwnNormGated(Gated):
    pass


class SigmoidNormGated(Gated):
    """Of a gate that no kernel has."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        assert gate is not None
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        y: Tensor = self.weight.float() * x * torch.sigmoid(gate.float())
        return y.to(hidden_states.dtype)


class SqueezesNormGated(Gated):
    """Takes away an axis of size 1, as FalconH1's does."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        y = super().forward(hidden_states, gate)
        return y.squeeze(1) if y.dim() == 3 and y.shape[1] == 1 else y


def made(name: str) -> nn.Module:
    if zoo.missing_packages(("transformers",)):
        pytest.skip("transformers not installed")
    zoo.prepare()
    module, _, cls = name.partition(".")
    try:
        found = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    except ImportError:
        pytest.skip(f"this version of transformers has no {module}")
    if not hasattr(found, cls):
        pytest.skip(f"this version of transformers has no {cls}")
    norm: nn.Module = getattr(found, cls)(WIDTH, **CLASSES[name])
    return norm


def seeded(norm: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(WIDTH) * 0.3 + 1)
    return norm.to(dtype)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    x, gate = torch.randn(2, 3, 7, WIDTH).to(dtype).unbind()
    return x.requires_grad_(), gate.requires_grad_()


def steps(norm: nn.Module, x: Tensor, gate: Tensor) -> list[Tensor]:
    y: Tensor = norm(x, gate)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x, gate, *norm.parameters()], dy)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*CLASSES, "OwnNormGated"])
def test_a_gated_norm_is_composed_or_gives_something_else(name: str, dtype: torch.dtype) -> None:
    norm = seeded(OwnNormGated(WIDTH) if name not in CLASSES else made(name), dtype)
    x, gate = inputs(dtype)
    cls = type(norm)
    exact = steps(
        copy.deepcopy(norm).double(), *(t.detach().double().requires_grad_() for t in (x, gate))
    )
    theirs = steps(norm, x, gate)
    planish.replace(norm)
    assert type(norm) is not cls and isinstance(norm, cls)
    ours = steps(norm, x, gate)
    y: Tensor = norm(x, gate)
    assert type(y.grad_fn).__name__ == "NormForwardBackward"  # one node: norm and gate together
    assert ours[0].dtype == theirs[0].dtype
    if dtype != torch.float32:  # the class's own order: bit by bit but for neighbours
        share = float((ours[0] != theirs[0]).double().mean())
        assert share <= 5e-3, share
    for one, other, wanted in zip(ours, theirs, exact, strict=True):
        largest = float(wanted.abs().max())
        mine, own = (float((t.double() - wanted).abs().max()) / largest for t in (one, other))
        assert mine <= max(2 * own, 8 * torch.finfo(dtype).eps)
    planish.restore(norm)
    assert type(norm) is cls
    assert all(torch.equal(a, b) for a, b in zip(steps(norm, x, gate), theirs, strict=True))


def test_a_gate_of_another_shape_or_dtype_raises() -> None:
    own, norm = (
        seeded(OwnNormGated(WIDTH), torch.float32),
        seeded(OwnNormGated(WIDTH), torch.float32),
    )
    planish.replace(norm)
    x, gate = (t.detach() for t in inputs(torch.float32))
    for given in (gate[:1], gate[..., :1], gate.bfloat16(), gate.transpose(0, 1).transpose(0, 1)):
        torch.testing.assert_close(norm(x, given), own(x, given), rtol=1e-5, atol=1e-5)
    assert norm(x[:0], gate[:0]).shape == (0, 7, WIDTH)


def test_a_gate_without_a_kernel_is_not_replaced() -> None:
    own = seeded(SigmoidNormGated(WIDTH), torch.bfloat16)
    norm = planish.replace(copy.deepcopy(own))
    assert type(norm) is not SigmoidNormGated
    x, gate = inputs(torch.bfloat16)
    for one, other in zip(steps(norm, x, gate)[:1], steps(own, x, gate)[:1], strict=True):
        assert float((one != other).double().mean()) <= 5e-3


@pytest.mark.parametrize("name", ["SqueezesNormGated", "falcon_h1.FalconH1RMSNormGated"])
def test_a_class_that_drops_an_axis_keeps_it(name: str) -> None:
    own = seeded(made(name) if name in CLASSES else SqueezesNormGated(WIDTH), torch.float32)
    norm = planish.replace(copy.deepcopy(own))
    x, gate = (t.detach() for t in inputs(torch.float32))
    for given in ((x, gate), (x[:, :1], gate[:, :1]), (x[:1], gate[:1]), (x[0], gate[0])):
        wanted = own(*given)
        found = norm(*given)
        assert found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_copies_or_compiled_gated_norms_give_something_else() -> None:
    norm = planish.replace(seeded(OwnNormGated(WIDTH), torch.float32))
    x, gate = inputs(torch.float32)
    wanted = steps(norm, x, gate)
    compiled: Any = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for one in (copy.deepcopy(norm), compiled):
        for found, other in zip(steps(one, x, gate), wanted, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-5, atol=1e-6)


def test_mamba2_with_fused_gates_gives_something_else() -> None:
    entry = zoo.entries()["mamba2"]
    if zoo.missing_packages(entry.packages):
        pytest.skip("transformers not installed")
    model, given = zoo.build(entry)
    wanted = model(**given).logits
    planish.replace(model)
    entries = [one for one in planish.replaced(model).taken if "gate before" in one.what]
    assert [one.modules for one in entries] == [2]
    torch.testing.assert_close(model(**given).logits, wanted, rtol=1e-4, atol=1e-5)
