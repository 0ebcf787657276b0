"""qk_norm as one call of planish::norm_pair: bits of each norm alone, derivatives, transforms."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support import FLOATS

import planish
import torch
from planish.functions import stages
from planish.operators import call, kept, ops
from torch import Tensor

EPS = 1e-6


def packed(dtype: torch.dtype = torch.float32, cols: int = 64) -> Tensor:
    """Queries of 8 heads, keys and values of 2."""
    torch.manual_seed(3)
    return torch.randn(2, 7, 12, cols).to(dtype).requires_grad_()


def parts(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """The queries and the keys."""
    return qkv[:, :, :8], qkv[:, :, 8:10]


def weights(dtype: torch.dtype, own: bool, cols: int = 64) -> tuple[Tensor, Tensor]:
    """Of queries and keys: of each head, or of all."""
    shapes = ((8, cols), (2, cols)) if own else ((cols,), (cols,))
    made = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return made[0], made[1]


def one_by_one(
    q: Tensor, k: Tensor, q_weight: Any, k_weight: Any, kind: str, offset: float
) -> tuple[Tensor, Tensor]:
    """Two norms."""
    return (
        stages.norm_last(kind == "rms", q, q_weight, None, EPS, offset, q.dtype),
        stages.norm_last(kind == "rms", k, k_weight, None, EPS, offset, k.dtype),
    )


def copies(*tensors: Tensor) -> list[Tensor]:
    """Leaves of the same values."""
    return [t.detach().clone().requires_grad_() for t in tensors]


def calls() -> dict[str, int]:
    """How often each operator of two norms was entered so far."""
    stats: Any = planish.stats()
    names = ("planish::norm_pair", "planish::norm_pair_backward")
    return {name: stats[name]["planish"] for name in names}


@pytest.mark.parametrize(
    ("dtype", "kind", "own", "offset"),
    itertools.product(FLOATS, ("rms", "layer"), (False, True), (0.0, 1.0)),
)
def test_bits_are_those_of_each_norm_alone(
    dtype: torch.dtype, kind: str, own: bool, offset: float
) -> None:
    qkv = packed(dtype)
    both = weights(dtype, own)
    again, *both_again = copies(qkv, *both)
    found = planish.qk_norm(*parts(qkv), *both, EPS, kind=kind, weight_offset=offset)
    wanted = one_by_one(*parts(again), *both_again, kind, offset)
    gradients = [torch.randn(y.shape).to(dtype) for y in found]
    torch.autograd.backward(found, gradients)
    torch.autograd.backward(wanted, gradients)
    leaves = zip((qkv, *both), (again, *both_again), strict=True)
    pairs = [*zip(found, wanted, strict=True), *((a.grad, b.grad) for a, b in leaves)]
    for a, b in pairs:
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    with torch.no_grad():
        for y, kept in zip(
            planish.qk_norm(*parts(qkv), *both, EPS, kind=kind, weight_offset=offset),
            found,
            strict=True,
        ):
            assert torch.equal(y, kept)
            assert y.is_contiguous()


def test_it_is_one_call_in_each_direction() -> None:
    qkv, (q_weight, k_weight) = packed(), weights(torch.float32, False)
    for _ in range(2):  # the first of its kind, and one that is known
        before = calls()
        q, k = planish.qk_norm(*parts(qkv), q_weight, k_weight, EPS)
        (q.sum() + k.sum()).backward()
        after = calls()
        assert [after[name] - before[name] for name in after] == [1, 1]


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_of_one_of_the_two(which: int) -> None:
    qkv, both = packed(), weights(torch.float32, False)
    again, *both_again = copies(qkv, *both)
    planish.qk_norm(*parts(qkv), *both, EPS)[which].sum().backward()
    one_by_one(*parts(again), *both_again, "rms", 0.0)[which].sum().backward()
    assert qkv.grad is not None
    assert again.grad is not None
    assert torch.equal(qkv.grad, again.grad)
    q, k = copies(*parts(qkv))
    k.requires_grad_(False)
    y, other = planish.qk_norm(q, k, both[0].detach(), both[1].detach(), EPS)
    assert y.requires_grad
    torch.autograd.backward((y, other), (torch.ones_like(y), torch.ones_like(other)))
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()
    assert k.grad is None


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_derivatives_of_both_orders(kind: str, offset: float) -> None:
    torch.manual_seed(5)
    qkv = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    q_weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    k_weight = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return planish.qk_norm(x[:, :3], x[:, 3:], a, b, EPS, kind=kind, weight_offset=offset)

    inputs = qkv, q_weight, k_weight
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("rms", [True, False])
def test_the_operators_keep_torchs_rules(rms: bool) -> None:
    qkv, (q_weight, k_weight) = packed(torch.float64, 8), weights(torch.float64, True, 8)
    q, k = parts(qkv)
    tensors = q, k, q_weight, k_weight
    saving, alone = (call.pack_options(rms=rms, save=save) for save in (True, False))
    torch.library.opcheck(ops.PAIR, (*tensors, saving, EPS))
    torch.library.opcheck(ops.PAIR, (*(t.detach() for t in tensors), alone, EPS))
    results = ops.PAIR(*tensors, saving, EPS)
    _, mean, rstd, _, second_mean, second_rstd = (t if t is None else t.detach() for t in results)
    gradients = torch.randn_like(q).requires_grad_(), torch.randn_like(k).requires_grad_()
    for wanted in (0b1111, 0b1001, 0b0100):
        given = (*gradients, q, k, mean, second_mean, rstd, second_rstd, q_weight, k_weight)
        options = call.pack_options(rms=rms, save=False, wanted=wanted)
        torch.library.opcheck(ops.PAIR_BACKWARD, (*given, options))


def test_compiled_it_is_one_operator() -> None:
    qkv, both = packed(), weights(torch.float32, False)
    again, *both_again = copies(qkv, *both)
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def function(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return planish.qk_norm(*parts(x), a, b, EPS)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=keep, fullgraph=True)
    found, wanted = compiled(qkv, *both), function(again, *both_again)
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert targets.count("planish.norm_pair.default") == 1, targets
    for y, other in zip(found, wanted, strict=True):
        assert torch.equal(y, other)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.autograd.backward(compiled(qkv, *both), [torch.ones_like(y) for y in found])
    torch.autograd.backward(wanted, [torch.ones_like(y) for y in found])
    assert qkv.grad is not None
    assert again.grad is not None
    assert torch.equal(qkv.grad, again.grad)


def test_transforms_go_the_way_of_each_norm() -> None:
    qkv, both = packed(torch.float64), weights(torch.float64, False)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return planish.qk_norm(x[:, :8], x[:, 8:10], *(w.detach() for w in both), EPS)

    x = qkv.detach()
    mapped = torch.func.vmap(function)(x)
    for y, other in zip(mapped, planish.qk_norm(*parts(x), *both, EPS), strict=True):
        torch.testing.assert_close(y, other)
    _, tangents = torch.func.jvp(function, (x[0],), (torch.ones_like(x[0]),))
    assert all(torch.isfinite(t).all() for t in tangents)
    torch.func.grad(lambda t: function(t)[1].sum())(x[0])


def test_a_tensor_of_inference_mode() -> None:
    with torch.inference_mode():
        qkv = torch.randn(2, 7, 12, 64)
        expected = planish.qk_norm(*parts(qkv), None, None, EPS)
    weight = torch.randn(64, requires_grad=True)
    for _ in range(2):
        q, k = planish.qk_norm(*parts(qkv), weight, None, EPS)
        assert torch.allclose(q.detach(), expected[0] * weight.detach())
        assert torch.equal(k, expected[1])


def test_mixed_dtypes_and_ranks() -> None:
    torch.manual_seed(7)
    q, k = torch.randn(4, 8, 64).bfloat16(), torch.randn(9, 64)
    q_weight, k_weight = torch.randn(8, 64), torch.randn(64).bfloat16()
    found = planish.qk_norm(q, k, q_weight, k_weight, EPS)
    wanted = one_by_one(q, k, q_weight, k_weight, "rms", 0.0)
    for y, other in zip(found, wanted, strict=True):
        assert torch.equal(y, other)
    doubled = planish.qk_norm(q, k, q_weight.double(), None, EPS)
    exact = one_by_one(q, k, q_weight.double(), None, "rms", 0.0)
    assert torch.equal(doubled[0], exact[0])


def test_no_rows() -> None:
    q = torch.randn(0, 8, 64, requires_grad=True)
    k, weight = torch.randn(3, 2, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    y, z = planish.qk_norm(q, k, weight, None, EPS)
    (y.sum() + z.sum()).backward()
    assert y.shape == q.shape
    assert weight.grad is not None
    assert not weight.grad.any()


def test_bad_input() -> None:
    q, k = torch.randn(2, 3, 8, 64), torch.randn(2, 3, 2, 64)
    with pytest.raises(ValueError, match="kind is 'batch'"):
        planish.qk_norm(q, k, None, None, EPS, kind="batch")
    with pytest.raises(RuntimeError, match="k_weight"):
        planish.qk_norm(q, k, None, torch.randn(32), EPS)
    with pytest.raises(NotImplementedError, match="q"):
        planish.qk_norm(q.int(), k, None, None, EPS)
    with pytest.raises(ValueError, match="cast"):
        planish.qk_norm(q, k, None, None, EPS, cast="never")
    with pytest.raises(RuntimeError, match="weight"):
        ops.PAIR(q, k, torch.randn(32), None, call.pack_options(rms=True), EPS)


def test_many_shapes_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_ROOM", 4)
    monkeypatch.setattr(kept, "_calls", {})
    for tokens in range(1, 12):
        planish.qk_norm(torch.ones(tokens, 8), torch.ones(tokens, 8), None, None, EPS)
    assert len(kept._calls) <= 4
