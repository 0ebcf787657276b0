"""planish.hf.register() does not reach norms that Transformers does not mark, or leaves a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kernels", reason="the package kernels is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from planish._torchvision import mend_torchvision

mend_torchvision()

import transformers  # noqa: E402
from transformers import modeling_utils  # noqa: E402
from transformers.utils import import_utils  # noqa: E402

import planish  # noqa: E402
import planish.hf  # noqa: E402
import torch  # noqa: E402

if not import_utils.is_kernels_available():
    pytest.skip("this transformers does not use this kernels", allow_module_level=True)

SIZES: dict[str, Any] = {"vocab_size": 64, "pad_token_id": 0}
DECODER = {
    **SIZES,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
T5 = {**SIZES, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
#: Model type, its sizes, norms that one forward calls.
MODELS = [
    ("gemma", DECODER, 5),
    ("gemma2", DECODER, 9),
    ("t5", T5, 12),
]


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    yield
    planish.hf.unregister()


def built(kind: str, sizes: dict[str, Any], dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **sizes))
    model = model.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.arange(12).reshape(2, 6)
    return model, {"input_ids": ids, **({"decoder_input_ids": ids} if kind == "t5" else {})}


def norm_classes(model: Any) -> set[type]:
    return {type(m) for m in model.modules() if "norm" in type(m).__name__.lower()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("kind", "sizes", "norms"), MODELS, ids=[m[0] for m in MODELS])
def test_norms_without_a_mark_stay_with_torch(
    kind: str, sizes: dict[str, Any], norms: int, dtype: torch.dtype
) -> None:
    model, inputs = built(kind, sizes, dtype)
    classes = norm_classes(model)
    assert classes and not any(hasattr(cls, "kernel_layer_name") for cls in classes)
    with torch.no_grad():
        expected = model(**inputs)[0]
        planish.hf.register()
        model.set_use_kernels(True)
        planish.reset_stats()
        found = model(**inputs)[0]
    assert sum(counts["planish"] for counts in planish.stats().values()) == norms
    bound = 1e-5 if dtype == torch.float32 else 4e-2
    assert (found - expected).abs().max() <= bound * expected.abs().max()
    planish.hf.unregister()
    assert not any(hasattr(cls, "kernel_layer_name") for cls in classes)
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], expected)


def test_t5_with_float_rows_rounds_otherwise() -> None:
    """Its class rounds xhat to the weight's dtype: with another x it computes that itself."""
    model, _ = built("t5", T5, torch.bfloat16)
    norm = model.encoder.final_layer_norm
    x = torch.randn(3, 32)
    expected = norm(x)
    planish.hf.register()
    model.set_use_kernels(True)
    found = norm(x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_another_transformers_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(modeling_utils, "kernelize")
    planish.hf.register()
    assert "norms that it does not mark for kernels (Gemma's, T5's) stay as they are" in caplog.text
    planish.hf.unregister()
    assert not hasattr(modeling_utils, "kernelize")
