"""Code that looks for Apex, unchanged, on planish's: timm, Megatron-core, and BERT as it is written
for Apex, trained beside the same on torch's LayerNorm.

Megatron-core (``pip install --no-deps --target FOLDER megatron-core``) is taken from the folder
that PLANISH_MEGATRON names, where it is not installed.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.checkpoint import checkpoint

import planish
import planish.apex
import torch
from torch import Tensor, nn

MEGATRON = os.environ.get("PLANISH_MEGATRON", "")


@pytest.fixture
def apex() -> Iterator[None]:
    if not planish.apex.install():
        pytest.skip("a real apex is installed here")
    yield
    planish.apex.uninstall()


def run(code: str) -> None:
    """In a fresh Python: who looks for Apex looks once."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm_does_not_use_it_or_trains_otherwise() -> None:
    run("""
        import planish.apex, torch
        assert planish.apex.install()
        import planish
        from planish._torchvision import mend_torchvision
        mend_torchvision()
        from timm.layers import fast_norm, set_fast_norm
        from timm.models.vision_transformer import VisionTransformer
        assert fast_norm.has_apex and fast_norm.has_apex_rmsnorm
        assert fast_norm.fused_layer_norm_affine.__module__.startswith("planish.apex")

        def built():
            torch.manual_seed(0)
            return VisionTransformer(
                img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=5
            )

        slow = built()
        set_fast_norm(True)
        fast = built()
        assert fast.norm._fast_norm and not slow.norm._fast_norm
        images = torch.randn(4, 3, 32, 32)
        losses = []
        for model in (slow, fast):
            before = planish.stats()["planish::norm_forward"]["planish"]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            losses.append([])
            for _ in range(3):
                loss = torch.nn.functional.cross_entropy(model(images), torch.arange(4))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss)
            ran = planish.stats()["planish::norm_forward"]["planish"] - before
            assert ran == (15 if model is fast else 0), ran
        torch.testing.assert_close(*losses)

        # what Apex itself fails on: no parameters, CPU tensors, RMS norms
        from timm.layers import LayerNorm, RmsNorm
        for cls in (LayerNorm, RmsNorm):
            x = torch.randn(2, 64)
            for affine in (True, False):
                set_fast_norm(False)
                torchs = cls(64, affine=affine)
                set_fast_norm(True)
                torch.testing.assert_close(cls(64, affine=affine)(x), torchs(x))
    """)


def _has_megatron() -> bool:
    try:
        return bool(MEGATRON) or importlib.util.find_spec("megatron.core") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(
    not _has_megatron(), reason="megatron-core is not installed, nor named by PLANISH_MEGATRON"
)
def test_megatron_does_not_use_it_or_is_wrong() -> None:
    run(f"""
        import sys, planish.apex, torch
        sys.path += [{MEGATRON!r}] if {MEGATRON!r} else []
        assert planish.apex.install()
        from megatron.core.fusions import fused_layer_norm as fused
        from megatron.core.models import backends
        from megatron.core.transformer.transformer_config import TransformerConfig
        assert fused.HAVE_PERSIST_LAYER_NORM and fused.HAVE_FUSED_LAYER_NORM and backends.HAVE_APEX
        assert fused.FastLayerNormFN.__module__.startswith("planish.apex")
        for persist in (True, False):
            for zero_centered in (True, False):
                for efficient in (True, False):
                    config = TransformerConfig(
                        num_layers=1,
                        hidden_size=1024,
                        num_attention_heads=8,
                        persist_layer_norm=persist,
                        layernorm_zero_centered_gamma=zero_centered,
                        memory_efficient_layer_norm=efficient,
                    )
                    norm = fused.FusedLayerNorm(config, 1024)
                    torch.nn.init.normal_(norm.weight, 1 - zero_centered, 0.02)
                    torch.nn.init.normal_(norm.bias, 0, 0.02)
                    x = torch.randn(5, 2, 1024, requires_grad=True)
                    weight = norm.weight + 1 if zero_centered else norm.weight
                    right = torch.nn.functional.layer_norm(x, (1024,), weight, norm.bias, 1e-5)
                    y = norm(x)
                    torch.testing.assert_close(y, right)
                    leaves = [x, norm.weight, norm.bias]
                    dy = torch.randn_like(y)
                    for mine, other in zip(
                        torch.autograd.grad(y, leaves, dy), torch.autograd.grad(right, leaves, dy)
                    ):
                        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    """)


# ---- BERT, as it is written for Apex ------------------------------------------------------------


def bert_layer_norm() -> Any:
    """How such models choose; under the fixture Apex's name is planish's."""
    try:
        from apex.normalization.fused_layer_norm import FusedLayerNorm as BertLayerNorm
    except ImportError:
        return nn.LayerNorm
    return BertLayerNorm


class Layer(nn.Module):
    def __init__(self, norm: Any, width: int, heads: int, first: bool, **options: Any) -> None:
        super().__init__()
        self.first = first
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.intermediate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.PreAttentionLayerNorm = norm(width, eps=1e-12, **options)
        self.PostAttentionLayerNorm = norm(width, eps=1e-12, **options)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            y = self.PreAttentionLayerNorm(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            y = self.PostAttentionLayerNorm(x)
            return x + self.output(nn.functional.gelu(self.intermediate(y)))
        y = self.PreAttentionLayerNorm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.PostAttentionLayerNorm(
            y + self.output(nn.functional.gelu(self.intermediate(y)))
        )


class Bert(nn.Module):
    """``first``: norms in front of attention and of the two layers behind it, else after them."""

    def __init__(self, norm: Any, first: bool, **options: Any) -> None:
        super().__init__()
        width = 32
        self.words, self.positions = nn.Embedding(50, width), nn.Embedding(12, width)
        self.LayerNorm = norm(width, eps=1e-12, **options)
        self.layers = nn.ModuleList(Layer(norm, width, 4, first, **options) for _ in range(2))
        self.FinalLayerNorm = norm(width, eps=1e-12, **options) if first else nn.Identity()
        self.head = nn.Linear(width, 50)
        self.checkpoints: bool | None = None  # use_reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.LayerNorm(self.words(tokens) + self.positions.weight)
        for layer in self.layers:
            if self.checkpoints is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.checkpoints)
        return self.head(self.FinalLayerNorm(x))


def pair(first: bool, **options: Any) -> tuple[Bert, Bert]:
    """The same on planish's FusedLayerNorm and on torch's LayerNorm."""
    mine, torchs = Bert(bert_layer_norm(), first, **options), Bert(nn.LayerNorm, first)
    assert type(mine.LayerNorm) is planish.apex.FusedLayerNorm
    for parameter in mine.parameters():
        nn.init.normal_(parameter, float(parameter.dim() == 1), 0.05)
    torchs.load_state_dict(mine.state_dict())
    return mine, torchs


def train(model: Bert, half: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(5):
        tokens = torch.randint(50, (4, 12), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("on", [False, True], ids=["", "enabled"])
def test_bert_trains_otherwise(apex: None, first: bool, memory_efficient: bool, on: bool) -> None:
    mine, torchs = pair(first, memory_efficient=memory_efficient)
    expected = train(torchs)
    if on:
        planish.enable()
    losses = train(mine)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
def test_bert_under_autocast_trains_otherwise(apex: None, first: bool) -> None:
    mine, torchs = pair(first)
    torch.testing.assert_close(
        train(mine, half=True), train(torchs, half=True), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("memory_efficient", [False, True])
def test_bert_with_checkpointing_trains_otherwise(
    apex: None, reentrant: bool, memory_efficient: bool
) -> None:
    mine, torchs = pair(True, memory_efficient=memory_efficient)
    mine.checkpoints = reentrant
    torch.testing.assert_close(train(mine), train(torchs), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_made_with_apex_does_not_load(apex: None) -> None:
    mine, torchs = pair(False)
    assert list(mine.state_dict()) == list(torchs.state_dict())
    train(mine)
    file = io.BytesIO()
    torch.save(mine.state_dict(), file)
    file.seek(0)
    torchs.load_state_dict(torch.load(file, weights_only=True))
    back = copy.deepcopy(mine)
    back.load_state_dict(torchs.state_dict())
    tokens = torch.randint(50, (4, 12))
    assert torch.equal(back(tokens), mine(tokens))
    torch.testing.assert_close(torchs(tokens), mine(tokens))


def test_a_whole_model_pickled_with_apex_does_not_load(apex: None) -> None:
    """Such a file names Apex's classes by their modules there, and holds their attributes."""
    from apex.normalization import FusedLayerNorm

    module = FusedLayerNorm(8)
    held = dict(module.__dict__)
    held.pop("memory_efficient")  # an older Apex had none
    text = "capex.normalization.fused_layer_norm\nFusedLayerNorm\n"
    made: Any = pickle.loads(b"\x80\x02" + text.encode() + b")\x81.")
    made.__dict__.update(held)
    assert type(made) is FusedLayerNorm
    x = torch.randn(2, 8)
    assert torch.equal(made(x), module(x))
