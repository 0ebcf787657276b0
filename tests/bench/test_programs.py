"""The benches with options of their own, each in a tiny form: what they print and write."""

import csv
import sys
import types

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import planish
import torch
from planish._torchvision import mend_torchvision
from planish.bench import allocator, apex, batch, bert, main, norms, program, unfused, variants
from planish.bench.timing import Effort, Sample
from planish.commands.command_lines import UsageError
from torch import nn

TINY = Effort(trials=3, trial_seconds=0.0, case_seconds=0.5, patience=1.0)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """In this process."""
    monkeypatch.setattr(allocator, "keeps_pages", lambda: True)


def rows(path):
    lines = path.read_text().splitlines()
    assert any(line.startswith("# settings.command: ") for line in lines)
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_apex_beside_torch_and_planish(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(apex, "WIDTHS", (8, 16, 24, 32))
    monkeypatch.setattr(apex, "IMAGES", (2, 2, 6, 6))
    monkeypatch.setattr(apex, "EFFORT", TINY)
    assert main(["apex", "--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "apex.csv")
    works = ["2048 x 8", "2048 x 32", "2 x 2 x 6 x 6"]
    assert list(dict.fromkeys(row["work"] for row in found)) == works
    for way in ("torch", "unfused", "planish-enable", "planish-module"):
        assert sum(row["way"] == way for row in found) == 6
    printed = capsys.readouterr().out
    assert "missing: apex: runs on a GPU only" in printed
    for work in works:
        assert f"{work}, backward" in printed


def test_a_way_that_computes_something_else_ends_the_bench(monkeypatch):
    def wrong(norm):
        module = variants.unfused(norm)
        module.eps = 3.0
        return module

    ways = {"torch": (variants.WAYS[0], None), "unfused": (variants.WAYS[1], wrong)}
    with pytest.raises(RuntimeError, match=r"unfused is .* off torch's result"):
        apex.measure((4, 8), (8,), torch.float32, "cpu", ways)


def test_batch_norms_beside_torch_and_a_copy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(batch, "QUICK", ((2, 8, 5),))
    monkeypatch.setattr(batch, "EFFORT", TINY)
    assert main(["batch", "--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "batch.csv")
    works = [f"2 x 8 x 5 x 5 {m} {t}" for m in ("nchw", "nhwc") for t in ("f32", "bf16")]
    assert list(dict.fromkeys(row["work"] for row in found)) == works
    for direction, ways in (("training", 3), ("eval", 3), ("both", 2)):
        assert sum(row["direction"] == direction for row in found) == ways * len(works)
    assert "2 x 8 x 5 x 5 nhwc bf16, both" in capsys.readouterr().out


def test_a_batch_norm_that_is_wrong_ends_the_bench(monkeypatch):
    monkeypatch.setattr(batch, "is_wrong", lambda found, torchs: True)
    work = batch.Work(2, 8, 5, "nhwc", "f32", "eval")
    with pytest.raises(RuntimeError, match=r"planish is .* off"):
        batch.measure(work, "cpu")


def test_unfused_prints_the_profile_of_each_backward(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(apex, "EFFORT", TINY)
    assert main(["unfused", "--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "unfused-profile.txt").read_text()
    assert text.rstrip() in capsys.readouterr().out
    parts = dict(zip(unfused.SHOWN, text.split("backward of ")[1:], strict=True))
    assert "aten::native_layer_norm_backward" in parts["torch"]
    assert "aten::native_layer_norm_backward" not in parts["unfused"]
    assert "aten::mul" in parts["unfused"] and "Backward0" in parts["unfused"]
    counts = {name: int(part.split("\n")[1].split()[0]) for name, part in parts.items()}
    assert counts["planish-enable"] <= counts["torch"] < 10 < counts["unfused"]
    assert {row["way"] for row in rows(tmp_path / "unfused.csv")} == set(unfused.SHOWN)


def test_bert_with_each_norm(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(bert, "Effort", lambda *_, **__: TINY)
    assert main(["bert", "--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "bert.csv")
    assert {row["direction"] for row in found} == {"inference", "training"}
    losses = [float(row["loss"]) for row in found if row["direction"] == "training"]
    assert len(losses) >= 4
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)


@pytest.mark.parametrize("model", ["convnext", "resnet"])
def test_image_models_with_six_norms(tmp_path, monkeypatch, model):
    mend_torchvision()
    pytest.importorskip("timm", reason="timm is not installed")
    monkeypatch.setattr(norms, "Effort", lambda *_, **__: TINY)
    words = ["norms", "--quick", "--models", model, "--threads", "1", "--out", str(tmp_path)]
    few = ["permute", "planish-2d", "one-group"]
    ways = [name for name in norms.NORMS if model == "convnext" or name in few]
    assert main([*words, "--norms", ",".join(ways)]) == 0
    found = [row for row in rows(tmp_path / "norms.csv") if row["direction"] == "training"]
    assert [row["way"] for row in found] == ways
    losses = {row["way"]: float(row["loss"]) for row in found}
    other = losses.pop("one-group")  # another function
    assert list(losses.values()) == pytest.approx([losses["permute"]] * len(losses), rel=1e-5)
    assert other != pytest.approx(losses["permute"], rel=1e-5)


class LayerNorm2d(nn.LayerNorm):
    """timm's, in whose place they are put."""

    __module__ = "timm.layers.norm"

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", [name for name in norms.NORMS if name != "one-group"])
def test_each_norm_over_channels_is_the_same_function(name):
    norm = LayerNorm2d(6, eps=1e-4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 6, 3, 5)
    make, context = norms.NORMS[name]
    with context():
        y = make(norm)(x)
    wanted = nn.functional.layer_norm(
        x.permute(0, 2, 3, 1), (6,), norm.weight, norm.bias, 1e-4
    ).permute(0, 3, 1, 2)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    assert set(dict(make(norm).named_parameters())) == {"weight", "bias"}


def test_apex_s_names_are_taken_from_where_they_are(monkeypatch):
    class FusedLayerNorm(nn.LayerNorm):
        pass

    module = types.ModuleType("planish.apex")
    module.FusedLayerNorm = FusedLayerNorm
    monkeypatch.setitem(sys.modules, "planish.apex", module)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.1))
    weight = model[1].weight
    variants.put_in(model, variants.of_apex("planish.apex"))
    assert type(model[1]) is FusedLayerNorm
    assert model[1].weight is weight and model[1].eps == 0.1
    with pytest.raises(ImportError):
        variants.of_apex("no.such.package")
    assert type(variants.of_planish(nn.LayerNorm(4))) is planish.LayerNorm


def test_rows_keep_noise_to_themselves(capsys):
    samples = {
        "torch": Sample((2.0, 2.0, 2.0, 2.0, 2.0, 2.0)),
        "quiet": Sample((1.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
        "loud": Sample((1.0, 9.0, 1.0, 9.0, 1.0, 9.0)),
    }
    found = program.rows_of("w", "forward", samples)
    assert [row.microseconds for row in found] == [2e6, 1e6, None]
    assert [row.times for row in found] == [1.0, 2.0, None]
    program.print_rows(found)
    printed = capsys.readouterr().out
    assert "2.00x" in printed and printed.count("noisy") == 2


@pytest.mark.parametrize("name", ["switch", "apex", "unfused", "norms", "bert"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing is missing")
def test_a_missing_gpu_is_named(name):
    with pytest.raises(UsageError, match=r"--device cuda: .* no GPU"):
        main([name, "--device", "cuda"])


def test_no_record_is_a_failure(tmp_path):
    arguments = program.parser("x", None).parse_args(["--out", str(tmp_path)])
    assert program.launch("x", [], arguments, lambda _: []) == 1
