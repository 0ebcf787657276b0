"""SyncBatchNorm's operators as src/torch/sync_batch.c and sync_backward.c make them of passes: the
same passes over the same tensors, as a case for the emulation of a GPU. The quotients between them
are torch's."""

from __future__ import annotations

import dataclasses
import itertools

from batch_stages import TYPES, copied
from c_api import LAYER, RMS, Library, axes, norm

import torch

BACKWARD, STATISTICS, APPLY = 1, 3, 4
EPS = 1e-5
#: Of a result that is rounded once, and of a sum: shares of the largest value.
ROOM = {"f16": (1e-3, 4e-6), "bf16": (8e-3, 4e-6), "f32": (1e-6, 4e-6)}
CHANNELS, ONE_SAMPLE = (0, 2), (0,)
Tensor = torch.Tensor


def op(kind: int, reduced: tuple[int, ...], eps: float = 0.0) -> object:
    return norm(kind=kind, reduce_axes=axes(reduced), affine_axes=axes((1,)), eps=eps)


@dataclasses.dataclass
class SyncCase:
    """All operators for x (images, channels, pixels), one of several parts of a batch."""

    sizes: tuple[int, int, int]
    last: bool
    dtype: str
    weighted: bool
    arch: int = 90
    multiprocessors: int = 4

    def name(self) -> str:
        layout = "last" if self.last else "first"
        weights = "weight" if self.weighted else "no weight"
        return f"sync {self.sizes} channels {layout} {self.dtype} {weights} sm_{self.arch}"

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(3)
        n, c, hw = self.sizes
        shape = (n, hw, c) if self.last else (n, c, hw)
        both = [(torch.randn(shape, generator=g) + 0.3).to(TYPES[self.dtype]) for _ in range(2)]
        self.x, self.dy = (t.transpose(1, 2) if self.last else t for t in both)
        vectors = torch.randn(6, c, generator=g)
        self.weight, self.bias, self.mean = vectors[0], vectors[1], vectors[2] / 8
        self.rstd, self.sums = vectors[3].square() + 0.5, vectors[4:]
        self.count = 2 * n * hw + 5

    def parameters(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias} if self.weighted else {}

    def statistics(self, library: Library) -> dict[str, Tensor]:
        n = self.x.numel() // self.sizes[1]
        mean, m2 = torch.full_like(self.mean, torch.nan), torch.empty_like(self.mean).double()
        library.run(op(LAYER, CHANNELS, EPS), STATISTICS, {"x": self.x, "mean": mean, "m2": m2})
        roots, rstd = torch.full_like(mean, n**0.5)[None], torch.full_like(mean, torch.nan)
        moments = {"running_mean": m2, "running_var": m2}
        given = {"x": roots, "dy": roots, **moments, "dx": rstd[None]}
        library.run(op(LAYER, ONE_SAMPLE, n * EPS), BACKWARD, given)
        return {"mean": mean, "rstd": rstd}

    def apply(self, library: Library) -> dict[str, Tensor]:
        y = copied(self.x).fill_(torch.nan)
        given = {"x": self.x, "mean": self.mean, "rstd": self.rstd, "y": y}
        library.run(op(LAYER, CHANNELS), APPLY, given | self.parameters())
        return {"y": y}

    def reduce(self, library: Library) -> dict[str, Tensor]:
        dweight, dbias = (torch.full_like(self.mean, torch.nan) for _ in range(2))
        given = {"x": self.x, "dy": self.dy, "mean": self.mean, "rstd": self.rstd}
        library.run(op(LAYER, CHANNELS), BACKWARD, given | {"dweight": dweight, "dbias": dbias})
        return {"dweight": dweight, "dbias": dbias}

    def gradient(self, library: Library) -> dict[str, Tensor]:
        def multiply(x: Tensor, factor: Tensor, weight: Tensor | None) -> Tensor:
            y = torch.full_like(x, torch.nan)
            more = {} if weight is None else {"weight": weight}
            given = {"x": x[None], "rstd": factor, "y": y[None]} | more
            library.run(op(RMS, ONE_SAMPLE), APPLY, given)
            return y

        sum_dy, sum_xmu = self.sums
        if self.weighted:
            scale = self.weight / self.count
            c1, c2 = multiply(sum_dy, scale, None), multiply(sum_xmu, self.rstd, scale)
        else:
            c1, c2 = sum_dy / self.count, multiply(sum_xmu / self.count, self.rstd, None)
        dx = copied(self.x).fill_(torch.nan)
        given = {"x": self.x, "dy": self.dy, "mean": self.mean, "rstd": self.rstd}
        given |= {"weight": self.weight} if self.weighted else {}
        library.run(op(LAYER, CHANNELS), BACKWARD, given | {"c1": c1, "c2": c2, "dx": dx})
        return {"dx": dx}

    def reference(self) -> dict[str, Tensor]:
        def along(t: Tensor) -> Tensor:
            return t.double()[:, None]

        x, dy = self.x.double(), self.dy.double()
        mean, rstd, w, b = map(along, (self.mean, self.rstd, self.weight, self.bias))
        if not self.weighted:
            w, b = torch.ones_like(w), torch.zeros_like(b)
        xhat = (x - mean) * rstd
        of_dy, of_xhat = (along(s) / self.count for s in self.sums)
        return {
            "mean": x.mean(CHANNELS),
            "rstd": (x.var(CHANNELS, correction=0) + EPS).rsqrt(),
            "y": xhat * w + b,
            "dweight": (dy * xhat).sum(CHANNELS),
            "dbias": dy.sum(CHANNELS),
            "dx": rstd * w * (dy - of_dy - xhat * rstd * of_xhat),
        }

    def run(self, library: Library) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part in (self.statistics, self.apply, self.reduce, self.gradient):
            found |= part(library)
        return found

    def write(self, library: Library) -> None:
        """Runs it and looks at nothing."""
        self.run(library)

    def check(self, library: Library) -> list[str]:
        """What is wrong with it on this library."""
        found, wrong = self.run(library), []
        for role, right in self.reference().items():
            room = ROOM[self.dtype][right.dim() == 1] * float(right.abs().max())
            off = float((found[role].double() - right).abs().max())
            if not off <= room:
                wrong.append(f"{role}: {off:.2g} of {room:.2g}")
        return wrong


def sync_cases() -> list[SyncCase]:
    """Both layouts, rows that a block holds, pieces and slabs, channels of any number."""
    sizes = [(5, 16, 48), (3, 9, 49), (4, 40, 600), (40, 16, 49), (7, 36, 1)]
    works = itertools.product(sizes, (False, True))
    dtypes = ("bf16", "f32", "f16")
    return [
        SyncCase(of, last, dtypes[i % 3], i % 4 != 3, 80 if i % 5 == 4 else 90)
        for i, (of, last) in enumerate(works)
    ]
