"""Norms with stages on a GPU: results and gradients, dropout, CUDA graphs."""

from __future__ import annotations

import pytest
from support import FLOATS, Calls
from test_staged_values import CASES, FORWARD, composed, is_fused, near, results_of, tensors

import planish
import torch
from planish.operators import arguments, formulas

if not torch.cuda.is_available():
    pytest.skip("no GPU that torch can use", allow_module_level=True)
if "cuda" not in arguments.DEVICES:
    pytest.skip("this torch lacks what planish needs of CUDA", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("in_one_call")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if "scales" not in name])
def test_a_fused_norm_is_not_its_formula(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    host = tensors(dtype, dtype, 2, 3, 32)
    given = {key: t.detach().cuda().requires_grad_() for key, t in host.items()}
    exact = {key: t.detach().double().requires_grad_() for key, t in given.items()}
    calls = Calls()
    ours = results_of(CASES[name], given)
    torch.cuda.synchronize()
    assert is_fused(calls)
    with composed(monkeypatch):
        wanted = results_of(CASES[name], exact)
    half = dtype in (torch.bfloat16, torch.float16)
    near(ours, wanted, dtype if half else torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_residual_is_rounded_otherwise_than_in_an_addition(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    for shape in ((3, 5, 40), (1, 4096), (513, 1024)):
        x, residual = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        weight = torch.randn(shape[-1], device="cuda").to(dtype)
        ours = planish.add_rms_norm(x, residual, weight)
        with composed(monkeypatch):
            theirs = planish.add_rms_norm(x, residual, weight)
        assert torch.equal(ours[1], theirs[1])
        near([ours[0]], [theirs[0]], dtype)


def test_a_mask_is_another_on_a_gpu() -> None:
    x = torch.ones(37, 130, device="cuda", requires_grad=True)
    zeros = torch.zeros_like(x)
    torch.cuda.manual_seed(3)
    rng = torch.randint(2**63 - 1, (2,), device="cuda")
    torch.cuda.manual_seed(3)
    calls = Calls()
    total = planish.add_layer_norm(x, zeros, dropout_p=0.3)[1]
    if calls.on_planish(FORWARD) == 0:
        pytest.skip("the library has no kernel for dropout on this GPU")
    assert torch.equal(total != 0, formulas.keep_of(rng, x.shape, 0.3))
    assert torch.equal(total.cpu() != 0, formulas.keep_of(rng.cpu(), x.shape, 0.3))
    (dx,) = torch.autograd.grad(total.sum(), x)
    assert torch.equal(dx, total)


def test_a_graph_replays_one_mask_for_ever() -> None:
    x, zeros = torch.ones(64, 256, device="cuda"), torch.zeros(64, 256, device="cuda")
    planish.add_rms_norm(x, zeros, dropout_p=0.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = planish.add_rms_norm(x, zeros, dropout_p=0.5)[1]
    masks = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        masks.append((total != 0).clone())
        assert 0.45 < masks[-1].double().mean() < 0.55
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


def test_a_quantised_norm_is_another_on_a_gpu() -> None:
    x, r = torch.randn(33, 256), torch.randn(33, 256)
    for given in ({}, {"per": 128}, {"per": 32, "scale_format": "e8m0"}, {"dtype": torch.int8}):
        host = planish.quantized_rms_norm(x, residual=r, **given)
        ours = planish.quantized_rms_norm(x.cuda(), residual=r.cuda(), **given)
        assert torch.equal(ours[2].cpu(), host[2])
        torch.testing.assert_close(ours[1].float().cpu(), host[1].float(), rtol=1e-6, atol=0)
        wrong = (ours[0].float().cpu() != host[0].float()).double().mean()
        assert wrong < 0.01  # a step of the type where y lies on the edge between two
