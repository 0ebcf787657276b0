"""Transformers' Trainer over planish: a tiny Llama by its own switch and a tiny BERT by
planish.enable(), a few dozen steps, the losses beside torch's."""

from __future__ import annotations

from typing import Any

import pytest

for package in ("transformers", "accelerate", "kernels"):
    pytest.importorskip(package, reason=f"{package} is not installed")

from planish._torchvision import mend_torchvision  # noqa: E402

mend_torchvision()

import kernels  # noqa: E402
import transformers  # noqa: E402
from support import LAYER, LAYER_BACKWARD, Calls  # noqa: E402
from transformers.utils import import_utils  # noqa: E402

import planish  # noqa: E402
import planish.hf  # noqa: E402
import torch  # noqa: E402

STEPS = 30
TOKENS, VOCABULARY = 16, 48


def _examples(labels: str) -> list[dict[str, Any]]:
    """Sequences that count up from a random start: there is something to learn."""
    generator = torch.Generator().manual_seed(3)
    starts = torch.randint(0, VOCABULARY, (64,), generator=generator)
    rows = (starts[:, None] + torch.arange(TOKENS)) % VOCABULARY
    if labels == "next":
        return [{"input_ids": row, "labels": row} for row in rows]
    return [
        {"input_ids": row, "labels": start % 2} for row, start in zip(rows, starts, strict=True)
    ]


def _train(model: Any, examples: list[dict[str, Any]], folder: Any) -> list[float]:
    """The loss of every step."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
        data_seed=7,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=examples)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _compare(torchs: list[float], ours: list[float]) -> None:
    assert len(torchs) == len(ours) == STEPS
    assert torchs[-1] < 0.7 * torchs[0], "nothing was learnt"
    for step, (theirs, loss) in enumerate(zip(torchs, ours, strict=True), 1):
        # Each step starts from weights that differ in their last bits.
        assert loss == pytest.approx(theirs, rel=2e-3), f"step {step}"


def _llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.skipif(
    not import_utils.is_kernels_available(),
    reason=f"transformers {transformers.__version__} does not use kernels {kernels.__version__}",
)
def test_llama_by_use_kernels(tmp_path, monkeypatch):
    torchs = _train(_llama(), _examples("next"), tmp_path)
    calls = []
    norm = planish.hf._forward
    monkeypatch.setattr(planish.hf, "_forward", lambda *a: calls.append(a) or norm(*a))
    planish.hf.register()
    try:
        model = _llama()
        model.set_use_kernels(True)
        ours = _train(model, _examples("next"), tmp_path)
    finally:
        planish.hf.unregister()
    assert len(calls) == 5 * STEPS
    _compare(torchs, ours)


def _bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=TOKENS,
    )
    return transformers.BertForSequenceClassification(config)


def test_bert_by_enable(tmp_path):
    torchs = _train(_bert(), _examples("parity"), tmp_path)
    before = Calls()
    with planish.enabled():
        ours = _train(_bert(), _examples("parity"), tmp_path)
    for operator in (LAYER, LAYER_BACKWARD):
        assert before.on_planish(operator) == 5 * STEPS
        assert not before.on_torch(operator)
    _compare(torchs, ours)
