"""Layer and RMS norms that a model's code writes out: each way to write them is read, and nothing
that is another function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import compiled, results_of, rows, uncached  # noqa: F401 (fixtures)
from test_compile_joins import close

import planish
import planish.compile
import torch
from planish.compile import behind, choice, written
from planish.operators import call
from torch import Tensor, fx

FORWARD, BACKWARD = "planish::graph_forward", "planish::graph_backward"
Written = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_var_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-6) * w + b


def by_centred_squares(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return w * ((x - mean) / torch.sqrt(var + 1e-6)) + b


def by_one_difference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean([-1], keepdim=True)
    return b + centred / (1e-6 + centred.square().mean([-1], keepdim=True)).sqrt() * w


def by_var(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    return w * (x - mean) / (var + 1e-6) ** 0.5 + b


def by_a_power(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, False, True)
    return (x - mean) * (var + 1e-6).pow(-0.5)


def wide(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As models in 16 bits have it."""
    return by_var_mean(x.float(), w.float(), b.float()).to(x.dtype)


def rounded(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    var, mean = torch.var_mean(h, -1, keepdim=True, correction=0)
    return ((h - mean) / torch.sqrt(var + 1e-6)).to(x.dtype) * w + b


def of_channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As ConvNeXt and Segment Anything have it."""
    image = x.transpose(1, 2)[..., None]
    mean = image.mean(1, keepdim=True)
    var = (image - mean).pow(2).mean(1, keepdim=True)
    image = (image - mean) / torch.sqrt(var + 1e-6)
    return w[:, None, None] * image + b[:, None, None]


def rms_quotient(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rms_weighed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * x / (x.square().mean(-1, keepdim=True) + 1e-6) ** 0.5


def rms_of_channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6) * b[:3].view(1, -1, 1)


#: Layer norms first; of 16 bits only those that compute in f32.
WIDE: dict[str, Written] = {"wide": wide, "rounded": rounded}
NORMS: dict[str, Written] = WIDE | {
    "var_mean": by_var_mean,
    "squares": by_centred_squares,
    "one difference": by_one_difference,
    "var": by_var,
    "power": by_a_power,
    "channels": of_channels,
    "rms quotient": rms_quotient,
    "rms weighed": rms_weighed,
    "rms of channels": rms_of_channels,
}


def _inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [t.to(dtype) for t in (torch.randn(4, 3, 16) + 1, torch.randn(16), torch.randn(16))]


def _compare(model: Written, dtype: torch.dtype, mode: str = choice.ALWAYS) -> Any:
    inputs = _inputs(dtype)
    run, graphs = compiled(model, mode)
    wanted = results_of(model, model, *inputs)
    close(results_of(run, model, *inputs), wanted, 1e-4 if dtype == torch.float32 else 0.1)
    return graphs.counted()


@pytest.mark.parametrize("name", NORMS)
def test_a_written_norm_is_left(name: str) -> None:
    names = _compare(NORMS[name], torch.float32)
    assert (names[FORWARD], names[BACKWARD]) == (1, 1), names
    assert not {"aten::rsqrt", "aten::sqrt", "aten::var", "aten::mean"} & set(names), names


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("written", ["var_mean", "squares", "var", "channels"])
def test_a_parameter_is_a_pass_of_its_own(written: str, name: str) -> None:
    names = _compare(NORMS[written], torch.float32)
    assert not names["aten::mul" if name == "weight" else "aten::add"], names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_16_bits_are_more_exact_than_the_model(name: str, dtype: torch.dtype) -> None:
    """What computes in 16 bits itself rounds at each step, which planish's norm would not."""
    names = _compare(NORMS[name], dtype)
    assert (names[FORWARD], names[BACKWARD]) == ((1, 1) if name in WIDE else (0, 0))


def test_what_was_rounded_is_weighed_first() -> None:
    """The weight of what was rounded stays as it is written."""
    assert _compare(rounded, torch.bfloat16)["aten::mul"] > 0
    assert _compare(rounded, torch.float32)["aten::mul"] == 0


def _of(
    x: Tensor, *, unbiased: bool = False, dim: Any = -1, eps: Any = 1e-6, outside: float = 0.0
) -> Tensor:
    mean, var = x.mean(dim, keepdim=True), x.var(dim, unbiased=unbiased, keepdim=True)
    return (x - mean) / (torch.sqrt(var + eps) + outside)


def _another_mean(x: Tensor) -> Tensor:
    var = x.var(-1, unbiased=False, keepdim=True)
    return (x - x.mean(1, keepdim=True)) / torch.sqrt(var + 1e-6)


def _another_tensor(x: Tensor) -> Tensor:
    other = x.flip(0)
    return (other - other.mean(-1, keepdim=True)) * torch.rsqrt(
        x.var(-1, unbiased=False, keepdim=True) + 1e-6
    )


def _written_to(x: Tensor) -> Tensor:
    h = x.detach().sin()
    mean, var = h.mean(-1, keepdim=True), h.var(-1, unbiased=False, keepdim=True)
    h.mul_(2)
    return x + (h - mean) * torch.rsqrt(var + 1e-6)


def _the_root_is_divided(x: Tensor) -> Tensor:
    return torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) / x


def _another_power(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6) ** 2


def _raw_difference(x: Tensor) -> Tensor:
    """The RMS of x, and less than it above."""
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "unbiased": lambda x: _of(x, unbiased=True),
    "two axes": lambda x: _of(x, dim=(1, 2)),
    "eps is a tensor": lambda x: _of(x, eps=x.new_tensor(1e-6)),
    "eps outside": lambda x: _of(x, outside=1e-3),
    "another mean": _another_mean,
    "another tensor": _another_tensor,
    "written to": _written_to,
    "the root is divided": _the_root_is_divided,
    "another power": _another_power,
    "not centred below": _raw_difference,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_function_is_a_norm(name: str) -> None:
    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return OTHERS[name](x)

    names = _compare(model, torch.float32)
    assert names[FORWARD] == 0, names


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("speedup", [0.5, 9.0])
def test_the_report_lacks_a_written_norm(name: str, speedup: float, rows: Any) -> None:  # noqa: F811
    rows(forward=speedup, backward=speedup)
    before = len(planish.compile.report())
    names = _compare(NORMS[name], torch.float32, choice.FASTER)
    found = planish.compile.report()[before:]
    assert [e.direction for e in found] == ["forward", "backward"]
    assert (names[FORWARD] == 1) == (found[0].chosen == "planish"), found
    assert speedup > 1 or not names[FORWARD]


# ---- Casts around torch's norms ------------------------------------------------------------------


def cast_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As diffusers' FP32LayerNorm."""
    return F.layer_norm(x.float(), (16,), w.float(), b.float(), 1e-6).to(x.dtype)


CAST: dict[str, Written] = {
    "layer": cast_layer,
    "no weights": lambda x, w, b: F.layer_norm(x.float(), (16,)).type_as(x),
    "rms": lambda x, w, b: F.rms_norm(x.float(), (16,), w.float(), 1e-6).to(x.dtype),
    "groups": lambda x, w, b: F.group_norm(x.float(), 3).to(x.dtype),
    "modulated": lambda x, w, b: (F.layer_norm(x.float(), (16,)) * (1 + w) + b).type_as(x),
    "modulated behind": lambda x, w, b: cast_layer(x, w, b) * (1 + w) + b,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CAST)
def test_a_cast_is_a_pass_of_its_own(name: str, dtype: torch.dtype, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    names = _compare(CAST[name], dtype, choice.FASTER)
    assert (names[FORWARD], names[BACKWARD]) == (1, 1), names
    assert not names["prims::convert_element_type"], names
    assert "modulated" not in name or not names["aten::mul"], names


UNCAST: dict[str, Written] = {
    "the cast is read": lambda x, w, b: (h := F.layer_norm(x.float(), (16,))).to(x.dtype) + h,
    "another dtype": lambda x, w, b: F.layer_norm(x.float(), (16,)).to(torch.float64),
    "the other 16 bits": lambda x, w, b: F.layer_norm(x.float(), (16,)).to(torch.bfloat16),
}


@pytest.mark.parametrize("name", UNCAST)
def test_another_cast_is_taken_out(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    names = _compare(UNCAST[name], torch.float16, choice.FASTER)
    assert names["prims::convert_element_type"], names


# ---- Autocast ------------------------------------------------------------------------------------


def torchs(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(h, (16,), w, 1e-6)


def torchs_of_f32(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (16,), w, 1e-6)


def llama(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    h_ = h.float()
    h_ = h_ * torch.rsqrt(h_.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h_.to(h.dtype)


def gemma(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    h_ = h.float()
    h_ = h_ * torch.rsqrt(h_.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h_ * (1 + w.float())).to(h.dtype)


def layer(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return by_var_mean(h.float(), w, w)


def in_bf16(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return rms_quotient(h, w, w)


AUTOCAST = {"torch's": torchs, "torch's, f32": torchs_of_f32, "llama": llama, "gemma": gemma}
AUTOCAST |= {"layer": layer, "bf16": in_bf16}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_changes_a_dtype_or_leaves_a_norm(name: str, inside: bool) -> None:
    """Around the model, and within it: its operators are none that autocast casts but where they
    compute in 16 bits, as the products do whose result is normed."""

    def norm(x: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        y = AUTOCAST[name](x @ p, x, w)
        return y, y @ p

    def model(x: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=True):
            return norm(x, w, p)

    torch.manual_seed(0)
    inputs = torch.randn(6, 16), torch.randn(16), torch.randn(16, 16)
    run, graphs = compiled(model if inside else norm)
    with contextlib.nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
        found = results_of(run, model, *inputs)
        wanted = results_of(model, model, *inputs)
    assert [one.dtype for one in found] == [one.dtype for one in wanted]
    close(found, wanted, 2e-2)
    names = graphs.counted()
    count = 0 if name == "bf16" else 1
    assert (names[FORWARD], names[BACKWARD]) == (count, count), names


@pytest.mark.parametrize("function", [F.layer_norm, F.group_norm])
def test_autocast_of_a_gpu_rounds_a_result(function: Any) -> None:
    """There torch's norms of 16 bits have results of f32, and what stands behind reads these."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    norm = graph.call_function(function, (x, (8,) if function is F.layer_norm else 2))
    silu = graph.call_function(F.silu, (norm,))
    x.meta["example_value"] = torch.empty(2, 4, 8, dtype=torch.bfloat16)
    for node in (norm, silu):
        node.meta["example_value"] = torch.empty(2, 4, 8)
    (found,) = written._norms(graph)
    staged = behind.with_stages(found)
    assert staged.node is silu
    assert call.dtype_in(staged.call.options) == torch.float32
