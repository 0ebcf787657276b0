"""The parts of the GPU bench that need no GPU; the rest runs where torch sees one."""

import importlib.util
import json

import pytest

import planish
import torch
from planish.bench import report
from planish.bench.case import Case, make_data
from planish.bench.gpu import MOST_SETS, ROTATE_BYTES, data_sets
from planish.bench.models import (
    captured,
    chosen,
    compiled,
    gpu_busy,
    losses_side_by_side,
    makers_of,
)
from planish.bench.providers import elsewhere
from planish.bench.sweeps import SWEEPS, cases_of
from planish.commands.models import RESNET_NORMS, Workload, resnet50

CUDA = torch.cuda.is_available()


def cases(name, device):
    groups = cases_of(
        SWEEPS[name],
        quick=False,
        dtypes=None,
        kinds=["layer"],
        directions=["forward"],
        budget_bytes=1e12,
        device=device,
    )
    return [case for group in groups for case in group]


def test_cpu_data_is_used_as_it_is():
    case = Case(4, 8)
    data = make_data(case)
    assert data_sets(case, data) == [data]


def test_buffers_exceed_the_cache():
    """The sets are counted from the case's bytes, whatever device the tensors are on."""
    data = make_data(Case(64, 1024, "f16", "backward"))
    sets = data_sets(Case(64, 1024, "f16", "backward", device="cuda"), data)
    assert len(sets) == MOST_SETS
    assert len({s.x.data_ptr() for s in sets}) == len({s.dy.data_ptr() for s in sets}) == MOST_SETS
    assert all(torch.equal(s.x, data.x) and s.weight is data.weight for s in sets)
    large = Case(4096, 4096, "f16", "forward", device="cuda")
    count = len(data_sets(large, data))
    assert (count - 1) * large.needed_bytes < ROTATE_BYTES <= count * large.needed_bytes


def test_gpu_sweeps_have_the_shapes_and_dtypes_of_gpus():
    small = cases("small", "cuda")
    assert {c.dtype for c in small} == {"f16"}
    assert {c.device for c in small} == {"cuda"}
    assert 512 in {c.cols for c in small}
    assert 512 not in {c.cols for c in cases("small", "cpu")}


@pytest.mark.parametrize(
    ("device", "names"),
    [("cpu", {"liger", "quack", "apex", "triton"}), ("cuda", {"onnxruntime", "onednn"})],
)
def test_peers_of_the_other_device_are_named_with_the_way_to_them(device, names):
    absent = elsewhere(device)
    assert {p.name for p in absent} == names
    other = "cuda" if device == "cpu" else "cpu"
    assert all(f"--device {other}" in (p.missing() or "") for p in absent)


def test_markdown_of_a_gpu_has_shares_of_the_ceiling(tmp_path):
    def record(provider, role, status, microseconds):
        return {
            "work": "4 x 8", "kind": "layer", "dtype": "f16", "direction": "forward",
            "provider": provider, "role": role, "status": status, "microseconds": microseconds,
        }  # fmt: skip

    path = tmp_path / "run.json"
    records = [
        record("copy", "ceiling", "ok", 9.0),
        record("torch", "peer", "ok", 36.0),
        record("quack", "peer", "failed", None),
        record("planish", "planish", "ok", 10.0),
    ]
    path.write_text(json.dumps({"settings": {"device": "cuda"}, "results": records}))
    text = report.markdown(path)
    assert "| planish, us | torch | planish |" in text
    assert "| 4 x 8 | 10 | 0.25 | 0.90 |" in text


def test_losses_are_paired_step_by_step():
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        x, wanted = torch.randn(4, 8), torch.randn(4, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loss = lambda: torch.nn.functional.mse_loss(model(x), wanted)  # noqa: E731
        return Workload("small", "4 x 8", model, loss, optimizer, 4)

    class Nothing:
        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    losses = losses_side_by_side(make, {"torch": Nothing, "planish-torch": Nothing}, 3, rate=0.1)
    assert [loss.step for loss in losses] == [1, 2, 3]
    assert all(loss.torch == loss.planish for loss in losses)
    assert losses[0].torch != losses[2].torch, "the optimizer takes steps"


def test_compiled_is_put_in_place_for_a_block(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    x = torch.randn(4, 8)
    plain = model(x)
    calls = []

    def compile(function):
        return lambda *given: (calls.append("call"), function(*given))[1]

    monkeypatch.setattr(torch, "compile", compile)
    enter = compiled(model)
    with enter():
        assert torch.allclose(model(x), plain)
    assert calls == ["call"]
    assert torch.equal(model(x), plain)
    assert calls == ["call"], "outside of the block nothing is compiled's"


def test_models_are_chosen_by_words_of_their_names():
    makers = makers_of(False, "cuda", ["f16"])
    assert {"bert-f16", "convnext-f16", "resnet-group-autocast-nchw"} <= set(makers)
    assert set(chosen(makers, "bert,batch-f16")) == {
        "bert-f16",
        "resnet-batch-f16-nhwc",
        "resnet-batch-f16-nchw",
    }
    with pytest.raises(ValueError, match=r"'vgg' is in none of bert-f16, convnext-f16"):
        chosen(makers, "vgg")


@pytest.mark.skipif(not importlib.util.find_spec("timm"), reason="timm is not installed")
@pytest.mark.parametrize("norm", RESNET_NORMS)
def test_resnets_have_the_norm_that_was_asked_for(norm):
    kinds = {
        "batch": torch.nn.BatchNorm2d,
        "layer": torch.nn.LayerNorm,
        "group": torch.nn.GroupNorm,
    }
    workload = resnet50(norm, 1, 64, dtype=torch.bfloat16, autocast=True)
    norms = [m for m in workload.model.modules() if isinstance(m, tuple(kinds.values()))]
    assert len(norms) == 53 and all(isinstance(m, kinds[norm]) for m in norms)
    assert all(p.dtype == torch.float32 for p in workload.model.parameters())
    assert workload.forward_step() > 0


@pytest.mark.skipif(not CUDA, reason="torch sees no CUDA GPU")
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_gpu_providers_are_right_or_say_why_not(kind, direction):
    from planish.bench.measure import measure
    from planish.bench.providers import gpu_providers
    from planish.bench.timing import Effort

    case = Case(300, 1024, "f16", direction, kind, device="cuda")
    results = measure(case, gpu_providers(), Effort(3, 0.0, 5.0))
    for result in results:
        assert result.status in ("ok", "unsupported"), (result.provider, result.reason)
    done = {r.provider for r in results if r.status == "ok"}
    assert {"planish", "planish-torch", "torch"} <= done
    assert ("copy" if direction == "forward" else "add") in done


@pytest.mark.skipif(not CUDA, reason="torch sees no CUDA GPU")
def test_share_of_norms():
    import contextlib

    x = torch.randn(64, 1024, device="cuda")
    milliseconds, all_norms, _ = gpu_busy(
        lambda: float(torch.nn.functional.layer_norm(x, [1024]).sum() * 0), contextlib.nullcontext
    )
    assert milliseconds > 0.0 and 0.0 < all_norms < 1.0
    assert gpu_busy(lambda: float((x * 2).sum()), contextlib.nullcontext)[1:] == (0.0, 0.0)


@pytest.mark.skipif(not CUDA, reason="torch sees no CUDA GPU")
def test_a_captured_step_trains_as_the_step_does():
    def make():
        torch.manual_seed(0)
        layers = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
        model = torch.nn.Sequential(*layers).cuda()
        x, wanted = torch.randn(16, 64, device="cuda"), torch.randn(16, 8, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = lambda: torch.nn.functional.mse_loss(model(x), wanted)  # noqa: E731
        return Workload("small", "16 x 64", model, loss, optimizer, 16)

    def enter():
        return planish.enabled(devices="cuda")

    plain = make()
    with enter():
        losses = [plain.training_step() for _ in range(6)]
    replay = captured(make().train, enter)  # three steps are taken before
    assert [float(replay()) for _ in range(3)] == losses[3:]
    assert losses[5] < losses[3]
