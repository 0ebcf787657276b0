"""The kernels of a GPU as cases: one or two of every family, each with what its plan has to say.

Sizes are those that a GPU is busy with, some 25 million elements. What is wanted of a description
is the family and no more of its geometry than tells it from others; it is that of compute
capability 9.0 (tests/bench/test_check.py holds the plans of an H100 against it). f64 rows are
copies of a few, which are held against long double.
"""

from __future__ import annotations

from dataclasses import replace

from .case import Case, Direction, Stage

#: Lanes of rows within a warp; a group of blocks; a cluster.
_WARP = r"(?:[12]?\d|3[012]) lanes"
_GROUP = r"group (?!1\b)\d+"
_CLUSTER = r"cluster (?!1\b)\d+"
_TO_LAST = (0, 2, 3, 1)
_GROUPS_LAST = (0, 3, 4, 1, 2)


def _rows(
    words: str, dtype: str, direction: Direction, rows: int, cols: int, geometry: str = "",
    **more: object,
) -> Case:  # fmt: skip
    named = (*words.split(), str(more.get("kind", "layer")), direction)
    case = Case(
        "rows",
        named,
        dtype,
        (rows, cols),
        (1,),
        (1,),
        direction,
        rf"^cuda rows {direction} {rows}x{cols}: {geometry}",
        device="cuda",
    )
    return replace(case, **more)  # type: ignore[arg-type]


def _copies(case: Case, rows: int) -> Case:
    """Of so many rows, and as often as the case's own shape says."""
    shape = (rows * case.shape[0], *case.shape[1:])
    wanted = case.wanted.replace(f"{case.shape[0]}x", f"{shape[0]}x")
    return replace(case, shape=shape, repeats=rows, wanted=wanted)


def _row_cases() -> list[Case]:
    blocks = r"(?:\d{2,4}) lanes .* cluster 1, group 1"
    return [
        _rows("within-warp", "f16", "forward", 131072, 200, _WARP),
        _rows("within-warp", "f16", "backward", 131072, 200, _WARP),
        _rows("within-warp", "f16", "forward", 32768, 1024, _WARP),
        _rows("within-warp", "f32", "forward", 131072, 128, _WARP),
        _rows("tiles", "f16", "forward", 1 << 20, 24, "1 lanes x 3 chunks of 8, 64 rows"),
        _rows("tiles", "bf16", "backward", 1 << 19, 65, "2 lanes x 33 chunks of 1, "),
        _rows("runs", "f16", "forward", 32768, 1001, "32 lanes x 32 chunks of 1, "),
        _rows("runs", "bf16", "backward", 32768, 1001, "32 lanes x 32 chunks of 1, "),
        _rows("blocks", "f16", "forward", 4096, 8192, blocks),
        _rows("blocks", "bf16", "forward", 8192, 4096, blocks, kind="rms"),
        _rows("blocks", "f32", "forward", 4096, 8192, blocks),
        _rows("blocks", "f16", "backward", 32768, 1024, blocks),
        _rows("blocks", "f32", "backward", 8192, 4096, blocks),
        _rows("blocks f32-weights", "bf16", "forward", 8192, 4096, blocks, weight_dtype="f32"),
        _rows("cluster", "f16", "backward", 4096, 8192, f".* {_CLUSTER}"),
        _rows("cluster", "bf16", "backward", 4096, 8192, f".* {_CLUSTER}", kind="rms"),
        _copies(_rows("cluster", "f64", "forward", 16, 16384, f".* {_CLUSTER}"), 32),
        _rows("cooperative", "f16", "forward", 512, 65536, f".* {_GROUP}"),
        _rows("cooperative", "f32", "forward", 512, 32768, f".* {_GROUP}"),
        _rows("cooperative", "f16", "backward", 128, 262144, f".* {_GROUP}"),
        _rows("parts", "f32", "statistics", 8192, 4096, blocks),
        _rows("parts", "bf16", "apply", 32768, 1024, _WARP),
        replace(
            _copies(_rows("two-reads", "f64", "backward", 8, 65536), 16),
            wanted=r"^cuda rows backward \(two reads\) 128x65536: ",
        ),
    ]


def _channels(
    words: str, dtype: str, direction: Direction, shape: tuple[int, ...], geometry: str = ""
) -> Case:
    return Case(
        "channels",
        (*words.split(), "layer", direction),
        dtype,
        shape,
        (1,),
        (1,),
        direction,
        rf"^cuda channels {direction} .*{geometry}",
        result_order=_TO_LAST if "to-last" in words else (),
        device="cuda",
    )


def _groups(
    kernel: str, words: str, dtype: str, direction: Direction, shape: tuple[int, ...], geometry: str
) -> Case:
    """``shape``: images, groups, channels of a group, height, width. By pixel if ``strips``."""
    return Case(
        kernel,
        (*words.split(), "layer", direction),
        dtype,
        shape,
        (2, 3, 4),
        (1, 2),
        direction,
        rf"^cuda groups {direction} .*{geometry}",
        activation="silu" if "silu" in words else "",
        order=_GROUPS_LAST if kernel == "strips" else (),
        device="cuda",
    )


def _image_cases() -> list[Case]:
    large, small = (64, 96, 56, 56), (64, 384, 28, 28)
    usual, tiny, huge = (64, 32, 8, 56, 56), (2048, 32, 8, 7, 7), (4, 32, 16, 256, 256)
    vast, whole = (1, 32, 2, 1024, 1024), (1, 2, 16, 1024, 1024)
    one, two, last = "one read", "two reads", "channels last: "
    return [
        _channels("", "f16", "forward", large),
        _channels("", "f16", "backward", large),
        _channels("", "f32", "forward", large),
        _channels("cluster", "bf16", "forward", (512, 384, 14, 14), _CLUSTER),
        _channels("cluster", "bf16", "backward", (512, 384, 14, 14), _CLUSTER),
        _channels("to-last", "f16", "forward", small, "to channels last"),
        _groups("groups", "", "f16", "forward", usual, r"\d+ lanes x \d+ chunks"),
        _groups("groups", "silu", "bf16", "forward", usual, r"\d+ lanes x \d+ chunks"),
        _groups("groups", "", "f16", "backward", usual, one),
        _groups("groups", "silu", "bf16", "backward", usual, one),
        _groups("groups", "cooperative", "f16", "forward", huge, _GROUP),
        _groups("groups", "cooperative", "f16", "backward", huge, one),
        _groups("groups", "two-reads", "f16", "backward", whole, two),
        _groups("tiles", "", "f16", "forward", tiny, "tiles"),
        _groups("tiles", "silu", "bf16", "forward", tiny, "tiles"),
        _groups("tiles", "", "f16", "backward", tiny, "tiles"),
        _groups("strips", "", "f16", "forward", usual, last + one),
        _groups("strips", "silu", "bf16", "forward", usual, last + one),
        _groups("strips", "", "f16", "backward", usual, last + one),
        _groups("strips", "large", "f16", "forward", huge, last + one),
        _groups("strips", "large", "f16", "backward", huge, last + one),
        _groups("strips", "two-reads", "f16", "forward", vast, last + two),
        _groups("strips", "two-reads", "f16", "backward", vast, last + two),
    ]


def _stage_cases() -> list[Case]:
    def staged(stage: Stage, dtype: str, direction: Direction, cols: int) -> Case:
        case = _rows(stage, dtype, direction, (1 << 25) // cols, cols, stage=stage)
        return replace(case, kernel="stages", wanted=case.wanted.replace("rows", "stages"))

    return [
        staged("residual", "bf16", "forward", 1024),
        staged("residual", "bf16", "forward", 8192),
        staged("residual", "f32", "forward", 4096),
        replace(staged("residual", "bf16", "backward", 4096), kernel="rows", wanted="^cuda rows"),
        staged("modulated", "bf16", "forward", 4096),
        staged("gated", "bf16", "forward", 4096),
    ]


def _general(words: str, case: Case) -> Case:
    """What has no kernels of its own: strides, passes, layouts that differ."""
    passes = {"from-y": "backward from y"}
    wanted = f"^cuda general {passes.get(case.direction, case.direction)} "
    named = (*words.split(), "layer", case.direction)
    return replace(case, kernel="general", words=named, wanted=wanted)


def _general_cases() -> list[Case]:
    small = (64, 96, 28, 28)
    return [
        _general("strided", _rows("", "f16", "forward", 4096, 1024, step=2)),
        _general("strided", _rows("", "f16", "backward", 4096, 1024, step=2)),
        _general("", _rows("", "f16", "from-y", 4096, 1024)),
        _general("strided", _rows("", "f32", "statistics", 4096, 1024, step=2)),
        _general("strided", _rows("", "f16", "apply", 4096, 1024, step=2)),
        _general("to-last", _channels("to-last", "f16", "backward", small)),
    ]


def cases() -> list[Case]:
    """All of them, a kernel's together."""
    return [*_row_cases(), *_stage_cases(), *_image_cases(), *_general_cases()]
