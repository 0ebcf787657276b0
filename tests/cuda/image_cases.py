"""Cases of norms over channels and groups of images on a GPU, and of strips of them."""

from __future__ import annotations

import itertools

from axes_cases import AnyCase
from gpu_shim import BACKWARD, FORWARD, LAYER, RELU, RMS, SILU


def image_cases(quick: bool) -> list[AnyCase]:
    """Norms over channels (NCHW; the output NCHW or NHWC) and over groups (NCHW and NHWC)."""
    out = []
    pixels = [1, 2, 49, 64, 196, 225, 400, 784, 3025, 3136, 4096]
    channels = [2, 24, 33, 96, 100, 128, 257, 320, 512, 1000, 1200, 2048, 4096]
    pairs = [(c, hw) for c in channels for hw in pixels if hw > 1 and c * hw < 1400000]
    if quick:
        pairs = [(24, 49), (96, 196), (33, 225), (520, 49), (128, 320), (320, 64), (2, 1025)]
    for i, (c, hw) in enumerate(pairs):
        images = 1 if i % 5 == 4 else 0 if i == 7 else 3 if c * hw > 100000 else 7
        for direction in (FORWARD, BACKWARD):
            dtype = ("f16", "f32", "bf16")[(i + direction) % 3]
            kind = RMS if i % 4 == 3 else LAYER
            w = {"weight": "f32", "bias": "f32", "dweight": "f32", "dbias": "f32"} if i % 2 else {}
            last = [0, 2, 1] if direction == FORWARD and i % 3 < 2 else None
            # What no block holds is for the general kernels; so is what is empty.
            kernel = "cuda channels" if images and c * hw < 300000 else ""
            out.append(
                AnyCase(
                    direction,
                    kind,
                    [images, c, hw],
                    2,
                    2,
                    {"x": dtype} | w,
                    out_order=last,
                    skew=i % 7 if i % 2 else 0,
                    kernel=kernel,
                )
            )
    # Tiles that go on in the next image, and lines that the blocks of a cluster share.
    for c, hw in [] if quick else [(256, 784), (512, 784), (1024, 400), (2048, 336)]:
        for direction, dtype in itertools.product((FORWARD, BACKWARD), ("f16", "bf16", "f32")):
            out.append(
                AnyCase(direction, LAYER, [5, c, hw], 2, 2, {"x": dtype}, kernel="cuda channels")
            )
    # Lines of several channels that one block has all of.
    for c, hw in [] if quick else [(384, 49), (256, 25), (128, 81), (64, 121), (512, 9), (128, 98)]:
        for dtype in ("f16", "bf16", "f32"):
            out.append(
                AnyCase(BACKWARD, LAYER, [300, c, hw], 2, 2, {"x": dtype}, kernel="cuda channels")
            )
    groups = [
        (7, 32, 8, 196), (5, 1, 24, 49), (3, 24, 1, 3136), (2, 32, 10, 4096), (3, 32, 8, 3136),
        (2, 1, 256, 784), (9, 3, 11, 225), (2, 32, 40, 1024), (3, 2, 33, 1), (1, 32, 64, 64),
        (4, 7, 5, 25), (2, 4, 8, 12544), (1, 1, 4096, 49), (2, 1000, 1, 49), (0, 4, 8, 64),
        (3, 3, 1, 65536), (64, 16, 2, 9), (41, 32, 8, 49), (33, 256, 1, 196), (5, 96, 1, 3136),
        (9, 37, 8, 49), (7, 32, 3, 784), (6, 20, 5, 196), (5, 64, 2, 784), (300, 512, 1, 4),
        (7, 32, 10, 3025), (5, 8, 125, 225), (300, 32, 8, 49), (5, 256, 1, 196), (6, 9, 7, 98),
    ]  # fmt: skip
    for i, (images, g, d, hw) in enumerate(groups[::3] if quick else groups):
        for direction in (FORWARD, BACKWARD):
            for last, activation in itertools.product(
                (False, True), (0, RELU if i % 4 == 1 else SILU)
            ):
                dtype = ("f16", "f32", "bf16")[(i + direction + last) % 3]
                w = {"weight": "f32", "dweight": "f32", "bias": "f32", "dbias": "f32"}
                out.append(
                    AnyCase(
                        direction,
                        RMS if i % 4 == 3 else LAYER,
                        [images, g, d, hw],
                        12,
                        6,
                        {"x": dtype} | (w if i % 2 else {}),
                        [0, 3, 1, 2] if last else None,
                        skew=i % 5 if i % 2 else 0,
                        activation=activation,
                        kernel="cuda groups" if images and g * d * hw < 1 << 20 and hw > 1 else "",
                    )
                )
    return out if quick else out + strip_cases()


def strip(
    pixels: int, tile: int, width: int, blocks: int, cooperative: bool, warps: int
) -> dict[str, int]:
    """The constants of strips of `tile` channels over blocks of a cluster or anywhere."""
    lanes = tile // width
    return {
        "COOPERATING_BLOCKS": blocks if cooperative else 1,
        "CLUSTER": 1 if cooperative else blocks,
        "TILE_CHANNELS": tile,
        "LANES": lanes,
        "PLANES": 32 // lanes,
        "PIECE": -(-pixels // blocks),
        "WARPS": warps,
        "MIN_BLOCKS": 1,
    }


def strip_cases() -> list[AnyCase]:
    """Channels-last groups in one read, over blocks of a cluster and over blocks anywhere: whole
    and part chunks of a group, a cut last strip, several strips for each group of blocks. And as
    planned: many images over blocks anywhere, of which a slice is in a cluster."""
    out = []
    for images, g, d, hw in ((33, 32, 2, 12544), (64, 32, 8, 3136), (9, 32, 10, 4096)):
        for direction in (FORWARD, BACKWARD):
            for dtype in ("f16", "f32", "bf16"):
                out.append(
                    AnyCase(
                        direction,
                        LAYER,
                        [images, g, d, hw],
                        12,
                        6,
                        {"x": dtype, "dweight": "f32", "dbias": "f32"},
                        [0, 3, 1, 2],
                        kernel="cuda groups",
                    )
                )
    for images, g, d, hw, tile, blocks in (
        (40, 32, 2, 12544, 64, 16), (3, 32, 2, 12544, 64, 33), (40, 32, 8, 3136, 64, 8),
        (9, 32, 10, 4096, 80, 16), (5, 32, 40, 1024, 80, 4), (70, 6, 8, 901, 32, 3),
        (2, 3, 40, 700, 80, 2),
    ):  # fmt: skip
        for direction in (FORWARD, BACKWARD):
            for cooperative in (False, True):
                for t, dtype in enumerate(("f16", "f32", "bf16")):
                    if not cooperative and blocks not in (2, 4, 8, 16):
                        continue
                    # dbias of 40 images, whose dy have a mean of 0.3, is beyond f16.
                    w = {"weight": "f32", "dweight": "f32", "bias": "f32", "dbias": "f32"}
                    width, part = (4, 2) if dtype == "f32" else (8, 1)
                    constants = strip(hw, tile // part, width, blocks, cooperative, 12)
                    if tile // part % d or tile // part % width:
                        continue
                    out.append(
                        AnyCase(
                            direction,
                            RMS if t == 2 and images == 3 else LAYER,
                            [images, g, d, hw],
                            12,
                            6,
                            {"x": dtype} | (w if t == 0 and (blocks == 8 or images == 40) else {}),
                            [0, 3, 1, 2],
                            kernel="cuda groups",
                            **constants,
                        )
                    )
    return out


def large_image_cases() -> list[AnyCase]:
    """Groups of few large images: channels last over all of the device, one strip at a time or
    several, all of it held or not, strips that are cut, chunks of 8 bytes and less, a slice of five
    images; those whose groups or channels are not for that; stored by channel."""
    shapes = [
        (1, 32, 4, 262144), (1, 32, 8, 65536), (2, 32, 10, 16384), (4, 8, 64, 9216),
        (4, 32, 1, 262144), (3, 9, 4, 200000), (1, 24, 1, 300007), (2, 3, 44, 100003),
        (5, 16, 2, 150001), (1, 1, 512, 40000), (1, 3, 11, 262144), (1, 16, 40, 16411),
        (2, 3, 1, 65600),
    ]  # fmt: skip
    out = []
    for i, (images, g, d, hw) in enumerate(shapes):
        for direction in (FORWARD, BACKWARD):
            for last, activation in itertools.product((True, False), (0, SILU)):
                # One image of one channel a group is a batch norm's, channels last.
                named = direction == BACKWARD and not (last and (images, d) == (1, 1))
                if not last and activation and direction == FORWARD:
                    continue
                for dtype in ("f16", "bf16", "f32")[: 2 if activation else 3]:
                    w = dict.fromkeys(("weight", "bias", "dweight", "dbias"), "f32")
                    out.append(
                        AnyCase(
                            direction,
                            RMS if i % 5 == 3 and dtype == "bf16" else LAYER,
                            [images, g, d, hw],
                            12,
                            6,
                            {"x": dtype} | (w if i % 2 or dtype == "f16" else {}),
                            [0, 3, 1, 2] if last else None,
                            skew=i % 5 if i % 3 == 2 else 0,
                            activation=activation,
                            kernel="cuda groups" if named else "",
                        )
                    )
    return out
