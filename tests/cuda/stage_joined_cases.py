"""Backwards of images whose kernels add dsum where they make dx: that, and the bits of two steps.

Where dsum lies otherwise than dx, a kernel of its own adds it behind those of the same norm, whose
dx then waits in memory with all its digits. Both ways have to give the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from c_api import BACKWARD, LAYER, RMS, SILU, Library
from stage_backward import OUTPUTS, BackwardCase
from stage_reference import TORCH, Guarded, differing

NORM = ("weight", "dx", "dweight", "dbias", "dsum")
RMSN = ("weight", "dx", "dweight", "dsum")


@dataclasses.dataclass
class JoinedCase(BackwardCase):
    """A backward whose kernels add dsum to dx."""

    kernel: ClassVar[str] = "with dsum"
    cooperative: bool = False  # the emulated device has such launches

    def traits(self) -> set[str]:
        """Sizes and order are there for their own way through the kernels."""
        return super().traits() | {f"joined {self.shape} {self.order}"}

    def apart(self) -> ApartCase:
        """The same, whose dsum does not lie as dx does."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return ApartCase(**fields | {"alias": {}})

    def write(self, library: Library) -> None:
        """Both ways."""
        super().write(library)
        other = self.apart()
        library.run(other.op(), BACKWARD, other.place(library.device)[0])

    def check(self, library: Library) -> list[str]:
        """As for every case, and that the bits of both ways are the same."""
        wrong = super().check(library)
        given = self.inputs()
        found = []
        for case in (self, self.apart()):
            placed, _ = case.place(library.device, given)
            library.run(case.op(), BACKWARD, placed)
            found.append({r: placed[r].cpu() for r in self.has if r in OUTPUTS})
        one, two = found
        return wrong + [f"{r}: other bits in two steps" for r in one if differing(one[r], two[r])]


class ApartCase(JoinedCase):
    """A backward behind which dsum is added: there is something between its rows."""

    kernel: ClassVar[str] = "sum behind"

    def buffer(self, role: str, device: str) -> Guarded:
        """Memory of a tensor."""
        if role != "dsum":
            return super().buffer(role, device)
        return Guarded(self.shape, TORCH[self.type_of(role)], device, 0, 3, ())


def joined_cases() -> Iterator[JoinedCase]:
    """Groups in rows, in a cluster, in pieces, in tiles and in strips; channels."""
    groups: dict[str, Any] = {"reduce": (2, 3), "affine": (1, 2)}
    silu: dict[str, Any] = {"activation": SILU, "types": {"mean": "f64", "rstd": "f64"}}
    last = (0, 3, 1, 2)
    has = (*NORM, "bias")
    for dtype, order in itertools.product(("bf16", "f16", "f32"), (None, last)):
        yield JoinedCase((2, 4, 6, 64), NORM, **groups, order=order, dtype=dtype)
        yield JoinedCase((2, 3, 5, 49), has, **groups, order=order, dtype=dtype, **silu)
        yield JoinedCase((2, 2, 8, 136), has, **groups, order=order, dtype=dtype, **silu)
    for dtype in ("bf16", "f16", "f32"):
        # A cluster for a row; in 16 bits dsum comes two chunks at a time.
        c = JoinedCase((1, 2, 16, 1600), has, **groups, dtype=dtype, **silu)
        yield c
        yield dataclasses.replace(c, shape=(1, 2, 16, 3136), order=last)
    # Too long for a block: read twice.
    for order in (None, last):
        yield JoinedCase((1, 1, 64, 3136), has, **groups, order=order, dtype="f16", arch=80, **silu)
    # Over blocks anywhere.
    yield JoinedCase(
        (5, 8, 10, 4096), has, **groups, order=last, dtype="bf16", multiprocessors=32, **silu
    )
    c = JoinedCase((2, 4, 6, 64), NORM, **groups, dtype="bf16")
    yield dataclasses.replace(c, skew=1)
    yield dataclasses.replace(c, skew=1, order=last)
    yield dataclasses.replace(c, alias={"dx": "dsum"})
    yield dataclasses.replace(c, alias={"dx": "dy"}, order=last)
    yield dataclasses.replace(c, types={"dsum": "f32"})
    yield dataclasses.replace(c, types={"dsum": "f32"}, order=last, kind=RMS, has=RMSN)
    yield dataclasses.replace(c, types={"dx": "f32"})
    yield dataclasses.replace(c, has=("weight", "dx", "dsum"), dtype="f16", shape=(3, 2, 8, 25))
    yield JoinedCase((4, 16, 64), NORM, reduce=(2,), affine=(1,), dtype="bf16")
    yield JoinedCase((4, 16, 65), NORM, reduce=(2,), affine=(1,), dtype="f32")
    # Channels: tiles, those that go on in the next image, shifted ones, whole images, such of lines
    # of several channels, and such that leave through shared memory.
    sizes = ((24, 256), (136, 272), (24, 1025), (24, 40), (64, 49), (33, 49))
    for i, (channels, pixels) in enumerate(sizes):
        for dtype in ("bf16", "f16", "f32"):
            kind, names = (RMS, RMSN) if i == 3 else (LAYER, NORM)
            yield JoinedCase((3, channels, pixels), names, reduce=(1,), kind=kind, dtype=dtype)
    c = JoinedCase((3, 96, 196), has, reduce=(1,), dtype="f16", **silu)
    yield c
    yield dataclasses.replace(c, dtype="bf16", types={"mean": "f64", "dx": "f32"})
    yield dataclasses.replace(c, shape=(3, 1200, 49), dtype="bf16", multiprocessors=16)
    yield dataclasses.replace(
        c, shape=(3, 64, 49), dtype="f32", types={"mean": "f64", "dx": "bf16"}
    )
    yield dataclasses.replace(c, shape=(3, 24, 40), dtype="bf16", skew=1)
    yield dataclasses.replace(c, shape=(3, 24, 40), dtype="bf16", alias={"dx": "dsum"})
    # Groups by channel over blocks anywhere.
    c = JoinedCase((3, 4, 1, 60000), has, **groups, dtype="bf16", cooperative=True, **silu)
    c.multiprocessors = 6
    yield c
    yield dataclasses.replace(c, shape=(2, 3, 2, 20000), dtype="f32", multiprocessors=8)
