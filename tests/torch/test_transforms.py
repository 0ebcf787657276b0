"""planish's functions and modules under torch's transforms: derivatives of every order and mode,
vmap, torch.func, per-sample gradients, operators under opcheck.

The reference is the formula in torch's elementary operators, which torch differentiates right to
any order. (torch's own layer_norm takes the saved mean and rstd for constants in its third
derivative.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import planish
import torch
from planish.operators import call as _call
from planish.operators import ops
from planish.operators.formulas import Given
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]
EPS = 1e-5


def normalized(x: Tensor, dims: list[int], rms: bool = False) -> Tensor:
    centred = x if rms else x - x.mean(dims, keepdim=True)
    return centred * (centred.square().mean(dims, keepdim=True) + EPS).rsqrt()


def grouped(x: Tensor, groups: int) -> Tensor:
    apart = x.reshape(x.shape[0], groups, -1)
    return normalized(apart, [2]).reshape(x.shape)


W = torch.linspace(0.5, 1.5, 4, dtype=torch.double)
B = torch.linspace(-1, 1, 4, dtype=torch.double)
CHANNELS = (1, -1, 1, 1)


def _module(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        module = module.double()
        if getattr(module, "weight", None) is not None:
            module.weight.copy_(W)
        if getattr(module, "bias", None) is not None:
            module.bias.copy_(B)
    return module


CASES: dict[str, tuple[Function, Function, tuple[int, ...]]] = {
    "layer_norm, last axis": (
        lambda x: planish.layer_norm(x, -1, W, B),
        lambda x: normalized(x, [-1]) * W + B,
        (3, 4),
    ),
    "layer_norm, axes apart": (
        lambda x: planish.layer_norm(x, (0, 2), affine_dims=1, weight=W, bias=B),
        lambda x: normalized(x, [0, 2]) * W.view(4, 1) + B.view(4, 1),
        (2, 4, 3),
    ),
    "rms_norm, channels": (
        lambda x: planish.rms_norm(x, 1, W, B),
        lambda x: normalized(x, [1], rms=True) * W.view(CHANNELS) + B.view(CHANNELS),
        (2, 4, 2, 2),
    ),
    "group_norm": (
        lambda x: planish.group_norm(x, 2, W, B),
        lambda x: grouped(x, 2) * W.view(CHANNELS) + B.view(CHANNELS),
        (2, 4, 3, 2),
    ),
    "group_norm and silu": (
        lambda x: planish.group_norm(x, 2, W, B, activation="silu"),
        lambda x: torch.nn.functional.silu(grouped(x, 2) * W.view(CHANNELS) + B.view(CHANNELS)),
        (2, 4, 3, 2),
    ),
    "weight_standardize": (
        planish.weight_standardize,
        lambda x: normalized(x, [1, 2]),
        (3, 2, 4),
    ),
    "LayerNorm": (
        _module(planish.LayerNorm(4)),
        lambda x: normalized(x, [-1]) * W + B,
        (3, 4),
    ),
    "RMSNorm": (
        _module(planish.RMSNorm(4, eps=EPS)),
        lambda x: normalized(x, [-1], rms=True) * W,
        (3, 4),
    ),
    "LayerNorm2d": (
        _module(planish.LayerNorm2d(4)),
        lambda x: normalized(x, [1]) * W.view(CHANNELS) + B.view(CHANNELS),
        (2, 4, 2, 3),
    ),
    "GroupNorm": (
        _module(planish.GroupNorm(2, 4)),
        lambda x: grouped(x, 2) * W.view(CHANNELS) + B.view(CHANNELS),
        (2, 4, 2, 3),
    ),
    "InstanceNorm2d": (
        _module(planish.InstanceNorm2d(4, affine=True)),
        lambda x: normalized(x, [2, 3]) * W.view(CHANNELS) + B.view(CHANNELS),
        (2, 4, 2, 3),
    ),
    "EvoNorm2dS0": (
        _module(planish.EvoNorm2dS0(4, 2)),
        lambda x: (
            x
            * x.sigmoid()
            * (x.view(2, 2, 2, 2, 3).var((2, 3, 4), unbiased=False, keepdim=True) + EPS)
            .rsqrt()
            .expand(2, 2, 2, 1, 1)
            .reshape(2, 4, 1, 1)
            * W.view(CHANNELS)
            + B.view(CHANNELS)
        ),
        (2, 4, 2, 3),
    ),
}


@pytest.fixture(params=[False, True], ids=["off", "enabled"], autouse=True)
def _switch(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        with planish.enabled():
            yield
    else:
        yield


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-9, atol=1e-9)


def inputs(shape: tuple[int, ...], count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.double, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_zero_or_wrong(name: str) -> None:
    f, reference, shape = CASES[name]
    x, v = inputs(shape)
    same(jvp(f, (x,), (v,))[1], jvp(reference, (x,), (v,))[1])
    same(jacfwd(f)(x), jacfwd(reference)(x))
    forward_ad = torch.autograd.forward_ad
    wanted = jvp(reference, (x,), (v,))[1]
    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(x, v))
        tangent = forward_ad.unpack_dual(y).tangent
        assert tangent is not None
        same(tangent, wanted)
        plain = f(x)  # nothing to differentiate at this level
        assert forward_ad.unpack_dual(plain).tangent is None


@pytest.mark.parametrize("name", CASES)
def test_transforms_of_torch_func_raise_or_are_wrong(name: str) -> None:
    f, reference, shape = CASES[name]
    x, v = inputs(shape)

    def cubed(g: Function) -> Function:
        return lambda t: g(t).pow(3).sum()

    same(grad(cubed(f))(x), grad(cubed(reference))(x))
    same(jacrev(f)(x), jacrev(reference)(x))
    same(hessian(cubed(f))(x), hessian(cubed(reference))(x))
    over = jvp(grad(cubed(f)), (x,), (v,))[1]
    same(over, jvp(grad(cubed(reference)), (x,), (v,))[1])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_dims", [0, 1, -1])
def test_vmap_raises_or_is_wrong(name: str, in_dims: int) -> None:
    f, reference, shape = CASES[name]
    many = torch.stack(inputs(shape, 3), dim=in_dims)
    found = vmap(f, in_dims=in_dims)(many)
    same(found, torch.stack([reference(x) for x in inputs(shape, 3)]))
    nested = vmap(vmap(f, in_dims=in_dims))(torch.stack([many, many + 1]))
    same(nested[0], found)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_third_order_are_wrong(name: str) -> None:
    f, reference, shape = CASES[name]
    constants = inputs(shape, 4)

    def derivatives(g: Function) -> list[Tensor]:
        x = constants[0].clone().requires_grad_()
        found = [g(x).pow(2)]
        for constant in constants[1:]:
            last = (found[-1] * constant).sum()
            found += torch.autograd.grad(last, x, create_graph=True)
        return found

    for one, other in zip(derivatives(f), derivatives(reference), strict=True):
        same(one, other)


@pytest.mark.parametrize("name", [name for name in CASES if name[0].isupper()])
def test_per_sample_gradients_raise_or_are_wrong(name: str) -> None:
    module, _, shape = CASES[name]
    assert isinstance(module, nn.Module)
    (x,) = inputs(shape, 1)
    parameters = dict(module.named_parameters())

    def loss(p: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(module, p, (sample[None],)).pow(3).sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for key, gradient in found.items():
        for i, sample in enumerate(x):
            wanted = torch.autograd.grad(loss(parameters, sample), parameters[key])[0]
            same(gradient[i], wanted)


def test_expanded_weights_raise_or_are_wrong() -> None:
    for module, x in (
        (_module(planish.LayerNorm(4)), inputs((3, 2, 4), 1)[0]),
        (_module(planish.GroupNorm(2, 4)), inputs((3, 4, 2), 1)[0]),
        (_module(planish.InstanceNorm2d(4, affine=True)), inputs((3, 4, 2, 3), 1)[0]),
    ):
        module.zero_grad()
        y = call_for_per_sample_grads(module, batch_size=3, loss_reduction="sum")(x)
        y.pow(3).sum().backward()
        for i, sample in enumerate(x):
            y = module(sample[None]).pow(3).sum()
            (wanted,) = torch.autograd.grad(y, module.weight)
            same(module.weight.grad_sample[i], wanted)


def test_an_operator_called_by_itself_has_silent_tangents() -> None:
    x, v = inputs((3, 4))
    call = lambda t: ops.plain_forward(t, None, None, [1], [1], EPS, False)[0]  # noqa: E731
    with pytest.raises(NotImplementedError, match=r"norm_forward.*forward-mode"):
        jvp(call, (x,), (v,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, v)
        with pytest.raises(NotImplementedError, match=r"norm_statistics.*forward-mode"):
            ops.STATISTICS(dual, _call.pack_axes([1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(
    ("shape", "reduce", "affine"),
    [((3, 4, 5), [1], [1]), ((2, 3, 4, 5), [2, 3], [1]), ((3, 8), [1], [1]), ((0, 8), [1], [1])],
)
def test_operators_fail_opcheck(
    dtype: torch.dtype, rms: bool, shape: tuple[int, ...], reduce: list[int], affine: list[int]
) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    w = torch.randn([shape[axis] for axis in affine], dtype=dtype, requires_grad=True)
    b = None if rms else torch.randn_like(w).requires_grad_()
    tensors = _call.Tensors(x, weight=w, bias=b)
    for dense, activation in itertools.product((False, True), (0,) if rms else (0, 1)):
        options = {"rms": rms, "dense": dense, "activation": activation}
        call = _call.make_call(reduce, affine, eps=EPS, **options)
        torch.library.opcheck(ops.FORWARD, (*tensors, *call))
    _, mean, rstd = ops.plain_forward(x, w, b, reduce, affine, EPS, rms)
    dy = torch.randn_like(x).requires_grad_()
    given = Given(dy, x, rstd, mean, weight=w)
    wanted = _call.pack_options(rms=rms, save=False, wanted=0b1101, dtype=dtype, sum_dtype=dtype)
    axes = _call.pack_axes(reduce, affine)
    torch.library.opcheck(ops.BACKWARD, (*given, axes, wanted, 0, 0.0))
    torch.library.opcheck(ops.STATISTICS, (x, _call.pack_axes(reduce)))


@pytest.mark.parametrize("name", CASES)
def test_odd_views_are_read_wrong(name: str) -> None:
    f, reference, shape = CASES[name]
    (x,) = inputs(shape, 1)
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    same(f(negative), reference(-x))
    spread = torch.stack([x, x], -1)[..., 0]
    same(f(spread), reference(x))
    if not name.startswith(("EvoNorm", "weight")):
        same(f(x[:1].expand(shape)), reference(x[:1].expand(shape)))


def test_the_graph_under_compiled_transforms_is_wrong() -> None:
    x = inputs((3, 4), 1)[0]
    f = lambda t: planish.layer_norm(t, 0).pow(3).sum()  # noqa: E731
    wanted = grad(lambda t: normalized(t, [0]).pow(3).sum())(x)
    same(torch.compile(grad(f), backend="aot_eager")(x), wanted)
    many = torch.stack([x, x + 1])
    found = torch.compile(vmap(lambda t: planish.layer_norm(t, 0)), backend="aot_eager")(many)
    same(found[1], normalized(x + 1, [0]))
