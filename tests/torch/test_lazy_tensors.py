"""Tensors whose memory is not what they stand for: lazily negated ones, as the imaginary part of a
conjugate is, and zeros without memory. Results and gradients are those of the plain tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.nn.functional as F

import planish
import torch
from planish import distributed
from planish.compat import flashinfer
from torch import Tensor
from torch import distributed as dist

GENERATOR = torch.Generator().manual_seed(5)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


ROWS, OTHERS, IMAGE = _random(3, 4, 8), _random(3, 4, 8), _random(3, 8, 4, 4)
W, B = _random(8), _random(8)
CALLS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "layer_norm": (lambda x, w, b: planish.layer_norm(x, -1, w, b), [ROWS, W, B]),
    "layer_norm, strided": (
        lambda x, w: planish.layer_norm(x, 1, w, affine_dims=-1), [ROWS, W],
    ),
    "rms_norm": (lambda x, w: planish.rms_norm(x, -1, w), [ROWS, W]),
    "rms_norm, silu": (lambda x, w: planish.rms_norm(x, -1, w, activation="silu"), [ROWS, W]),
    "group_norm": (lambda x, w, b: planish.group_norm(x, 2, w, b), [IMAGE, W, B]),
    "group_norm, silu": (
        lambda x, w, b: planish.group_norm(x, 2, w, b, activation="silu"), [IMAGE, W, B],
    ),
    "batch_norm": (
        lambda x, w, b: planish.batch_norm(x, None, None, w, b, True), [IMAGE, W, B],
    ),
    "batch_norm, running": (
        lambda x, m, v, w: planish.batch_norm(x, m, v.abs(), w), [IMAGE, B, W, W + 1],
    ),
    "batch_norm, addend": (
        lambda x, w, b, r: planish.batch_norm(
            x, None, None, w, b, True, activation="silu", addend=r
        ),
        [IMAGE, W, B, IMAGE + 1],
    ),
    "add_layer_norm": (planish.add_layer_norm, [ROWS, OTHERS, W, B]),
    "add_rms_norm": (
        lambda x, r, w, c: planish.add_rms_norm(x, r, w, column_scale=c), [ROWS, OTHERS, W, B],
    ),
    "modulated_layer_norm": (
        lambda x, s, t, w, r, g: planish.modulated_layer_norm(x, s, t, w, residual=r, gate=g),
        [ROWS, OTHERS, W, B, ROWS + 1, OTHERS + 1],
    ),
    "gated_rms_norm": (planish.gated_rms_norm, [ROWS, OTHERS, W]),
    "gated_rms_norm, gate first": (
        lambda x, g, w: planish.gated_rms_norm(x, g, w, norm_before_gate=False),
        [ROWS, OTHERS, W],
    ),
    "qk_norm": (lambda q, k, v, w: planish.qk_norm(q, k, v, w, 1e-5), [ROWS, OTHERS, W, B]),
    "quantized_rms_norm": (
        lambda x, w, r: planish.quantized_rms_norm(x, w, per="row", residual=r),
        [ROWS, W, OTHERS],
    ),
    "normalize": (planish.normalize, [ROWS]),
    "weight_standardize": (planish.weight_standardize, [IMAGE]),
    "global_response_norm": (planish.global_response_norm, [ROWS, W, B]),
    "LayerNorm2d": (planish.LayerNorm2d(8, dtype=torch.float64), [IMAGE]),
    "RMSNorm2d": (planish.RMSNorm2d(8, dtype=torch.float64), [IMAGE]),
    "F.layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), [ROWS, W, B]),
    "F.rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), [ROWS, W]),
    "F.group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [IMAGE, W, B]),
    "F.batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [IMAGE, W, B]),
    "torch._weight_norm": (torch._weight_norm, [_random(8, 300), W.view(8, 1)]),
    "distributed.layer_norm": (distributed.layer_norm, [ROWS, W, B]),
    "distributed.qk_norm": (
        lambda q, k, v, w: distributed.qk_norm(q, k, v, w, 1e-5), [ROWS, OTHERS, W, B],
    ),
    "distributed.batch_norm": (
        lambda x, w, b: distributed.batch_norm(x, None, None, w, b, True), [IMAGE, W, B],
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """A group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def _negated(t: Tensor) -> Tensor:
    return torch.complex(torch.zeros_like(t), -t).conj().imag


def _zeros(t: Tensor) -> Tensor:
    return torch._efficientzerotensor(t.shape, dtype=t.dtype)


def _run(function: Callable[..., Any], given: list[Tensor], dy: Any) -> list[Tensor]:
    """The results, and the gradients of all that has one."""
    leaves = [t.detach().requires_grad_() for t in given]
    results = function(*leaves)
    results = list(results) if isinstance(results, tuple) else [results]
    through = [t for t in results if t.requires_grad and t.dtype == torch.float64]
    found: list[Any] = []
    if through:
        ahead = [dy(torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view_as(t)) for t in through]
        found = list(torch.autograd.grad(through, leaves, ahead, allow_unused=True))
    return [t.detach().resolve_neg() for t in results + found if t is not None]


@pytest.mark.parametrize("name", CALLS)
def test_lazy_negation_is_seen(name: str) -> None:
    function, given = CALLS[name]
    with planish.enabled():
        wanted = _run(function, given, lambda dy: dy)
        for place in range(len(given)):
            odd = [_negated(t) if i == place else t for i, t in enumerate(given)]
            assert odd[place].is_neg()
            found = _run(function, odd, lambda dy: dy)
            torch.testing.assert_close(found, wanted, msg=lambda m, i=place: f"argument {i}: {m}")
        found = _run(function, given, _negated)
        torch.testing.assert_close(found, wanted, msg=lambda m: f"dy: {m}")


#: torch's own group norm and weight norm run into the missing memory; batch norms have no variance.
REFUSED = ("F.group_norm", "torch._weight_norm")


@pytest.mark.parametrize("name", [n for n in CALLS if "batch" not in n and n not in REFUSED])
def test_zeros_without_memory_are_zeros(name: str) -> None:
    function, given = CALLS[name]
    with planish.enabled(), torch.no_grad():
        for place in range(len(given)):
            zeros = [torch.zeros_like(t) if i == place else t for i, t in enumerate(given)]
            odd = [_zeros(t) if i == place else t for i, t in enumerate(given)]
            wanted, found = function(*zeros), function(*odd)
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("place", range(4))
def test_lazy_negation_is_seen_by_what_writes_its_result(place: int) -> None:
    x, r, w = (t.float() for t in (ROWS.view(12, 8), OTHERS.view(12, 8), W))
    given = [x, w, torch.full((), 2.0), r]
    odd = [_negated(t) if i == place else t for i, t in enumerate(given)]
    wanted, found = (torch.empty(12, 8, dtype=torch.float8_e4m3fn) for _ in range(2))
    with torch.no_grad():
        for out, (x, w, scale, r) in (wanted, given), (found, odd):
            flashinfer.fused_add_rmsnorm_quant(out, x, r.clone(), w, scale)
    torch.testing.assert_close(found.float(), wanted.float())
