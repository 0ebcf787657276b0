"""diffusers' ResnetBlock2D with both activations done by the norms before them.

Its one activation module serves behind both norms and on the time embedding, so nothing can take
its place; the block gets a forward of its own, which a class has to prove first, on small blocks
with the same settings in float64.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from planish.functions import groups as _groups
from planish.library import counts
from planish.modules import channel_modules
from planish.replacing import families, probe
from planish.replacing.layers import Layer, assign, body_of
from planish.replacing.stages import watched
from torch import Tensor, nn

__all__ = ["count", "put"]

_NAMES = {("diffusers.models.resnet", "ResnetBlock2D")}

_proven: dict[Any, bool] = {}
_lock = threading.RLock()


def _activated(norm: nn.Module, act: nn.Module, x: Tensor) -> Tensor:
    """act(norm(x)), fused where nobody can tell."""
    activation = families.ACTIVATIONS.get(type(act))
    if (
        activation is not None
        and type(norm) is channel_modules.GroupNorm
        and getattr(norm, "activation", "") is None  # "": restored by another thread
        and x.dim() > 1
        and x.shape[1] == norm.num_channels
        and channel_modules.planish_runs(x, norm.weight, norm.bias)
        and not watched(norm)
        and not watched(act)
    ):
        groups, eps = norm.num_groups, norm.eps
        return _groups.group_norm(x, groups, norm.weight, norm.bias, eps, activation)
    result: Tensor = act(norm(x))
    return result


def _resampled(block: Any, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    if block.upsample is not None:
        if h.shape[0] >= 64:  # as the original: nearest upsampling of large batches wants this
            x, h = x.contiguous(), h.contiguous()
        return block.upsample(x), block.upsample(h)
    if block.downsample is not None:
        return block.downsample(x), block.downsample(h)
    return x, h


def _forward(block: Any, x: Tensor, temb: Tensor | None) -> Tensor:
    """conv2(silu(norm2(conv1(silu(norm1(x))) and the time embedding))) + shortcut(x)."""
    act = block.nonlinearity
    h = _activated(block.norm1, act, x)
    x, h = _resampled(block, x, h)
    h = block.conv1(h)
    if block.time_emb_proj is not None:
        temb = temb if block.skip_time_act else act(temb)
        temb = block.time_emb_proj(temb)[:, :, None, None]
    if block.time_embedding_norm == "scale_shift":
        if temb is None:
            raise ValueError(
                "temb is None; a block whose time_embedding_norm is scale_shift wants one"
            )
        scale, shift = temb.chunk(2, dim=1)
        h = act(block.norm2(h) * (1 + scale) + shift)
    else:
        if block.time_embedding_norm == "default" and temb is not None:
            h = h + temb
        h = _activated(block.norm2, act, h)
    h = block.conv2(block.dropout(h))
    if block.conv_shortcut is not None:
        x = block.conv_shortcut(x.contiguous() if block.training else x)
    y: Tensor = (x + h) / block.output_scale_factor
    return y


class _Fused(Layer):
    """What the classes made here share."""

    @staticmethod
    def _planish_again(holder: Any) -> None:
        put(holder)


@functools.cache
def _class_with_stages(original: Any) -> type[nn.Module]:
    def forward(self: Any, input_tensor: Tensor, temb: Any = None, *args: Any, **kw: Any) -> Any:
        """As the original's."""
        if args or kw:
            return original.forward(self, input_tensor, temb, *args, **kw)
        return _forward(self, input_tensor, temb)

    return type(original.__name__, (_Fused, original), body_of(original, forward=forward))


_SETTINGS = ("time_embedding_norm", "up", "down", "skip_time_act", "output_scale_factor")


def _small(cls: type[nn.Module], block: Any) -> nn.Module:
    """A block of the class with this one's settings and few channels, seeded, in float64."""
    settings = {name: getattr(block, name) for name in _SETTINGS}
    made: Any = cls(
        in_channels=8,
        out_channels=12,
        temb_channels=None if block.time_emb_proj is None else 6,
        groups=4,
        use_in_shortcut=block.conv_shortcut is not None or None,
        **settings,
    )
    made.nonlinearity = type(block.nonlinearity)()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    small: nn.Module = made.to("cpu", torch.float64)
    return small


def _prove(cls: type[nn.Module], block: Any) -> bool:
    generator = torch.Generator().manual_seed(2)
    with torch.random.fork_rng(devices=[]):
        small = _small(cls, block)
    x, temb = (torch.randn(s, generator=generator).double() for s in ((2, 8, 6, 4), (2, 6)))
    results = []
    for training in (False, True):
        small.train(training)
        for given in (temb,) if block.time_emb_proj is not None else (None,):
            results.append((small(x, given), _forward(small, x, given)))
    norms: Any = small
    norms.norm1.__class__ = norms.norm2.__class__ = channel_modules.GroupNorm
    results += [(theirs, _forward(small.eval(), x, given)) for theirs, _ in results[:1]]
    return all(
        float((ours - theirs).detach().abs().max()) <= 1e-10 * float(theirs.detach().abs().max())
        for theirs, ours in results
    )


def _is_proven(cls: type[nn.Module], block: Any) -> bool:
    key = (
        cls.forward,
        *(getattr(block, name, None) for name in _SETTINGS),
        block.time_emb_proj is None,
        block.conv_shortcut is None,
        type(block.nonlinearity),
    )
    with _lock:
        if key not in _proven:
            try:
                with counts.uncounted(), probe.apart(), torch.device("cpu"):
                    _proven[key] = _prove(cls, block)
            except Exception:  # whatever a forward raises
                _proven[key] = False
        return _proven[key]


def put(module: Any) -> None:
    """Gives a block of the classes known its new forward, where that is proven."""
    cls: Any = type(module)
    if (
        (cls.__module__, cls.__qualname__) in _NAMES
        and not isinstance(module, _Fused)
        and "forward" not in module.__dict__
        and families.ACTIVATIONS.get(type(module._modules.get("nonlinearity")))
        and any(type(module._modules.get(f"norm{i}")) is channel_modules.GroupNorm for i in (1, 2))
        and _is_proven(cls, module)
    ):
        assign(module, _class_with_stages(cls))


def count(module: Any) -> int:
    """Activations that the block's norms do."""
    if not isinstance(module, _Fused):
        return 0
    block: Any = module
    return 1 if block.time_embedding_norm == "scale_shift" else 2
