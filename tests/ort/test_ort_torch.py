"""Blocks of models, exported from torch, run with planish as they run without it."""

from __future__ import annotations

import collections
import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from ort_support import close, options, own_session, session

import planish.ort

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from torch import nn  # noqa: E402


class Encoder(nn.Module):
    """Post-norm attention and MLP, as BERT's, with dynamic sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: Any) -> Any:
        x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.second(x + self.mlp(x))


class Decoder(nn.Module):
    """Pre-norm with RMSNorm and a gated MLP, as Llama's: the sums are read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(64, eps=1e-6) for _ in range(3))
        self.up, self.gate = nn.Linear(64, 128), nn.Linear(64, 128)
        self.down, self.mix = nn.Linear(128, 64), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        x = x + self.mix(self.norms[0](x))
        h = self.norms[1](x)
        x = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return self.norms[2](x)


class Residual(nn.Module):
    """Convolutions with GroupNorm and SiLU, as a U-Net's."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        h = self.convs[0](nn.functional.silu(self.norms[0](x)))
        return x + self.convs[1](nn.functional.silu(self.norms[1](h)))


BLOCKS: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[int, str] | None]] = {
    "encoder": (Encoder, (2, 10, 64), {0: "batch", 1: "length"}),
    "decoder": (Decoder, (2, 10, 64), None),
    "residual": (Residual, (2, 16, 9, 9), None),
}
#: What planish must take, by the operator that tells a norm.
WANTED = {
    "encoder": {"LayerNormalization": 2, "Add": 2},
    "decoder": {"RMSNormalization": 3, "Add": 2},
    "residual": {"GroupNormalization": 2, "Sigmoid": 2},
}
#: The same, written out for opset 20.
OLDER = {"RMSNormalization": "Reciprocal", "GroupNormalization": "InstanceNormalization"}


def exported(name: str, opset: int, folder: Path) -> tuple[bytes, Any]:
    torch.manual_seed(0)
    block, shape, dynamic = BLOCKS[name]
    x, path = torch.randn(shape), folder / "block.onnx"
    sizes = {"x": {i: torch.export.Dim(n) for i, n in dynamic.items()}} if dynamic else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            block().eval(), (x,), path, input_names=["x"], dynamo=True, opset_version=opset,
            dynamic_shapes=sizes, verbose=False, external_data=False,
        )  # fmt: skip
    return path.read_bytes(), x.numpy()


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("name", list(BLOCKS))
def test_a_block(name: str, opset: int, tmp_path: Path) -> None:
    text, x = exported(name, opset, tmp_path)
    made, own = session(text), own_session(text)
    taken = collections.Counter(o for group in planish.ort.taken(made) for o in group)
    for operator, count in WANTED[name].items():
        if opset == 20:
            operator = OLDER.get(operator, operator)
        assert taken[operator] >= count, taken
    for batch in (1, 2) if name == "encoder" else (2,):
        (y,), (wanted,) = (s.run(None, {"x": x[:batch]}) for s in (made, own))
        close(y, wanted.astype("f8"), times=5)


def test_a_model_that_the_runtime_has_optimised(tmp_path: Path) -> None:
    """Its nodes are SkipLayerNormalization, which it makes after it has asked the providers."""
    text, x = exported("encoder", 20, tmp_path)
    saves = options()
    saves.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    saves.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    own = onnxruntime.InferenceSession(text, saves, providers=["CPUExecutionProvider"])
    made = session((tmp_path / "optimised.onnx").read_bytes())
    assert planish.ort.taken(made) == [("SkipLayerNormalization",)] * 2
    close(made.run(None, {"x": x})[0], own.run(None, {"x": x})[0].astype("f8"), times=5)
