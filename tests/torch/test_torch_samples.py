"""torch's own cases: the samples, error inputs and modules that torch tests its norms with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from batch_norm_support import LEGIT, NATIVE, NATIVE_BACKWARD, NO_STATS, UPDATE, UPDATE_BACKWARD
from support import (
    GROUP,
    GROUP_BACKWARD,
    LAYER,
    LAYER_BACKWARD,
    RMS,
    RMS_BACKWARD,
    Calls,
    description,
    on_planish,
    row_error,
    wide,
)
from torch.autograd import gradcheck, gradgradcheck

import torch
from torch import Tensor

pytest.importorskip("expecttest", reason="torch's op_db needs expecttest, which is not installed")

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

OPERATORS = {
    "nn.functional.layer_norm": (LAYER, LAYER_BACKWARD),
    "native_layer_norm": (LAYER, LAYER_BACKWARD),
    "nn.functional.group_norm": (GROUP, GROUP_BACKWARD),
    "native_group_norm": (GROUP, GROUP_BACKWARD),
    "nn.functional.rms_norm": (RMS, RMS_BACKWARD),
    "nn.functional.batch_norm": (NATIVE, NATIVE_BACKWARD),
    "nn.functional.instance_norm": (NATIVE, NATIVE_BACKWARD),
    "native_batch_norm": (NATIVE, NATIVE_BACKWARD),
    "_native_batch_norm_legit": (LEGIT, NATIVE_BACKWARD),
    "_batch_norm_with_update": (UPDATE, UPDATE_BACKWARD),
}
#: Other operators that samples of these call.
FORMS = {"_native_batch_norm_legit": (NO_STATS,)}
OPS = {op.name: op for op in op_db if op.name in OPERATORS}
MODULE_OPERATORS = {
    "nn.LayerNorm": LAYER,
    "nn.GroupNorm": GROUP,
    "nn.RMSNorm": RMS,
    "nn.BatchNorm1d": NATIVE,
    "nn.BatchNorm2d": NATIVE,
    "nn.BatchNorm3d": NATIVE,
    "nn.InstanceNorm2d": NATIVE,
}
MODULES = {info.name: info for info in module_db if info.name in MODULE_OPERATORS}
#: rtol and atol of torch.testing.assert_close.
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
DTYPES = list(TOLERANCE)


#: Not in every torch's op_db: from 2.13 on.
NEW_SAMPLES = {"native_group_norm"}
NAMES = [
    pytest.param(
        name, marks=pytest.mark.skipif(name not in OPS, reason=f"this torch has no samples: {name}")
    )
    for name in OPERATORS
]


def test_torch_no_longer_has_the_samples_these_tests_use() -> None:
    assert set(OPS) | NEW_SAMPLES == set(OPERATORS)
    assert {"nn.LayerNorm", "nn.GroupNorm"} <= set(MODULES)


def tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if t is not None]


def in_float64(sample: Any) -> Any:
    """The same values; torch's result for them says what the narrow ones should be."""
    return sample.transform(
        lambda t: (
            t.detach().double().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t
        )
    )


def values_and_gradients(op: Any, sample: Any) -> list[Tensor]:
    """The results, and the gradients of everything that requires one."""
    given = [sample.input, *sample.args, *sample.kwargs.values()]
    leaves = [t for t in given if isinstance(t, Tensor) and t.requires_grad]
    results = tensors(op(sample.input, *sample.args, **sample.kwargs))
    outputs = [t for t in results if t.requires_grad]
    if not outputs or not leaves:
        return results
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs[:1]]
    return results + list(torch.autograd.grad(outputs[:1], leaves, gradients, allow_unused=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_torchs_samples_differ_from_torch(name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    forward, backward = OPERATORS[name]
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    assert samples
    calls = Calls()
    for sample in samples:
        native = values_and_gradients(op, sample)
        exact = values_and_gradients(op, in_float64(sample))
        with on_planish():
            ours = values_and_gradients(op, sample)
        assert description(ours) == description(native)
        largest = max((t.abs().max() for t in exact if t is not None and t.numel()), default=None)
        for mine, theirs, right in zip(ours, native, exact, strict=True):
            if right is None or torch.allclose(
                mine.double(), right.double(), *TOLERANCE[dtype], equal_nan=True
            ):
                continue
            # what is left where half values cancel: measured by the values that were there
            assert largest is not None
            scale = wide(largest.reshape(1))
            error, torchs = (row_error(t, wide(right), None, scale) for t in (mine, theirs))
            assert error <= max(torchs, 4.0), f"{error} ULP, torch {torchs}"
    # batches of nothing may not get as far as the operator
    full = sum(sample.input.numel() > 0 for sample in samples)
    assert full <= calls.on_planish(forward, *FORMS.get(name, ())) <= len(samples)
    assert set(calls.on_torch(forward)) <= {"no elements"}
    assert calls.on_planish(backward) > 0
    assert set(calls.on_torch(backward)) <= {"no elements"}


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.error_inputs_func is not None])
def test_errors_are_not_torchs(name: str) -> None:
    op = OPS[name]
    inputs = list(op.error_inputs("cpu"))

    def errors() -> list[tuple[type[BaseException], str]]:
        found = []
        for given in inputs:
            sample = given.sample_input
            with pytest.raises(given.error_type, match=given.error_regex) as caught:
                op(sample.input, *sample.args, **sample.kwargs)
            found.append((caught.type, str(caught.value)))
        return found

    native = errors()
    with on_planish():
        assert errors() == native


def bias_alone(sample: Any) -> bool:
    """A bias without a weight: torch 2.13's formula for second gradients is wrong for it."""
    given = [*sample.args, *sample.kwargs.values()]
    parameters = [t for t in given if t is None or isinstance(t, Tensor)]
    return len(parameters) == 2 and parameters[0] is None and parameters[1] is not None


def check_gradients(name: str, check: Callable[..., bool]) -> None:
    op = OPS[name]
    _, backward = OPERATORS[name]
    calls = Calls()
    with on_planish(OPERATORS[name][0]):
        for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
            given = [sample.input, *sample.args]
            places = [i for i, t in enumerate(given) if isinstance(t, Tensor) and t.requires_grad]
            if not given[0].numel() or (check is gradgradcheck and bias_alone(sample)):
                continue
            if not places:
                continue

            def function(
                *leaves: Tensor,
                given: list[Any] = given,
                places: list[int] = places,
                sample: Any = sample,
            ) -> Any:
                arguments = list(given)
                for place, leaf in zip(places, leaves, strict=True):
                    arguments[place] = leaf
                result = op(*arguments, **sample.kwargs)
                return result if isinstance(result, Tensor) else result[0]

            assert check(function, [given[i] for i in places])
    if check is gradcheck or backward == LAYER_BACKWARD:
        # torch's formula for second gradients of RMS norm has its own first ones
        assert calls.on_planish(backward) > 0


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_wrong(name: str) -> None:
    check_gradients(name, gradcheck)


@pytest.mark.parametrize("name", NAMES)
def test_second_gradients_are_wrong(name: str) -> None:
    check_gradients(name, gradgradcheck)


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_gradients_are_wrong(name: str) -> None:
    def check(function: Callable[..., Tensor], leaves: list[Tensor]) -> bool:
        return bool(gradcheck(function, leaves, check_forward_ad=True, check_backward_ad=False))

    op = OPS[name]
    with on_planish():
        for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
            if not sample.input.numel() or not sample.input.requires_grad:
                continue

            def function(x: Tensor, sample: Any = sample) -> Tensor:
                return tensors(op(x, *sample.args, **sample.kwargs))[0]

            assert check(function, [sample.input])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_torchs_modules_differ_from_torch(name: str, training: bool) -> None:
    info = MODULES[name]
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    assert inputs
    calls = Calls()
    for given in inputs:
        made, called = given.constructor_input, given.forward_input
        torch.manual_seed(3)
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        native = module(*called.args, **called.kwargs)
        with on_planish():
            ours = module(*called.args, **called.kwargs)
        torch.testing.assert_close(ours, native)
        assert description([ours]) == description([native])
    assert calls.on_planish(MODULE_OPERATORS[name]) > 0
