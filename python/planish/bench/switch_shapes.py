"""The shapes of `planish bench switch`: norms of vision and language models, and the lists of
oneDNN's benchdnn. Data; measures nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["nchw", "nhwc", "rows"]


@dataclass(frozen=True)
class Norm:
    """One norm of a model.

    "layer" and "rms": over the last axis of ``shape``; with ``layout`` "nchw" over the channels of
    (N, C, H, W), permuted as models write it. "group": of (N, C, ...) with ``groups``. "weight": of
    each slice of a weight along ``axis``.
    """

    kind: Literal["layer", "rms", "group", "weight"]
    shape: tuple[int, ...]
    model: str
    groups: int = 0
    layout: Layout = "rows"
    axis: int = 0

    @property
    def label(self) -> str:
        """The shape as people write it, the groups behind it."""
        text = " x ".join(map(str, self.shape))
        text = f"{text}, axis {self.axis}" if self.axis else text
        return f"{text}, {self.groups} groups" if self.groups else text


def _sizes(word: str) -> tuple[int, ...]:
    return tuple(int(size) for size in word.split("x"))


# ---- LayerNorm and RMSNorm: (..., width) --------------------------------------------------------

LAYER = {
    "vit": "1x197x192 1x197x384 8x197x384 1x197x768 8x197x768 1x257x1024 8x257x1024 1x577x1024 "
    "1x257x1280 1x50x768 1x1x768",
    "swin": "1x3136x96 1x784x192 1x196x384 1x49x768 8x3136x96 8x784x192 8x196x384 8x49x768 "
    "1x784x384 1x196x768 1x49x1536 8x3136x128 8x784x256 8x196x512 8x49x1024",
    "unet": "2x4096x320 2x1024x640 2x256x1280 2x64x1280 2x4096x640 2x1024x1280 2x9216x320 "
    "2x2304x640 2x576x1280 2x77x768 2x77x1024 2x77x1280",
    "bert": "1x1x768 1x16x768 1x128x768 4x128x768 8x512x768 1x384x1024 8x512x1024",
    # benchdnn's lnorm lists: shapes_ci, lnorm_all and the frameworks' option sets.
    "onednn": "15x3 30x300 256x768 257x768 128x1x1024 6x2x128x1024 128x1024 5120x1024 64x30x512 "
    "128x40x1024 1216x1024 2432x1024 8192x1024 16x512x1024 1x8192x1024 16384x1024 32x512x1024 "
    "1x24576x1024 1x16384x768 1x16384x3072 1x1024 1x4x4096 1x128x4096 1x128x768 1x128x1280 "
    "1x512x1280 1x2048x640 1x8192x320 1x257x1024 1x768x768 1x196x512 1x196x1024 1x3136x128 "
    "1x49x1024 1x49x2048 1x784x256 1x784x512 1x1568x512 1x1568x1024 1x25088x128 1x392x1024 "
    "1x392x2048 1x6272x256 1x6272x512",
}

#: LayerNorm over the channels of NCHW, permuted and back.
LAYER_IMAGES = {
    "convnext": "1x96x56x56 1x192x28x28 1x384x14x14 1x768x7x7 8x96x56x56 8x128x56x56 8x192x28x28 "
    "8x256x28x28 8x384x14x14 8x512x14x14 8x768x7x7 8x1024x7x7 2x64x8x8 1x32x4x4",
}

RMS = {
    "llama": "1x1x896 1x1x2048 1x1x4096 1x16x4096 1x128x4096 1x512x2048 4x512x2048 1x32x128x128 "
    "1x8x16x64 2x1024x1024",
}

# ---- GroupNorm: (N, C, ...) ---------------------------------------------------------------------

GROUP = {
    # U-Nets of Stable Diffusion at latents of 64 x 64 and 96 x 96, both halves of the guidance.
    "unet": (
        32,
        "2x320x64x64 2x640x64x64 2x960x64x64 2x320x32x32 2x640x32x32 2x960x32x32 2x1280x32x32 "
        "2x1920x32x32 2x640x16x16 2x1280x16x16 2x1920x16x16 2x2560x16x16 2x1280x8x8 2x2560x8x8 "
        "2x320x96x96 2x640x48x48 2x960x48x48 2x1280x48x48 2x1280x24x24 2x1920x24x24 2x1280x12x12 "
        "2x2560x12x12 2x1280x4x4 2x320x2x2 2x1280x2x2 2x2560x2x2",
    ),
    "vae": (
        32,
        "1x512x64x64 1x512x96x96 1x512x128x128 1x256x128x128 1x256x256x256 1x128x256x256 "
        "1x128x512x512",
    ),
    "resnet": (
        32,
        "1x64x112x112 1x64x56x56 1x256x56x56 1x128x28x28 1x512x28x28 1x256x14x14 1x1024x14x14 "
        "1x512x7x7 1x2048x7x7 8x64x112x112 8x64x56x56 8x256x56x56 8x128x28x28 8x512x28x28 "
        "8x256x14x14 8x1024x14x14 8x512x7x7 8x2048x7x7",
    ),
    "vit": (1, "1x192x14x14 8x384x14x14 8x768x14x14 1x96x56x56 8x96x56x56"),  # PoolFormer's
}

#: benchdnn's gnorm lists (shapes_ci, shapes_sd): groups, then the shape.
GROUP_ONEDNN = (
    "2:2x2x4 7:2x7x3x4 5:2x5x9x1x10 1:2x2x4 2:2x8x3x4 5:2x10x9x1x10 5:2x40x2x1x5 5:2x80x2x1x5 "
    "1:1x128x2x2 10:2x320x2x2 20:2x640x2x2 40:2x1280x2x2 40:2x1280x8x8 80:2x2560x8x8 80:2x2560x2x2 "
    "60:2x1920x2x2 30:2x960x2x2 16:1x512x2x2 8:1x256x2x2 8:1x256x4x4 4:1x128x2x2 32:2x320x2x2"
)

# ---- Weight norm: (out, in, kernel) and (out, in), along the first axis and the last -------------

WEIGHT = {
    "vocoder": "512x80x7 512x512x3 512x256x16 256x128x16 128x64x4 256x256x11 128x128x7 64x64x3 "
    "32x32x11 1x32x7 1024x1024x5 128x1x15 1024x4x41",
    "encoder": "768x48x128 1024x64x128 512x512x1 1024x512x4",
    "network": "64x64x3x3 256x256x3x3 512x512x3x3 256x64 1024x1024 4096x1024 4096x4096 1000x2048 "
    "32000x512",
}

#: What --quick keeps: a few of each kind, small and large.
QUICK = (
    "15 x 3", "1 x 197 x 768", "1 x 6272 x 256", "1 x 25088 x 128", "8 x 197 x 384", "1 x 1 x 4096",
    "1 x 96 x 56 x 56", "2 x 320 x 32 x 32, 32 groups", "2 x 2560 x 2 x 2, 80 groups",
    "2 x 1280 x 8 x 8, 32 groups", "2 x 960 x 48 x 48, 32 groups", "1 x 512 x 96 x 96, 32 groups",
    "1 x 128 x 256 x 256, 32 groups", "1 x 256 x 14 x 14, 32 groups", "2 x 7 x 3 x 4, 7 groups",
    "512 x 256 x 16", "4096 x 1024", "256 x 256 x 3 x 3, axis 3",
)  # fmt: skip


def norms() -> list[Norm]:
    """All of them; an image of a group norm in both layouts."""
    found = [
        Norm(kind, _sizes(word), model)  # type: ignore[arg-type]
        for kind, table in (("layer", LAYER), ("rms", RMS))
        for model, words in table.items()
        for word in words.split()
    ]
    for model, words in LAYER_IMAGES.items():
        found += [Norm("layer", _sizes(word), model, layout="nchw") for word in words.split()]
    groups = [
        (model, count, _sizes(word))
        for model, (count, words) in GROUP.items()
        for word in words.split()
    ]
    for word in GROUP_ONEDNN.split():
        number, _, shape = word.partition(":")
        groups.append(("onednn", int(number), _sizes(shape)))
    for model, count, sizes in groups:
        found.append(Norm("group", sizes, model, count, "nchw"))
        if len(sizes) > 3:
            found.append(Norm("group", sizes, model, count, "nhwc"))
    for model, words in WEIGHT.items():
        for sizes in map(_sizes, words.split()):
            found += [Norm("weight", sizes, model, axis=axis) for axis in (0, len(sizes) - 1)]
    return found
