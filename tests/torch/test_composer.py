"""planish.composer: the function without Composer, the algorithm under Composer's Trainer, and
Composer's own low-precision norms with planish enabled."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import Any

import pytest
from support import GROUP, LAYER, LAYER_BACKWARD, on_planish

import planish
import planish.composer
import torch
from planish._torchvision import mend_torchvision
from planish.composer import apply_fused_layernorm
from torch import nn

mend_torchvision()
HAS_COMPOSER = importlib.util.find_spec("composer") is not None
needs_composer = pytest.mark.skipif(
    not HAS_COMPOSER,
    reason="composer is not installed (pip install mosaicml, see docs/guide/composer.md)",
)


class Odd(nn.LayerNorm):
    """A subclass with a forward of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def _net() -> nn.Module:
    torch.manual_seed(0)
    shared = nn.LayerNorm(16)
    return nn.Sequential(
        nn.Linear(8, 16),
        shared,
        nn.GELU(),
        nn.Linear(16, 16),
        shared,
        nn.ModuleDict({"norm": nn.LayerNorm(16, elementwise_affine=False)})["norm"],
        nn.LayerNorm(16, eps=1e-3, bias=False),
        nn.Linear(16, 3),
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 8, generator=generator)
    labels = torch.randint(0, 3, (32,), generator=generator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


# ---- The function ---------------------------------------------------------------------------


def test_weights_and_optimizer_go_on_in_the_middle_of_a_training():
    losses = []
    for fused in (False, True):
        model = _net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        found = [_step(model, optimizer, seed) for seed in range(5)]
        before = dict(model.named_parameters())
        state = {name: optimizer.state[p]["exp_avg"].clone() for name, p in before.items()}
        if fused:
            apply_fused_layernorm(model, optimizer)
            after = dict(model.named_parameters())
            assert list(after) == list(before)
            assert all(after[name] is before[name] for name in before)
            assert all(torch.equal(optimizer.state[after[n]]["exp_avg"], state[n]) for n in state)
            assert [type(model[i]) for i in (1, 4, 5, 6)] == [planish.LayerNorm] * 4
            assert model[1] is model[4]
            assert model[6].eps == 1e-3 and model[6].bias is None
        found += [_step(model, optimizer, seed) for seed in range(5, 15)]
        losses.append(found)
    torch_losses, ours = losses
    assert ours[:5] == torch_losses[:5]
    assert ours == pytest.approx(torch_losses, rel=1e-4)
    assert ours[-1] != ours[4]


def test_subclasses_are_left_alone_and_other_norms_too():
    model = nn.ModuleList([Odd(4), nn.GroupNorm(2, 4), nn.LayerNorm(4)])
    assert apply_fused_layernorm(model) is None
    assert [type(m) for m in model] == [Odd, nn.GroupNorm, planish.LayerNorm]


def test_no_effect_and_a_bare_norm_are_said():
    with pytest.warns(Warning, match=r"No instances of torch\.nn\.LayerNorm"):
        apply_fused_layernorm(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="cannot be replaced in place"):
        apply_fused_layernorm(nn.LayerNorm(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_fused_layernorm(nn.Sequential(nn.LayerNorm(4)))


def test_half_under_autocast_stays_half():
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16))
    apply_fused_layernorm(model)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(4, 8))
    assert y.dtype == torch.bfloat16
    assert model[1].weight.dtype == torch.float32


@pytest.mark.skipif(HAS_COMPOSER, reason="composer is installed: nothing is missing")
def test_a_missing_composer_is_named():
    with pytest.raises(ImportError, match="FusedLayerNorm needs Composer"):
        planish.composer.FusedLayerNorm  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        planish.composer.Nothing  # noqa: B018


# ---- Under Composer -------------------------------------------------------------------------


def _trainer(tmp_path: Any, algorithms: list[Any], **more: Any) -> Any:
    composer = importlib.import_module("composer")
    models = importlib.import_module("composer.models")
    logged: list[float] = []

    class Model(models.ComposerModel):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.net(batch[0])

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            loss = nn.functional.cross_entropy(outputs, batch[1])
            logged.append(loss.item())
            return loss

    generator = torch.Generator().manual_seed(9)
    x = torch.randn(160, 8, generator=generator)
    data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Composer's own about this machine
        trainer = composer.Trainer(
            model=model,
            algorithms=algorithms,
            optimizers=optimizer,
            train_dataloader=torch.utils.data.DataLoader(data, batch_size=16),
            max_duration="3ep",
            device="cpu",
            seed=3,
            progress_bar=False,
            log_to_console=False,
            save_folder=str(tmp_path),
            save_overwrite=True,
            **more,
        )
        trainer.logged = logged
        return trainer


@needs_composer
def test_trainer_trains_as_with_torch_and_its_checkpoints_are_the_same(tmp_path):
    plain = _trainer(tmp_path / "plain", [])
    plain.fit()
    algorithm = planish.composer.FusedLayerNorm()
    fused = _trainer(tmp_path / "fused", [algorithm])
    net = fused.state.model.net
    assert [type(net[i]) for i in (1, 4, 5, 6)] == [planish.LayerNorm] * 4
    held = [p for group in fused.state.optimizers[0].param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in fused.state.model.parameters()}
    fused.fit()
    assert len(fused.logged) == len(plain.logged) == 30
    assert plain.logged[-1] < 0.8 * plain.logged[0]
    assert fused.logged == pytest.approx(plain.logged, rel=2e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for folder, algorithms in (("plain", [algorithm]), ("fused", [])):
            path = str(tmp_path / folder / "latest-rank0.pt")
            again = _trainer(tmp_path / "again", algorithms, load_path=path)
            wanted = (plain if folder == "plain" else fused).state.model.state_dict()
            found = again.state.model.state_dict()
            assert list(found) == list(wanted)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
            assert len(again.state.optimizers[0].state) == len(list(again.state.model.parameters()))


@needs_composer
def test_another_event_and_an_unknown_one():
    core = importlib.import_module("composer.core")
    algorithm = planish.composer.FusedLayerNorm(apply_at="after_load")
    assert algorithm.match(core.Event.AFTER_LOAD, None)
    assert not algorithm.match(core.Event.INIT, None)
    assert not algorithm.required_on_load()
    assert repr(algorithm) == "FusedLayerNorm(apply_at=Event.AFTER_LOAD)"
    with pytest.raises(ValueError):
        planish.composer.FusedLayerNorm(apply_at="sometime")


@needs_composer
def test_no_effect_is_composer_s_warning():
    known = importlib.import_module("composer.algorithms.warnings")
    with pytest.warns(known.NoEffectWarning):
        apply_fused_layernorm(nn.Linear(2, 2))


@needs_composer
@pytest.mark.parametrize("kind", ["layernorm", "groupnorm"])
def test_today_s_low_precision_norms_run_on_planish(kind):
    """They look at CUDA's autocast whatever the device, so that is what is switched on here."""
    functional = importlib.import_module("composer.functional")
    precision = importlib.import_module("composer.core").Precision.AMP_BF16
    norm: nn.Module = nn.LayerNorm(16) if kind == "layernorm" else nn.GroupNorm(4, 16)
    x = torch.randn(8, 16) if kind == "layernorm" else torch.randn(2, 16, 6, 6)
    model = nn.Sequential(norm)
    getattr(functional, f"apply_low_precision_{kind}")(model, precision)
    assert type(model[0]).__name__.startswith("LP")
    results = []
    torch.set_autocast_enabled("cuda", True)
    try:
        results.append(model(x))
        operator = LAYER if kind == "layernorm" else GROUP
        with on_planish(operator, *([LAYER_BACKWARD] if kind == "layernorm" else [])):
            results.append(model(x))
            results[1].float().sum().backward()
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert [y.dtype for y in results] == [torch.bfloat16] * 2
    assert (results[0].float() - results[1].float()).abs().max() <= 2**-6
    assert sys.modules["composer"] is not planish.composer
