"""Real models with seeded weights and seeded input, and the norms inside them.

Used by the demo and by `planish bench model`. Nothing is downloaded: the models are built from
their own configuration classes. Knows nothing of planish.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import torch
from planish._torchvision import mend_torchvision

SEED = 20
# Steps run in full but leave the weights as they are, so that every step of a measurement does the
# same arithmetic and losses can be compared.
LEARNING_RATE = 0.0


@dataclass
class Workload:
    """A model with a batch of input. ``loss`` runs the forward and returns the loss."""

    name: str
    shape: str
    model: torch.nn.Module
    loss: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    batch: int
    autocast: bool = False

    def infer(self) -> torch.Tensor:
        """An inference step: forward without gradients; returns the loss, which a GPU may still be
        at work on."""
        self.model.eval()
        with torch.no_grad():
            return self.loss()

    def train(self) -> torch.Tensor:
        """Forward, backward and one step of SGD; returns the loss before it, likewise."""
        self.model.train()
        torch.manual_seed(SEED)  # dropout: the same elements in every step
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def forward_step(self) -> float:
        """An inference step, to its end."""
        return float(self.infer())

    def training_step(self) -> float:
        """A training step, to its end."""
        return float(self.train())


def bert_base(
    batch: int = 4,
    tokens: int = 128,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    large: bool = False,
    layers: int | None = None,
) -> Workload:
    """Transformers' BERT with its default configuration, which is bert-base (12 layers, 768 wide),
    or bert-large (24 layers, 1024 wide), as a classifier of two classes. ``layers``: fewer."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    mend_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    given = sizes if large else {}
    config = BertConfig(**given if layers is None else {**given, "num_hidden_layers": layers})
    model: Any = BertForSequenceClassification(config)
    model.to(device, dtype)
    ids = torch.randint(0, config.vocab_size, (batch, tokens)).to(device)
    labels = torch.randint(0, 2, (batch,)).to(device)

    def loss() -> torch.Tensor:
        found: torch.Tensor = model(input_ids=ids, labels=labels).loss
        return found

    # The table of word embeddings gets no step: its dense gradient is as large as all norms' input
    # and says nothing about them.
    steps = [p for n, p in model.named_parameters() if "word_embeddings" not in n]
    optimizer = torch.optim.SGD(steps, lr=LEARNING_RATE)
    return Workload(
        f"BERT-{'large' if large else 'base'}",
        f"{batch} x {tokens} tokens",
        model,
        loss,
        optimizer,
        batch,
    )


def convnext(
    variant: str = "convnext_base",
    batch: int = 2,
    size: int = 224,
    channels_last: bool = True,
    **place: Any,
) -> Workload:
    """timm's ConvNeXt, by default in channels-last memory format, the faster one on a CPU and for
    half."""
    name = variant.replace("_", "-").replace("convnext", "ConvNeXt")
    return _classifier(variant, name, batch, size, channels_last, **place)


#: A ResNet's norms: timm's name of each, and ours.
RESNET_NORMS = {
    "batch": ("batchnorm2d", "BatchNorm"),
    "layer": ("layernorm2d", "LayerNorm2d"),
    "group": ("groupnorm", "GroupNorm(32)"),
}


def resnet50(
    norm: str,
    batch: int = 64,
    size: int = 224,
    channels_last: bool = True,
    **place: Any,
) -> Workload:
    """timm's ResNet-50 with one of RESNET_NORMS for all its norms."""
    timms, ours = RESNET_NORMS[norm]
    name = f"ResNet-50 {ours}"
    return _classifier("resnet50", name, batch, size, channels_last, **place, norm_layer=timms)


def _classifier(
    variant: str,
    name: str,
    batch: int,
    size: int,
    channels_last: bool,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
    **options: Any,
) -> Workload:
    """A timm model over random images; with ``autocast`` of float weights, run in ``dtype``."""
    mend_torchvision()
    import timm

    torch.manual_seed(SEED)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    held = torch.float32 if autocast else dtype
    model: torch.nn.Module = timm.create_model(
        variant, pretrained=False, num_classes=1000, **options
    )
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    model = model.to(device, held)
    images = torch.randn(batch, 3, size, size).to(memory_format=layout).to(device, held)
    labels = torch.randint(0, 1000, (batch,)).to(device)

    def loss() -> torch.Tensor:
        with torch.autocast(device, dtype, enabled=autocast):
            return torch.nn.functional.cross_entropy(model(images), labels)

    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    shape = f"{batch} x {size}x{size} images, {'channels last' if channels_last else 'NCHW'}"
    return Workload(name, shape, model, loss, optimizer, batch, autocast)


@dataclass
class NormCall:
    """One distinct norm of a model: the operands of its first call and of its first backward."""

    x: torch.Tensor
    normalized_shape: list[int]
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    calls: int = 1
    dy: torch.Tensor | None = None

    @property
    def shape(self) -> str:
        """x's shape as people write it."""
        return " x ".join(str(size) for size in self.x.shape)

    @property
    def dtype(self) -> str:
        """x's dtype, short."""
        names = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16"}
        return names.get(self.x.dtype, "f16")

    @property
    def dense(self) -> bool:
        """Whether x lies in memory row by row."""
        return self.x.is_contiguous()


class NormCollector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the LayerNorm calls below autograd, by shape, layout and dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[Any, ...], NormCall] = {}

    @staticmethod
    def key(x: torch.Tensor, shape: Any) -> tuple[Any, ...]:
        """What makes two norms the same."""
        return (tuple(x.shape), x.stride(), x.dtype, tuple(shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes norms and their backward; runs everything as it is."""
        aten = torch.ops.aten
        if func is aten.native_layer_norm.default:
            x, shape, weight, bias, eps = args
            call = self.found.get(self.key(x, shape))
            if call is not None:
                call.calls += 1
            else:
                kept = [None if t is None else t.detach().clone() for t in (x, weight, bias)]
                assert kept[0] is not None
                self.found[self.key(x, shape)] = NormCall(
                    kept[0], list(shape), kept[1], kept[2], float(eps)
                )
        elif func is aten.native_layer_norm_backward.default:
            dy, x, shape = args[:3]
            call = self.found.get(self.key(x, shape))
            if call is not None and call.dy is None:
                call.dy = dy.detach().clone()
        return func(*args, **(kwargs or {}))


def collect_norms(workload: Workload) -> list[NormCall]:
    """Runs one training step and returns its distinct norms, largest first, with real operands."""
    collector = NormCollector()
    with collector:
        workload.training_step()
    gc.collect()
    return sorted(collector.found.values(), key=lambda call: -call.x.numel() * call.calls)
