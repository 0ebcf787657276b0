"""The sweeps: which cases each of them has, by name. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # case.py imports torch: the names of the sweeps are known without it
    from .case import Case, Direction, Kind

# Tensors of x's size that are alive at once while a case is measured, over all providers.
LIVE_TENSORS = 24

Shapes = Sequence[tuple[int, int]]

# Batch, channels, and height and width alike: of ConvNeXt, Swin, VAN and a diffusion UNet.
IMAGES = (
    (8, 128, 56),
    (8, 96, 56),
    (8, 256, 28),
    (2, 320, 64),
    (8, 512, 14),
    (8, 1024, 7),
    (4, 1200, 14),
)


@dataclass(frozen=True)
class Sweep:
    """A named list of shapes. ``quick`` is what --quick keeps of it."""

    name: str
    what: str
    shapes: Shapes
    quick: Shapes
    dtypes: tuple[str, ...]
    axis: Literal["cols", "rows", "work"] = "work"  # what its plot has on the x axis
    gpu_dtypes: tuple[str, ...] = ("f16",)
    gpu_shapes: Shapes = ()  # on a GPU, beside the others
    sides: Sequence[int] = ()  # where rows are the pixels of images: each shape's height and width

    def with_shapes(self, shapes: Shapes) -> Sweep:
        """The same of these rows, which are no images."""
        return replace(self, shapes=shapes, quick=shapes, gpu_shapes=(), sides=())


SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "table",
            "4096 rows of 1024 to 15872 elements: the classic table",
            [(4096, n) for n in range(1024, 15873, 512)],
            [(4096, n) for n in (1024, 2048, 4096)],
            ("f16",),
            "cols",
        ),
        Sweep(
            "rows",
            "row lengths and counts of transformers, from the cache and from memory",
            [
                (64, 1024),
                (512, 768),
                (4096, 768),
                (2048, 4096),
                (8192, 1024),
                (16384, 4096),
                (65536, 2048),
            ],
            [(64, 1024), (512, 768), (8192, 1024)],
            ("f32", "bf16"),
            gpu_dtypes=("bf16",),
            gpu_shapes=[(16384, 2880), (100352, 1000), (8192, 769)],
        ),
        Sweep(
            "small",
            "many short rows",
            [(401408, n) for n in (24, 40, 64, 96, 128, 200, 256)] + [(20000, 96)],
            [(401408, 24), (20000, 96)],
            ("f32", "bf16"),
            gpu_shapes=[(401408, 368), (401408, 512)],
        ),
        Sweep(
            "large",
            "few long rows",
            [(2048, 32768), (512, 131072), (256, 262144), (64, 802816)],
            [(128, 32768), (32, 131072)],
            ("f32",),
            gpu_dtypes=("bf16",),
        ),
        Sweep(
            "decode",
            "the few rows of a decoding step",
            [(m, n) for n in (1024, 4096, 8192) for m in (1, 4, 16, 64, 128)],
            [(1, 4096), (16, 4096), (128, 4096)],
            ("f32", "bf16"),
            gpu_dtypes=("bf16",),
        ),
        Sweep(
            "channels",
            "LayerNorm over the channels of NCHW images",
            [(n * side * side, c) for n, c, side in IMAGES],
            [(n * side * side, c) for n, c, side in IMAGES[:2]],
            ("f32", "bf16"),
            sides=[side for _, _, side in IMAGES],
        ),
    )
}


def fit(rows: int, cols: int, dtype: str, budget_bytes: float) -> int:
    """The most rows, halved from ``rows`` as often as needed, whose measurement stays within the
    budget of memory; at least 1."""
    from .case import DTYPE_BYTES

    while rows > 1 and rows * cols * DTYPE_BYTES[dtype] * LIVE_TENSORS > budget_bytes:
        rows //= 2
    return rows


def cases_of(
    sweep: Sweep,
    *,
    quick: bool,
    dtypes: Sequence[str] | None,
    kinds: Sequence[Kind],
    directions: Sequence[Direction],
    budget_bytes: float,
    device: str = "cpu",
) -> list[list[Case]]:
    """The cases of a sweep, grouped as its tables are: by kind, dtype and direction."""
    from .case import Case

    gpu = device != "cpu"
    shapes = sweep.quick if quick else [*sweep.shapes, *(sweep.gpu_shapes if gpu else ())]
    usual = sweep.gpu_dtypes if gpu else sweep.dtypes
    chosen = tuple(dtypes) if dtypes else (usual[:1] if quick else usual)
    sides = sweep.sides or [0] * len(shapes)

    def case(rows: int, cols: int, side: int, dtype: str, **rest: Any) -> Case:
        most = rows if side else fit(rows, cols, dtype, budget_bytes)
        image = (side, side) if side else None
        return Case(most, cols, dtype, device=device, image=image, **rest)

    return [
        [
            case(rows, cols, side, dtype, direction=direction, kind=kind)
            for (rows, cols), side in zip(shapes, sides, strict=False)
        ]
        for kind in kinds
        for dtype in chosen
        for direction in directions
    ]


RATIOS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)
SCALES = (1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30)


def accuracy_cases(
    *,
    quick: bool,
    dtypes: Sequence[str] | None,
    kinds: Sequence[Kind],
    directions: Sequence[Direction],
    device: str = "cpu",
) -> list[Case]:
    """By mean / std, and (f32, eps 0) by scale. RMSNorm has no mean to cancel, so it has scales
    only."""
    from .case import Case

    rows, cols = (64, 1024) if quick else (256, 4096)
    ratios = RATIOS[::2] + RATIOS[-1:] if quick else RATIOS
    scales = SCALES[::3] if quick else SCALES
    cases = []
    for kind in kinds:
        for dtype in dtypes or (("f32",) if quick else ("f32", "bf16")):
            for direction in directions:
                base = Case(rows, cols, dtype, direction, kind, device=device)
                if kind == "layer":
                    cases += [replace(base, mean=ratio) for ratio in ratios]
                if dtype == "f32":
                    cases += [replace(base, scale=scale, eps=0.0) for scale in scales]
    return cases
