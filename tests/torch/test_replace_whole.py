"""planish.replace() is whole or nothing: what norms raise is a reason in the report, what planish
raises leaves the model as it was, and what is around a call is not held against a class."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
from replace_support import Llama, LlamaNorm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import planish
import torch
from planish.replacing import fusion, probe, rewritten, swapped
from torch import Tensor, nn


class DriverError(Exception):
    """As Triton's and cupy's own: no RuntimeError."""


ERRORS: list[Exception] = [
    RuntimeError("a"),
    ImportError("no triton"),
    OSError("no file"),
    DriverError("no device"),
    ZeroDivisionError(),
    RecursionError(),
    StopIteration(),
    torch.OutOfMemoryError("a"),
    MemoryError(),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "why"),
]


class RaisingNorm(nn.Module):
    def __init__(self, error: Exception, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.error, self.where = error, where

    @property
    def eps(self) -> float:
        if self.where == "eps":
            raise self.error
        return 1e-6

    @property
    def normalized_shape(self) -> Any:
        if self.where == "normalized_shape":
            raise self.error
        return (16,)

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "forward" or (self.where == "half" and x.dtype == torch.float16):
            raise self.error
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * self.weight.float()).to(x.dtype)


class Scale(nn.Module):
    """A LayerScale whose forward raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.gamma, self.error = nn.Parameter(torch.ones(16)), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class Block(nn.Module):
    def __init__(self, scale: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(16, 16), LlamaNorm(16), nn.LayerNorm(16)
        self.scale = nn.Identity() if scale is None else scale

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale(self.linear(x))
        y = self.norm(x)
        z = x + y
        result: Tensor = self.last(z)
        return result


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("where", ["forward", "eps", "normalized_shape"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_norm_raises_stops_replace(error: Exception, where: str, fuse: bool) -> None:
    raising = RaisingNorm(error, where)
    model = nn.Sequential(nn.LayerNorm(16), raising, nn.RMSNorm(16), Block())
    classes = [type(module) for module in model.modules()]
    planish.replace(model, fuse=fuse)
    report = planish.replaced(model)
    assert report.modules_taken == 4
    assert type(raising) is RaisingNorm
    (entry,) = report.left
    assert type(error).__name__ in entry.what, entry.what
    planish.restore(model)
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_stands_around_a_norm_and_raises_stops_replace(error: Exception) -> None:
    model = nn.Sequential(Block(Scale(error)), Block())
    planish.replace(model, fuse=True)
    report = planish.replaced(model)
    assert report.modules_taken == 4
    assert report.places_fused == 4  # a sum with what the module raised or gave


@pytest.mark.parametrize(
    "owner_and_name",
    [(swapped, "put"), (rewritten, "put"), (fusion, "fuse"), (rewritten, "holders")],
    ids=lambda pair: f"{pair[0].__name__.rpartition('.')[2]}.{pair[1]}",
)
@pytest.mark.parametrize("error", [RuntimeError("a fault"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [False, True])
def test_replace_raises_and_leaves_a_part(
    owner_and_name: Any, error: BaseException, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(Block(), nn.Sequential(nn.GroupNorm(2, 16), nn.SiLU()), Block())
    if before:
        planish.replace(model, activations=True)
    norm: Any = model[0].norm
    norm.note = {"kept": 1}
    was = [(module, type(module), list(vars(module).items())) for module in model.modules()]
    children = [dict(module._modules) for module in model.modules()]
    owner, name = owner_and_name
    original, calls = getattr(owner, name), 0

    def faulty(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > (0 if name in ("fuse", "holders") else 2):
            raise error
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, faulty)
        if name == "put" and owner is rewritten:
            patch.setattr(rewritten, "put", lambda *a: (original(*a), faulty(*a), faulty(*a)))
        with pytest.raises(type(error)):
            planish.replace(model, fuse=True)
    now = [(module, type(module), list(vars(module).items())) for module in model.modules()]
    assert [one[:2] for one in now] == [one[:2] for one in was]
    assert all(
        [k for k, _ in one[2]] == [k for k, _ in other[2]]
        and all(a is b for (_, a), (_, b) in zip(one[2], other[2], strict=True))
        for one, other in zip(now, was, strict=True)
    )
    assert [dict(module._modules) for module in model.modules()] == children
    planish.replace(model, fuse=True)
    assert planish.replaced(model).places_fused == 4


class Pipeline:
    def __init__(self, **parts: Any) -> None:
        self.components = parts


NO_MODELS: list[tuple[Any, str]] = [
    (None, "but it is None"),
    (torch.ones(2, 3), r"but it is a tensor of shape \[2, 3\]"),
    ("llama", "but it is 'llama'"),
    ([nn.LayerNorm(4)], "but it is a list; call it for each"),
    ({"a": nn.LayerNorm(4)}, "but it is a dict; call it for each"),
    (nn.LayerNorm, "but it is the class LayerNorm; make a module of it first"),
    (int, "but it is a builtins.type"),
    (7, "but it is 7"),
    (torch.jit.script(nn.Linear(2, 2)), "compiled TorchScript module"),
    (
        Pipeline(text=Block(), vae=Block(), unet=Block(), scheduler=object()),
        r"a test_replace_whole.Pipeline, whose parts are: call planish.\w+\(pipe.unet\), "
        r"planish.\w+\(pipe.vae\)$",
    ),
    (Pipeline(prior=Block(), name="x"), r"parts are: call planish.\w+\(pipe.prior\)$"),
    (Pipeline(), "but it is a test_replace_whole.Pipeline$"),
]


@pytest.mark.parametrize("name", ["replace", "replaced", "restore"])
@pytest.mark.parametrize(("model", "why"), NO_MODELS, ids=lambda value: str(type(value).__name__))
def test_what_is_no_model_gets_no_sentence(name: str, model: Any, why: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(planish, name)(model)
    text = str(caught.value)
    assert text.startswith(f"planish.{name}: model ")
    assert "\n" not in text
    assert re.search(why, text), text


def test_a_lazy_module_is_taken_or_stops_replace() -> None:
    lazy = nn.LazyInstanceNorm2d(affine=True)
    model = nn.Sequential(lazy, nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.LayerNorm(16))
    planish.replace(model)
    assert type(lazy) is nn.LazyInstanceNorm2d
    report = planish.replaced(model)
    assert sorted(entry.name for entry in report.left) == [
        "torch.LazyBatchNorm1d",
        "torch.LazyInstanceNorm2d",
    ]
    model[:1](torch.randn(2, 3, 4, 4))  # its first call makes it an InstanceNorm2d
    assert "not replaced yet" in str(planish.replaced(model))
    planish.replace(model)
    assert type(lazy) is planish.InstanceNorm2d


# ---- What is around a call ----------------------------------------------------------------------


class Mode(TorchFunctionMode):
    """Another mathematics."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        return y * 2 if func is torch.rsqrt else y


class FactoryNorm(Llama):
    """Makes tensors in its forward, and leaves the device to the default."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() * torch.ones(1)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("cls", [LlamaNorm, FactoryNorm])
@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.device("meta"),
        lambda: torch.device("cuda"),
        lambda: Mode(),
        lambda: FakeTensorMode(),
        lambda: torch.inference_mode(),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
    ids=["meta", "cuda", "mode", "fake", "inference", "autocast"],
)
def test_a_context_around_replace_is_seen(around: Any, cls: Any, fuse: bool) -> None:
    probe._proofs.clear()
    block = Block()
    block.norm = cls(16)
    with around():
        planish.replace(block, fuse=fuse)
    report = planish.replaced(block)
    assert report.modules_taken == 2, str(report)
    assert report.places_fused == (2 if fuse else 0), str(report)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_is_seen(device: str) -> None:
    probe._proofs.clear()
    block = Block()
    torch.set_default_device(device)
    try:
        planish.replace(block, fuse=True)
    finally:
        torch.set_default_device(None)
    assert planish.replaced(block).places_fused == 2
    assert torch.ones(1).device.type == "cpu"


class NeedsNorm(Llama):
    there = False

    def forward(self, x: Tensor) -> Tensor:
        if not type(self).there:
            raise ImportError("no triton")
        return LlamaNorm.forward(self, x)  # type: ignore[arg-type]


def test_a_refusal_that_the_surroundings_caused_is_kept() -> None:
    model = nn.Sequential(NeedsNorm(16), nn.LayerNorm(16))
    planish.replace(model)
    assert "its forward raises ImportError: no triton" in str(planish.replaced(model))
    NeedsNorm.there = True
    try:
        assert "not replaced yet" in str(planish.replaced(model))
        planish.replace(model)
        assert planish.replaced(model).modules_taken == 2
    finally:
        NeedsNorm.there = False


def test_a_class_that_raises_is_asked_again_for_each_module() -> None:
    calls = 0

    class CallingNorm(Llama):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            raise RuntimeError("no GPU")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planish.replace(CallingNorm(16))
        once, calls = calls, 0
        planish.replace(nn.Sequential(*(CallingNorm(16) for _ in range(20))))
    assert 0 < calls == once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_fused_block_does_not_run_on_meta(dtype: torch.dtype) -> None:
    block = planish.replace(Block(), fuse=True).to(dtype)
    native = Block().to("meta", dtype)
    block.to("meta")
    x = torch.randn(2, 5, 16, device="meta", dtype=dtype, requires_grad=True)
    y = block(x)
    assert (y.shape, y.dtype, y.device) == (x.shape, native(x).dtype, x.device)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.is_meta


# ---- Classes with a protocol of their own -------------------------------------------------------


class StateNorm(Llama):
    def __getstate__(self) -> Any:
        return {"mine": self.__dict__}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state["mine"])
        self.note = "set"


class ReduceNorm(Llama):
    def __reduce__(self) -> Any:
        return type(self), (16,), dict(self.__dict__, note="reduced")


class DeepNorm(Llama):
    def __deepcopy__(self, memo: Any) -> Any:
        new = type(self)(16)
        new.load_state_dict(self.state_dict())
        new.note = "deep"
        return new


def use_llamas_forward() -> None:
    for cls in (StateNorm, ReduceNorm, DeepNorm):
        cls.forward = LlamaNorm.forward  # type: ignore[method-assign]


use_llamas_forward()


@pytest.mark.parametrize("cls", [StateNorm, ReduceNorm, DeepNorm])
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_a_classes_own_protocol_is_passed_over(cls: Any, copied: Any) -> None:
    native = cls(16)
    with torch.no_grad():
        native.weight.normal_()
    module = planish.replace(copy.deepcopy(native))
    assert planish.replaced(module).modules_taken == 1
    module.__dict__.pop("note", None)
    expected, found, x = copied(native), copied(module), torch.randn(3, 16)
    assert getattr(found, "note", "") == getattr(expected, "note", "")
    assert isinstance(found, cls)
    torch.testing.assert_close(found(x), expected(x))
    planish.restore(found)
    assert type(found) is cls
    assert torch.equal(found(x), expected(x))
