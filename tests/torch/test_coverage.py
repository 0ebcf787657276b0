"""How many norm calls of real models run on planish: a quick part of docs/guide/coverage.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import planish
import torch
from planish import zoo
from planish.commands import coverage, distance, reach
from planish.zoo import named
from torch import Tensor, nn

#: Models that together have every kind of norm, and build in no time.
QUICK = [
    *(
        "llama",
        "gemma3",
        "qwen3_next",
        "deepseek_v3",
        "gpt_oss",
        "olmo2",
        "cohere2",
        "mamba2",
        "t5",
    ),
    *("qwen2_5_vl", "bert", "sam", "wav2vec2_group", "timm/aimv2_large_patch14_224", "tv/vit"),
    *("convnext", "autoencoder_kl", "autoencoder_dc", "autoencoder_kl_wan", "sd3.5_medium", "wan"),
    *("qwen_image", "timm/convnextv2_atto", "timm/metaformer", "tv/convnext"),
    *("timm/efficientnet_b0", "tv/resnet18", "tv/resnet18_frozen"),
]
#: Of norm calls, after replace().
WANTED = dict(zip(zoo.FAMILIES, (1.0, 0.95, 0.95, 1.0), strict=True))


def entry_of(name: str) -> zoo.Entry:
    entry = zoo.entries()[name]
    missing = zoo.missing_packages(entry.packages)
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}, not installed")
    return entry


@pytest.mark.parametrize("name", QUICK)
def test_norms_of_a_model_are_missed(name: str) -> None:
    entry = entry_of(name)
    found = coverage.by_modes(lambda: zoo.build(entry))
    calls = found["replace"].calls
    assert calls > 0
    assert all(one.calls == calls for one in found.values())
    assert found["replace"].on_planish >= WANTED[entry.family] * calls, coverage.report(name, found)
    best = max(found["enable"].on_planish, found["replace"].on_planish)
    assert found["both"].on_planish >= best, coverage.report(name, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", QUICK)
def test_a_models_results_are_further_from_float64_than_they_were(
    name: str, dtype: torch.dtype
) -> None:
    entry = entry_of(name)
    found = distance.measure(entry, dtype, lambda model: reach.apply("replace", model))
    assert found.within, found


def test_restored_models_have_other_bits() -> None:
    entry = entry_of("qwen3_next")
    model, inputs = zoo.build(entry)
    native = distance.step(model, inputs)
    state = list(model.state_dict())
    planish.replace(model)
    assert list(model.state_dict()) == state
    planish.restore(model)
    again = distance.step(model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(native[0], again[0], strict=True))
    assert all(torch.equal(native[1][name], again[1][name]) for name in native[1])


class Wrong(nn.Module):
    """A norm that is not planish's to make, one that is, and one that is called as a function."""

    class OddNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.abs().amax(-1, keepdim=True)

    def __init__(self) -> None:
        super().__init__()
        self.odd, self.norm = self.OddNorm(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(self.norm(self.odd(x)), (8,))


def make() -> tuple[nn.Module, Tensor]:
    return Wrong(), torch.randn(4, 8)


def test_what_did_not_run_on_planish_is_counted_as_if_it_had(tmp_path: Path) -> None:
    found = coverage.by_modes(lambda: (Wrong(), {"x": torch.randn(4, 8)}))
    assert {mode: (one.on_planish, one.calls) for mode, one in found.items()} == {
        "enable": (2, 3),
        "replace": (1, 3),
        "both": (2, 3),
    }
    text = coverage.report("wrong", found)
    assert "not with both: 1 x" in text
    assert "OddNorm" in text
    assert "not with replace: 1 x F.layer_norm: torch's function" in text


def test_the_command_does_not_know_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage.main([f"{__name__}:make"]) == 0
    assert "3 norm calls in a forward" in capsys.readouterr().out
    with pytest.raises(named.UnknownModel, match="no model 'no such model'"):
        coverage.main(["no such model"])
    with pytest.raises(named.UnknownModel, match="there is no module"):
        named.of_function("no_such_module:make")


def test_try_fails_on_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))\n"
        "    return model, torch.randn(32, 64)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "planish", "try", "mine:make", "--seconds", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in ("1 norms on planish", "forward", "training step", "planish"):
        assert words in done.stdout, done.stdout


def test_every_model_of_the_list_has_a_family() -> None:
    entries = zoo.entries()
    assert len(entries) >= 100
    assert {entry.family for entry in entries.values()} == set(zoo.FAMILIES)
    assert set(QUICK) <= set(entries)
