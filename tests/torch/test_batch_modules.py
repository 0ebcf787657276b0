"""planish.batch_norm and the modules of batch norm: what follows, state, memory, tracing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from batch_norm_support import LAST, NATIVE
from group_norm_support import raised_by
from support import Calls, on_planish
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import planish
import torch
from torch import Tensor, nn

FOLLOWS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda y: y,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "relu6": F.relu6,
    "hardswish": F.hardswish,
}
PAIRS = [
    (planish.BatchNorm1d, nn.BatchNorm1d, (4, 6)),
    (planish.BatchNorm1d, nn.BatchNorm1d, (4, 6, 5)),
    (planish.BatchNorm2d, nn.BatchNorm2d, (4, 6, 5, 3)),
    (planish.BatchNorm3d, nn.BatchNorm3d, (2, 6, 3, 2, 4)),
]


def alike(mine: Any, torchs: Any) -> None:
    """Gives both the same parameters and statistics."""
    with torch.no_grad():
        torchs.weight.uniform_(0.5, 1.5)
        torchs.bias.normal_()
        torchs.running_mean.normal_()
        torchs.running_var.uniform_(0.5, 2)
    mine.load_state_dict(torchs.state_dict())


def step(call: Callable[[Tensor, Tensor], Tensor], x: Tensor, r: Tensor, norm: Any) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, r)]
    y = call(*leaves)
    found = torch.autograd.grad(y.pow(3).sum(), [*leaves, *norm.parameters()], allow_unused=True)
    return [y, *found, *norm.buffers()]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels last"])
@pytest.mark.parametrize("added", [False, True], ids=["alone", "added"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("activation", FOLLOWS)
def test_what_follows_differs_from_torch(
    activation: str | None, training: bool, added: bool, last: bool
) -> None:
    f = FOLLOWS[activation]
    for cls, base, shape in PAIRS:
        x, r = torch.randn(shape), torch.randn(shape)
        if last and x.dim() == 4:
            x = x.contiguous(memory_format=LAST)
        mine, torchs = cls(6, activation=activation).train(training), base(6).train(training)
        alike(mine, torchs)
        ours = step(lambda x, r, m=mine: m(x, r) if added else m(x), x, r, mine)
        expected = step(lambda x, r, t=torchs: f(t(x) + r) if added else f(t(x)), x, r, torchs)
        torch.testing.assert_close(ours, expected, rtol=2e-4, atol=2e-5)
        assert ours[0].stride() == ours[1].stride() == x.stride()


def test_training_is_not_on_planish() -> None:
    calls = Calls()
    norm = planish.BatchNorm2d(6, activation="relu")
    norm(torch.randn(2, 6, 3, 3)).sum().backward()
    norm.eval()(torch.randn(2, 6, 3, 3))
    assert calls.on_planish("planish::batch_norm") == 1
    assert calls.on_planish("planish::norm_backward_apply") == 1
    assert calls.on_planish("planish::norm_apply") == 1


def test_running_statistics_have_other_bits_by_another_way() -> None:
    x = torch.randn(4, 6, 5, 3) * 3 + 1
    ways = [planish.BatchNorm2d(6), planish.BatchNorm2d(6, activation="relu"), nn.BatchNorm2d(6)]
    ways[0](x)
    ways[1](x.clone().requires_grad_(), addend=x)
    with on_planish(NATIVE):
        ways[2](x)
    for norm in ways[1:]:
        for mine, other in zip(ways[0].buffers(), norm.buffers(), strict=True):
            assert torch.equal(mine, other)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_derivatives_are_wrong(activation: str | None, training: bool) -> None:
    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    x, r, weight, bias = leaf(3, 2, 4), leaf(3, 2, 4), leaf(2), leaf(2)
    mean, var = torch.randn(2).double(), torch.rand(2).double() + 0.5

    def call(x: Tensor, weight: Tensor, bias: Tensor, addend: Tensor | None = None) -> Tensor:
        running = mean.clone(), var.clone()
        return planish.batch_norm(
            x, *running, weight, bias, training, activation=activation, addend=addend
        )

    for leaves in ((x, weight, bias), (x, weight, bias, r)):
        assert gradcheck(call, leaves, check_forward_ad=True)
        assert gradgradcheck(call, leaves)


def test_what_is_not_needed_is_kept_for_the_backward() -> None:
    x, r = torch.randn(2, 6, 5, 3, requires_grad=True), torch.randn(2, 6, 5, 3, requires_grad=True)

    def kept(activation: str | None, addend: Tensor | None) -> int:
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            planish.batch_norm(
                x, None, None, None, None, True, activation=activation, addend=addend
            )
        return sum(size == x.numel() for size in sizes)

    assert kept(None, None) == kept(None, r) == kept("relu", None) == kept("silu", None) == 1
    assert kept("relu", r) == kept("silu", r) == 2


def test_state_or_copies_are_lost() -> None:
    norm = planish.BatchNorm2d(6, activation="relu", once=True)
    norm(torch.randn(2, 6, 3, 3))
    torchs = nn.BatchNorm2d(6)
    torchs.load_state_dict(norm.state_dict())
    x = torch.randn(2, 6, 3, 3)
    for copied in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert copied.activation == "relu" and copied.once
        torch.testing.assert_close(copied.eval()(x), F.relu(torchs.eval()(x)))
    assert "activation='relu'" in repr(norm)


def test_bias_or_affine_false_fail() -> None:
    x = torch.randn(4, 6, 3)
    norm = planish.BatchNorm1d(6, bias=False)
    assert norm.bias is None and norm.weight is not None
    torch.testing.assert_close(norm(x), F.batch_norm(x, None, None, training=True))
    bare = planish.BatchNorm1d(6, affine=False, track_running_stats=False)
    torch.testing.assert_close(bare.eval()(x), F.batch_norm(x, None, None, training=True))
    assert list(bare.state_dict()) == []


def test_momentum_none_is_no_cumulative_average() -> None:
    norm, torchs = planish.BatchNorm1d(6, momentum=None), nn.BatchNorm1d(6, momentum=None)
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(norm(x), torchs(x))
    for mine, other in zip(norm.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_counts_wrongly(once: bool, reentrant: bool) -> None:
    norm = planish.BatchNorm1d(6, once=once)
    x = torch.randn(4, 6, requires_grad=True)
    y = checkpoint(norm, x, use_reentrant=reentrant)
    mean = norm.running_mean.clone()
    y.pow(2).sum().backward()
    assert int(norm.num_batches_tracked) == (1 if once else 2)
    assert torch.equal(norm.running_mean, mean) == once


BAD: dict[str, Callable[[Any], Any]] = {
    "channels": lambda norm: norm(torch.randn(2, 5, 3, 3)),
    "axes": lambda norm: norm(torch.randn(2, 6, 3)),
    "one value a channel": lambda norm: norm(torch.randn(1, 6, 1, 1)),
    "integers": lambda norm: norm(torch.ones(2, 6, 3, 3).long()),
    "no tensor of integers": lambda norm: norm.double()(torch.randn(2, 6, 3, 3)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_something_else_than_torch(case: str) -> None:
    expected, ours = (
        raised_by(lambda n=n: BAD[case](n)) for n in (nn.BatchNorm2d(6), planish.BatchNorm2d(6))
    )
    if case == "no tensor of integers":  # planish mixes dtypes
        assert ours is None
    else:
        assert ours == expected is not None


def test_bad_arguments_are_accepted() -> None:
    x = torch.randn(2, 6, 3)
    with pytest.raises(
        ValueError, match="batch_norm: activation is 'tanh'; known are None, 'silu'"
    ):
        planish.batch_norm(x, None, None, training=True, activation="tanh")
    with pytest.raises(ValueError, match="BatchNorm1d: activation is 'tanh'"):
        planish.BatchNorm1d(6, activation="tanh")
    with pytest.raises(
        RuntimeError, match=r"addend of input's shape \[2, 6, 3\], but got .* \[6\]"
    ):
        planish.batch_norm(x, None, None, training=True, addend=torch.randn(6))
    with pytest.raises(TypeError, match="batch_norm: Expected eps to be a number, but got str"):
        planish.batch_norm(x, None, None, training=True, eps="1")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="running_mean must be defined in evaluation mode"):
        planish.batch_norm(x, None, None)


@pytest.mark.parametrize("added", [False, True], ids=["alone", "added"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_compiled_differs(training: bool, added: bool) -> None:
    x, r = torch.randn(4, 6, 5, 3), torch.randn(4, 6, 5, 3)
    norm = planish.BatchNorm2d(6, activation="relu").train(training)
    other = copy.deepcopy(norm)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    ours = step(lambda x, r: compiled(x, r) if added else compiled(x), x, r, other)
    expected = step(lambda x, r: norm(x, r) if added else norm(x), x, r, norm)
    torch.testing.assert_close(ours, expected)


def test_exported_or_traced_differs() -> None:
    x = torch.randn(4, 6, 5, 3)
    norm = planish.BatchNorm2d(6, activation="relu")
    norm(x)
    norm.eval()
    expected = norm(x)
    model = nn.Sequential(norm)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
    torch.testing.assert_close(torch.jit.script(norm)(x), expected)
    torch.testing.assert_close(torch.jit.trace(norm, x)(x), expected)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), expected)


def test_vmap_over_running_statistics_is_not_refused() -> None:
    x = torch.randn(3, 4, 6, 5)
    norm, torchs = planish.BatchNorm1d(6), nn.BatchNorm1d(6)
    expected = raised_by(lambda: torch.vmap(torchs)(x))
    assert raised_by(lambda: torch.vmap(norm)(x)) == expected is not None
    bare = planish.BatchNorm1d(6, track_running_stats=False)
    torch.testing.assert_close(torch.vmap(bare)(x), torch.stack([bare(one) for one in x]))


def test_autocast_differs() -> None:
    x = torch.randn(4, 6, 5)
    for norm in (planish.BatchNorm1d(6), nn.BatchNorm1d(6)):
        with torch.autocast("cpu", torch.bfloat16):
            assert norm(x.bfloat16()).dtype == torch.bfloat16
            assert norm(x).dtype == torch.float32


def test_resnet_learns_something_else() -> None:
    """Losses of a small ResNet beside torch's."""
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    torch.manual_seed(1)
    model = torchvision.models.resnet18(num_classes=10)
    other = copy.deepcopy(model)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def losses(model: nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        found = []
        for _ in range(5):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses(model)
    with planish.enabled():
        ours = losses(other)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected), rtol=1e-2, atol=1e-3)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("stats", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_fake_results_are_not_those_of_the_kernels(dtype: torch.dtype, stats: torch.dtype) -> None:
    from planish.operators.batch_ops import RELU, SUMS, axes_of, options_of

    check: Any = torch.library.opcheck
    ops, tests = torch.ops.planish, ("test_schema", "test_faketensor")
    x, dy, r = torch.randn(3, 2, 6, 5).to(dtype)
    x, dy, r = (t[:, :, None] for t in (x, dy, r))
    weight, bias = torch.rand(2, 6)
    mean, var = torch.rand(2, 6, dtype=stats)
    axes = axes_of(x.dim())
    for addend, code, bits in ((None, 0, 15), (r, RELU, 13), (r, 1, 14 | SUMS)):
        both = mean.clone(), var.clone(), axes, options_of(code, save=bits > 13)
        check(ops.batch_norm, (x, addend, weight, bias, *both, 0.1, 1e-5), test_utils=tests)
        for running in (False, True):
            own = axes, options_of(code, running), 1e-5
            check(ops.norm_apply, (x, var, mean, addend, weight, bias, *own), test_utils=tests)
            own = axes, options_of(code, running, bits), 1e-5
            behind = (addend if code else None, weight, bias if code else None, *own)
            given = (dy, x, var, mean, None, None, None, *behind)
            check(ops.norm_backward_apply, given, test_utils=tests)


def test_a_known_call_forgets_the_momentum_or_that_nothing_was_recorded() -> None:
    mine, torchs = planish.BatchNorm2d(8, activation="relu"), nn.BatchNorm2d(8)
    alike(mine, torchs)
    x, addend = torch.randn(3, 8, 4, 4), torch.randn(3, 8, 4, 4)
    for momentum, recorded in ((0.1, False), (0.7, True), (None, False), (0.7, True)):
        mine.momentum = torchs.momentum = momentum
        leaves = [x.clone().requires_grad_(recorded) for _ in range(2)]
        with torch.set_grad_enabled(recorded):
            y = mine(leaves[0], addend)
            expected = F.relu(torchs(leaves[1]) + addend)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(mine.running_var, torchs.running_var)
        assert mine.num_batches_tracked == torchs.num_batches_tracked
        assert y.requires_grad == recorded
        if recorded:
            y.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
            torch.testing.assert_close(mine.weight.grad, torchs.weight.grad)


def test_a_known_call_takes_what_the_module_refuses() -> None:
    one, two = planish.BatchNorm1d(8, activation="silu"), planish.BatchNorm2d(8, activation="silu")
    x = torch.randn(3, 8, 5)
    one(x)
    with pytest.raises(ValueError, match="expected 4D input"):
        two(x)
    with pytest.raises(ValueError, match="more than 1 value"):
        one(x[:1, :, :1])
    wide = nn.functional.silu(planish.batch_norm(x.double(), None, None, training=True))
    torch.testing.assert_close(one(x.double()), wide)


def test_a_known_call_hides_from_a_transform_or_a_hook() -> None:
    x = torch.randn(3, 8, 4, 4)

    def loss(x: Tensor) -> Tensor:
        return planish.batch_norm(x, None, None, training=True, activation="relu").square().sum()

    leaf = x.clone().requires_grad_()
    for _ in range(2):
        (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    (second,) = torch.autograd.grad(checkpoint(loss, leaf, use_reentrant=False), leaf)
    assert torch.equal(second, expected)
    _, tangent = torch.func.jvp(loss, (x,), (x,))
    torch.testing.assert_close(tangent, (expected * x).sum(), atol=1e-3, rtol=1e-4)
