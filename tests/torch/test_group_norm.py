"""aten::native_group_norm and its backward on planish: layouts, dtypes, values, errors, tracing."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from support import (
    FLOATS,
    GROUP,
    GROUP_BACKWARD,
    Calls,
    Exact,
    description,
    on_planish,
    row_error,
    wide,
)
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import planish
import torch
from torch import Tensor, nn

aten = torch.ops.aten
SLOW = "a layout that no fast kernel takes, or no kernel could be made"
FASTER = "a group norm of which torch's own kernel is faster"
LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


def stepped(x: Tensor, order: list[int]) -> Tensor:
    """The same values, dense with the axes in this order from the slowest to the fastest."""
    inverse = [order.index(axis) for axis in range(len(order))]
    return x.permute(order).contiguous().permute(inverse)


def with_strange_strides(x: Tensor) -> Tensor:
    """Channels last, but an axis of one element has a stride that no layout would give it."""
    last = x.contiguous(memory_format=LAST)
    strides = [7777 if size == 1 else s for size, s in zip(x.shape, last.stride(), strict=True)]
    return last.as_strided(x.shape, strides)


torch.manual_seed(0)
LAYOUTS: dict[str, Tensor] = {
    "dense": torch.randn(2, 6, 4, 5),
    "channels last": torch.randn(2, 6, 4, 5).contiguous(memory_format=LAST),
    "channels last 3d": torch.randn(2, 6, 2, 3, 4).contiguous(memory_format=LAST_3D),
    "channels last, one sample, strange strides": with_strange_strides(torch.randn(1, 6, 4, 5)),
    "one axis of pixels": torch.randn(3, 6, 7),
    "no axis of pixels": torch.randn(4, 6),
    "one pixel": torch.randn(3, 6, 1, 1),
    "one pixel, channels last": torch.randn(3, 6, 1, 1).contiguous(memory_format=LAST),
    "one sample": torch.randn(1, 6, 3, 3),
    "five axes": torch.randn(2, 6, 2, 3, 2),
    "seven axes": torch.randn(2, 6, 2, 1, 3, 1, 2),
    "offset by one": torch.randn(2 * 6 * 3 * 3 + 1)[1:].view(2, 6, 3, 3),
    "empty batch": torch.randn(0, 6, 3, 3),
    "empty batch, channels last": torch.randn(0, 6, 3, 3).contiguous(memory_format=LAST),
    "no pixels": torch.randn(2, 6, 0, 3),
}


def everything(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> list[Any]:
    """All that both operators return, by way of torch's autograd."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    given = iter(leaves)
    arguments = [next(given), *(None if t is None else next(given) for t in (weight, bias))]
    pixels = int(np.prod(x.shape[2:], dtype=np.int64))
    results = aten.native_group_norm(*arguments, x.shape[0], x.shape[1], pixels, groups, 1e-5)
    dy = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    return [*results, *torch.autograd.grad(results[0], leaves, dy)]


def raised_by(call: Callable[[], object]) -> tuple[type[Exception], str] | None:
    """The exception, without the C++ stack that some torches add; None: it raises none."""
    try:
        call()
    except Exception as error:
        return type(error), str(error).split("\nException raised from")[0]
    return None


@pytest.mark.parametrize("parameters", ["both", "weight", "none"])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_differ_from_torchs(layout: str, groups: int, parameters: str) -> None:
    x = LAYOUTS[layout]
    weight = torch.randn(6) if parameters != "none" else None
    bias = torch.randn(6) if parameters == "both" else None
    refused = raised_by(lambda: everything(x, groups, weight, bias))
    if refused:  # no pixels, from torch 2.14 on
        assert not x.numel()
        with planish.enabled():
            assert raised_by(lambda: everything(x, groups, weight, bias)) == refused
        return
    native = everything(x, groups, weight, bias)
    # torch's float result is off by more than planish's where a group has one element.
    in_double = [t if t is None else t.double() for t in (x, weight, bias)]
    exact = everything(in_double[0], groups, *in_double[1:])
    with on_planish(*([GROUP, GROUP_BACKWARD] if x.numel() else [])):
        ours = everything(x, groups, weight, bias)
    assert description(ours) == description(native)
    for mine, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(
            mine, right.float(), rtol=1e-5, atol=1e-5, equal_nan=True, check_stride=False
        )


SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=LAST),
    "rows inside channels": lambda x: stepped(x, [0, 2, 1, 3]),
    "samples last": lambda x: stepped(x, [1, 2, 3, 0]),
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every other": lambda x: torch.stack([x, -x], -1)[..., 0],
}


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("of_dy", [*SOURCES, "expanded"])
@pytest.mark.parametrize("of_x", SOURCES)
def test_the_backward_reads_strides_wrongly(of_x: str, of_dy: str, groups: int) -> None:
    """torch's own takes the strides of x and dy for dense."""
    x, weight = torch.randn(2, 6, 4, 5), torch.randn(6)
    dy = torch.randn(6, 1, 1).expand(2, 6, 4, 5) if of_dy == "expanded" else torch.randn(x.shape)
    sizes = (2, 6, 20, groups, [True, True, True])
    _, mean, rstd = aten.native_group_norm(x, weight, weight, 2, 6, 20, groups, 1e-5)
    wanted = aten.native_group_norm_backward(dy.contiguous(), x, mean, rstd, weight, *sizes)
    strided_dy = dy if of_dy == "expanded" else SOURCES[of_dy](dy)
    with on_planish(GROUP_BACKWARD):
        ours = aten.native_group_norm_backward(
            strided_dy, SOURCES[of_x](x), mean, rstd, weight, *sizes
        )
    for mine, right in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of_x", [*SOURCES, "strange"])
def test_the_function_differs_on_any_strides(of_x: str) -> None:
    weight = torch.randn(6)
    if of_x == "strange":
        x = with_strange_strides(torch.randn(2, 6, 1, 5))
    else:
        x = SOURCES[of_x](torch.randn(2, 6, 4, 5))
    native = F.group_norm(x, 3, weight)
    with on_planish(GROUP):
        ours = F.group_norm(x, 3, weight)
    assert description([ours]) == description([native])
    torch.testing.assert_close(ours, native, rtol=1e-4, atol=1e-4)


def test_other_shapes_of_the_same_elements_are_refused() -> None:
    """The sizes of a call need not be x's, nor dy's shape x's: torch looks at the elements."""
    x, weight = torch.randn(2, 6, 4, 5), torch.randn(6)

    def run() -> list[Tensor]:
        found = list(aten.native_group_norm(x.view(12, 20), weight, weight, 2, 6, 20, 3, 1e-5))
        found += aten.native_group_norm_backward(
            x.view(12, 20), x, *found[1:], weight, 2, 6, 20, 3, [True, True, True]
        )
        found += aten.native_group_norm_backward(
            x, x, found[1].view(-1), found[2].view(6, 1), weight, 2, 6, 20, 3, [True] * 3
        )
        return found

    native = run()
    with on_planish(GROUP, GROUP_BACKWARD):
        ours = run()
    assert description(ours) == description(native)
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_weights_apart_in_memory_are_read_as_dense() -> None:
    x, weight = torch.randn(2, 6, 5), torch.randn(12)
    apart, dense = weight[::2], weight[::2].contiguous()
    with on_planish(GROUP, GROUP_BACKWARD):
        y, mean, rstd = aten.native_group_norm(x, apart, apart, 2, 6, 5, 3, 1e-5)
        right = aten.native_group_norm(x, dense, dense, 2, 6, 5, 3, 1e-5)[0]
        sizes = (2, 6, 5, 3, [True, False, False])
        dx = aten.native_group_norm_backward(x, x, mean, rstd, apart, *sizes)[0]
        right_dx = aten.native_group_norm_backward(x, x, mean, rstd, dense, *sizes)[0]
    assert torch.equal(y, right)
    assert torch.equal(dx, right_dx)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)), ids=str)
def test_gradients_not_asked_for_are_defined(mask: tuple[bool, bool, bool]) -> None:
    x, weight = torch.randn(2, 6, 4, 5), torch.randn(6)
    _, mean, rstd = aten.native_group_norm(x, weight, weight, 2, 6, 20, 2, 1e-5)
    arguments = (x, x, mean, rstd, weight, 2, 6, 20, 2, list(mask))
    native = aten.native_group_norm_backward(*arguments)
    with on_planish(GROUP_BACKWARD):
        ours = aten.native_group_norm_backward(*arguments)
    assert description(ours) == description(native)
    assert [gradient is not None for gradient in ours] == list(mask)


@pytest.mark.parametrize("pair", list(itertools.product(FLOATS, FLOATS)), ids=str)
def test_dtypes_of_results_or_errors_are_not_torchs(pair: tuple[torch.dtype, torch.dtype]) -> None:
    x, given = torch.randn(2, 6, 5).to(pair[0]), torch.ones(6, dtype=pair[1])

    def results(weight: Tensor | None, bias: Tensor | None) -> list[object]:
        found: list[object] = []
        try:
            y = aten.native_group_norm(x, weight, bias, 2, 6, 5, 3, 1e-5)
            found.append(description(y))
            mask = [True, weight is not None, weight is not None]
            gradients = aten.native_group_norm_backward(x, x, *y[1:], weight, 2, 6, 5, 3, mask)
            found.append(description(gradients))
        except RuntimeError as error:
            found.append((type(error), str(error)))
        return found

    half = given.to(torch.bfloat16)
    for weight, bias in [(given, given), (given, None), (None, given), (None, None), (given, half)]:
        native = results(weight, bias)
        calls = Calls()
        with planish.enabled():
            ours = results(weight, bias)
        assert ours == native
        if len(native) == 2 and not isinstance(native[1], tuple):
            assert (calls.on_planish(GROUP), calls.on_planish(GROUP_BACKWARD)) == (1, 1)


# ---- Values -----------------------------------------------------------------------------------

#: N, C, pixels, groups
SHAPES = [
    ((2, 8, 16), 2),
    ((3, 6, 1), 3),
    ((1, 32, 49), 32),
    ((2, 96, 33), 4),
    ((4, 10, 300), 1),
    ((2, 64, 1024), 8),
]
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}


def exact_groups(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, dy: Tensor
) -> tuple[list[Exact], list[Exact]]:
    """y, dx, dweight and dbias by the formulas of docs/internals/numerics.md, and the sums of
    the magnitudes that the last two are sums of."""
    rows = (x.shape[0], groups, -1)
    w = wide(weight).reshape(1, -1, 1)
    values = wide(x).reshape(rows)
    centred = values - values.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.longdouble(1e-5))
    xhat = centred * rstd
    apart = xhat.reshape(x.shape)
    y = apart * w + wide(bias).reshape(1, -1, 1)
    gradient = wide(dy)
    g = (gradient * w).reshape(rows)
    c2 = (g * xhat).mean(-1, keepdims=True)
    dx = (rstd * (g - g.mean(-1, keepdims=True) - xhat * c2)).reshape(x.shape)
    terms = [gradient * apart, gradient]
    return [y, dx, *(t.sum((0, 2)) for t in terms)], [np.abs(t).sum((0, 2)) for t in terms]


def run(x: Tensor, groups: int, weight: Tensor, bias: Tensor, dy: Tensor) -> list[Tensor]:
    leaves = [t.clone(memory_format=torch.preserve_format) for t in (x, weight, bias)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y = F.group_norm(leaves[0], groups, leaves[1], leaves[2])
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def inputs(shape: tuple[int, ...], dtype: torch.dtype, mean: float = 0.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    return [
        (random(*shape) + mean).to(dtype),
        random(shape[1]).to(dtype),
        random(shape[1]).to(dtype),
        random(*shape).to(dtype),
    ]


def errors(found: list[Tensor], right: list[Exact], sums: list[Exact], groups: int) -> list[float]:
    rows = (found[0].shape[0], groups, -1)
    by_group = [
        row_error(t.reshape(rows), exact.reshape(rows), -1)
        for t, exact in zip(found[:2], right[:2], strict=True)
    ]
    return by_group + [
        row_error(t, exact, 0, scale)
        for t, exact, scale in zip(found[2:], right[2:], sums, strict=True)
    ]


def is_left_to_torch(x: Tensor, groups: int) -> bool:
    """Whether the forward of a channels-last tensor is torch's own, which is faster."""
    pixels, depth = x[0, 0].numel(), x.shape[1] // groups
    wide = depth * x.element_size() > 16
    few = pixels <= 16 and x.numel() >= 1024 and depth >= 16
    return few or (x.numel() > 32768 and (pixels >= 1024 or wide))


@pytest.mark.parametrize(
    ("shape", "groups", "dtype"),
    [
        ((2, 64, 16, 16), 8, torch.float32),
        ((2, 64, 17, 16), 8, torch.float32),
        ((2, 64, 17, 16), 16, torch.float32),
        ((2, 64, 17, 16), 8, torch.float16),
        ((2, 64, 17, 16), 4, torch.bfloat16),
        ((2, 64, 32, 31), 8, torch.bfloat16),
        ((2, 64, 32, 31), 4, torch.bfloat16),
        ((2, 64, 32, 32), 8, torch.float16),
        ((2, 64, 32, 32), 64, torch.bfloat16),
    ],
    ids=str,
)
def test_a_channels_last_forward_goes_where_it_is_slower(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=LAST)
    left = is_left_to_torch(x, groups)
    with on_planish(*([] if left else [GROUP])) as calls:
        ours = F.group_norm(x, groups)
    assert calls.on_torch(GROUP) == ({FASTER: 1} if left else {})
    assert (ours.float() - F.group_norm(x.float(), groups)).abs().max() < 0.02


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "channels last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_values_leave_the_bounds_or_are_worse_than_torchs(
    shape: tuple[int, int, int], groups: int, dtype: torch.dtype, channels_last: bool
) -> None:
    x, weight, bias, dy = inputs(shape, dtype)
    right, sums = exact_groups(x, groups, weight, bias, dy)
    if channels_last:
        x, dy = (t.unsqueeze(-1).contiguous(memory_format=LAST) for t in (x, dy))
    native = run(x, groups, weight, bias, dy)
    slow = channels_last and is_left_to_torch(x, groups)
    with on_planish(*([] if slow else [GROUP]), GROUP_BACKWARD) as calls:
        ours = run(x, groups, weight, bias, dy)
    if slow:
        assert calls.on_torch(GROUP) == {FASTER: 1}
    found, torchs = (errors(results, right, sums, groups) for results in (ours, native))
    for error, theirs in zip(found, torchs, strict=True):
        assert error <= max(theirs, BOUND[dtype]), f"{found} ULP, torch {torchs}"


@pytest.mark.parametrize("mean", [10.0, 1e4])
def test_a_large_mean_costs_digits(mean: float) -> None:
    x, weight, bias, dy = inputs((2, 32, 64), torch.float32, mean)
    right, sums = exact_groups(x, 4, weight, bias, dy)
    native = run(x, 4, weight, bias, dy)
    with on_planish(GROUP, GROUP_BACKWARD):
        ours = run(x, 4, weight, bias, dy)
    found, torchs = (errors(results, right, sums, 4) for results in (ours, native))
    assert found[0] <= 4
    assert all(e <= max(4.0, t) for e, t in zip(found, torchs, strict=True)), (found, torchs)


def test_thread_counts_or_neighbours_change_bits() -> None:
    x, weight, bias, dy = inputs((6, 32, 400), torch.float32)
    with on_planish(GROUP, GROUP_BACKWARD):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(x, 8, weight, bias, dy))
        alone = torch.cat([F.group_norm(x[i : i + 1], 8, weight, bias) for i in range(6)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert torch.equal(alone, results[0][0])


# ---- Errors and what goes to torch ------------------------------------------------------------

X, WEIGHT = torch.randn(2, 6, 4, 5), torch.randn(6)


def backward(**changed: object) -> object:
    _, mean, rstd = aten.native_group_norm(X, None, None, 2, 6, 20, 3, 1e-5)
    given: dict[str, object] = {"dy": X, "x": X, "mean": mean, "rstd": rstd, "weight": None}
    given |= {"sizes": (2, 6, 20), "groups": 3, "mask": [True, False, False]}
    given |= changed
    sizes = given.pop("sizes")
    assert isinstance(sizes, tuple)
    dy, x, mean, rstd, weight, groups, mask = given.values()
    return aten.native_group_norm_backward(dy, x, mean, rstd, weight, *sizes, groups, mask)


def forward(x: Tensor, sizes: tuple[int, int, int], groups: int, *parameters: object) -> object:
    weight, bias = [*parameters, None, None][:2]
    return aten.native_group_norm(x, weight, bias, *sizes, groups, 1e-5)


WRONG, LAYOUT = "shapes that do not fit", "a layout that torch refuses"
DTYPE, MIXED = "a dtype other than f16, bf16, f32, f64", "a mix of dtypes that torch refuses"
MISTAKES: dict[str, tuple[str, str, Callable[[], object]]] = {
    "channels not divisible": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 4)),
    "no groups": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 0)),
    "weight of another size": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, WEIGHT[:5])),
    "weight of another rank": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, WEIGHT.view(2, 3))),
    "bias of another size": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, None, WEIGHT[:1])),
    "integers": (GROUP, DTYPE, lambda: F.group_norm(X.int(), 3)),
    "complex": (GROUP, DTYPE, lambda: F.group_norm(X.to(torch.complex64), 3)),
    "float weight of half x's bias": (
        GROUP,
        MIXED,
        lambda: F.group_norm(X.half(), 3, WEIGHT.half(), WEIGHT),
    ),
    "double weight": (GROUP, MIXED, lambda: F.group_norm(X, 3, WEIGHT.double())),
    "not dense": (GROUP, LAYOUT, lambda: forward(X.permute(0, 2, 3, 1), (2, 4, 30), 2)),
    "gradient of another dtype": (GROUP_BACKWARD, MIXED, lambda: backward(dy=X.double())),
    "statistics of another dtype": (
        GROUP_BACKWARD,
        MIXED,
        lambda: backward(mean=torch.zeros(2, 3).double()),
    ),
    "statistics of another size": (GROUP_BACKWARD, WRONG, lambda: backward(mean=torch.zeros(2, 2))),
    "gradient of no weight": (
        GROUP_BACKWARD,
        "the gradient of a parameter that is not there",
        lambda: backward(mask=[True, True, False]),
    ),
    "other groups": (GROUP_BACKWARD, WRONG, lambda: backward(groups=6)),
}


#: No mistakes from torch 2.14 on.
TAKEN_BY_SOME = {"not dense", "gradient of no weight"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_raises_something_else_or_is_not_counted(name: str) -> None:
    operator, reason, call = MISTAKES[name]
    native = raised_by(call)
    assert native or name in TAKEN_BY_SOME, "torch takes this"
    calls = Calls()
    with planish.enabled():
        ours = raised_by(call)
    assert ours == native
    on_torch = {} if name == "not dense" and not native else {reason: 1}
    assert calls.on_torch(operator) == on_torch


@pytest.mark.parametrize(
    ("reason", "call"),
    [
        ("no elements", lambda: F.group_norm(X[:0], 3)),
        ("more axes than planish takes", lambda: F.group_norm(X.view(2, 6, *[1] * 13, 20), 3)),
        ("refused by libplanish", lambda: F.group_norm(X, 3, eps=float("inf"))),
    ],
)
def test_what_goes_to_torch_is_changed_or_not_counted(
    reason: str, call: Callable[[], Tensor]
) -> None:
    native = call()
    calls = Calls()
    with planish.enabled():
        ours = call()
    assert calls.on_torch(GROUP) == {reason: 1}
    assert description([ours]) == description([native])
    assert torch.equal(ours, native)


def test_errors_leak_tensors() -> None:
    before = X._use_count(), WEIGHT._use_count()
    with planish.enabled():
        for _ in range(50):
            for _, _, call in MISTAKES.values():
                with contextlib.suppress(Exception):
                    call()
            F.group_norm(X, 3, WEIGHT, WEIGHT)
    assert (X._use_count(), WEIGHT._use_count()) == before


# ---- Lifecycle --------------------------------------------------------------------------------


def test_enabling_one_group_enables_the_other() -> None:
    calls = Calls()
    with planish.enabled("layer_norm"):
        F.group_norm(X, 3)
    assert calls.on_planish(GROUP) == 0
    with planish.enabled("group_norm"):
        F.group_norm(X, 3)
        F.layer_norm(X, (5,))
    assert calls.on_planish(GROUP) == 1
    assert calls.on_planish("native_layer_norm") == 0


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_graph_recorded_before_enabling_or_disabling_has_other_gradients(
    channels_last: bool,
) -> None:
    x = X.contiguous(memory_format=LAST) if channels_last else X
    leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_()]
    leaves += [WEIGHT.clone().requires_grad_() for _ in range(2)]

    def loss() -> Tensor:
        return F.group_norm(leaves[0], 3, leaves[1], leaves[2]).pow(3).sum()

    native = torch.autograd.grad(loss(), leaves)
    before = loss()
    with on_planish(GROUP, GROUP_BACKWARD):
        across = torch.autograd.grad(before, leaves)
        inside = torch.autograd.grad(loss(), leaves)
        recorded = loss()
    after = torch.autograd.grad(recorded, leaves)
    for found in (across, inside, after):
        for mine, theirs in zip(found, native, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


# ---- Derivatives and tracing ------------------------------------------------------------------


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_of_either_order_are_wrong(
    channels_last: bool, groups: int, check: Callable[..., bool]
) -> None:
    x = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=LAST)
    leaves = [x.requires_grad_()]
    leaves += [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    with on_planish(GROUP):
        assert check(lambda x, w, b: F.group_norm(x, groups, w, b), leaves)
        assert check(lambda x: F.group_norm(x, groups), leaves[:1])


def test_function_transforms_differ() -> None:
    x, tangent = torch.randn(3, 6, 4), torch.randn(3, 6, 4)

    def norm(x: Tensor) -> Tensor:
        return F.group_norm(x, 3, WEIGHT, WEIGHT)

    def sample(x: Tensor) -> Tensor:
        return norm(x[None])[0]

    def loss(x: Tensor) -> Tensor:
        return sample(x).pow(3).sum()

    def results() -> list[object]:
        return [
            torch.func.vmap(sample)(x),
            torch.func.vmap(norm)(torch.stack([x, 2 * x])),
            torch.func.vmap(norm, in_dims=2)(torch.stack([x, 2 * x], 2)),
            torch.func.vmap(torch.func.grad(loss))(x),
            torch.func.jvp(norm, (x,), (tangent,)),
            torch.func.vjp(norm, x)[1](tangent),
            torch.func.jacrev(sample)(x[0]),
            torch.func.jacfwd(sample)(x[0]),
            torch.func.hessian(loss)(x[0]),
            torch.func.functionalize(norm)(x),
        ]

    native = results()
    with on_planish(GROUP):
        ours = results()
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GroupNorm(2, 6)
        self.convolution = nn.Conv2d(6, 8, 3, padding=1)
        self.second = nn.GroupNorm(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.convolution(self.first(x)))


def gradients(model: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(leaf)
    return [y.detach(), *torch.autograd.grad(y.pow(3).sum(), leaf)]


def assert_same(ours: list[Tensor], native: list[Tensor]) -> None:
    for mine, theirs in zip(ours, native, strict=True):
        assert description([mine]) == description([theirs])
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_differ(backend: str, memory_format: torch.memory_format) -> None:
    model, x = Model(), X.contiguous(memory_format=memory_format)
    native = gradients(model, x)
    torch._dynamo.reset()
    with on_planish(GROUP, GROUP_BACKWARD):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert_same(gradients(compiled, x), native)
    assert_same(gradients(compiled, x), native)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_export_and_make_fx_differ() -> None:
    model, x = Model().eval(), X
    native = model(x)
    graph = make_fx(model)(x).graph
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}).graph
    with on_planish(GROUP):
        assert str(make_fx(model)(x).graph) == str(graph)
        program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
        assert str(program.graph) == str(exported)
        modules = [torch.jit.trace(model, x), torch.jit.freeze(torch.jit.script(model))]
        for module in [*modules, program.module(), program.run_decompositions().module()]:
            torch.testing.assert_close(module(x), native, rtol=1e-4, atol=1e-4)


def test_autocast_changes_dtypes_or_values() -> None:
    model = Model()

    def results() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = X.clone().requires_grad_()
            y = model(leaf)
        return [y, *torch.autograd.grad(y.float().pow(2).sum(), [leaf, *model.parameters()])]

    native = results()
    with on_planish(GROUP, GROUP_BACKWARD):
        ours = results()
    assert [t.dtype for t in ours] == [t.dtype for t in native]
    torch.testing.assert_close(ours[0], native[0], rtol=4e-2, atol=4e-2)


def test_a_dispatch_mode_sees_other_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    with on_planish(GROUP), Names() as seen:
        F.group_norm(X, 3, WEIGHT, WEIGHT)
        F.group_norm(X.contiguous(memory_format=LAST), 3)
    assert [name for name in seen.names if "norm" in name] == ["aten.native_group_norm.default"] * 2


@pytest.mark.parametrize(
    ("shape", "groups", "dtype", "last", "passes"),
    [
        ((2, 320, 2, 2), 10, torch.float32, True, (False, False)),
        ((2, 320, 2, 2), 10, torch.bfloat16, True, (False, False)),
        ((2, 288, 2, 2), 32, torch.float32, True, (True, True)),  # nine channels to a group
        ((2, 320, 2, 2), 10, torch.bfloat16, False, (True, False)),
        ((2, 1280, 2, 2), 32, torch.float32, False, (False, True)),
        ((2, 1280, 4, 4), 32, torch.float32, False, (True, False)),
        ((2, 1280, 4, 4), 32, torch.bfloat16, False, (True, True)),
        ((1, 4, 2, 2), 2, torch.bfloat16, True, (True, True)),  # two channels to a group
    ],
    ids=str,
)
def test_an_image_of_few_pixels_goes_where_it_is_slower(
    shape: tuple[int, ...],
    groups: int,
    dtype: torch.dtype,
    last: bool,
    passes: tuple[bool, bool],
) -> None:
    x = torch.randn(shape, dtype=dtype)
    x = (x.contiguous(memory_format=LAST) if last else x).requires_grad_()
    calls = Calls()
    with planish.enabled():
        y = F.group_norm(x, groups)
        y.backward(torch.ones_like(y))
    for operator, stays in zip((GROUP, GROUP_BACKWARD), passes, strict=True):
        assert calls.on_planish(operator) == int(stays)
        assert calls.on_torch(operator) == ({} if stays else {FASTER: 1})
