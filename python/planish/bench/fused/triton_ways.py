"""The peers in Triton as ways: which tiles and how many warps they try, and what they allocate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton

import torch
from torch import Tensor

from ..gpu import replayed
from ..providers.base import UnsupportedError
from .triton_kernels import backward_kernel, forward_kernel, in_place_kernel
from .way import FP8, Prepared, Way
from .works import DROPOUT, STATIC, Data, Work

SEED = 20
QUANT = {"": 0, "row": 1, "tensor": 2, "128": 3}
#: A tile of several rows has about so many elements.
TILES = ((1024, 2), (2048, 4), (4096, 8))


def fastest(
    choices: Sequence[Any], queue: Callable[[Any, Data], object], sets: Sequence[Data]
) -> Any:
    """The choice whose calls take the least, over all sets of data; the only one without a try."""
    if len(choices) == 1:
        return choices[0]
    timed, rounds = {}, []
    for choice in choices:
        timed[choice] = replayed([lambda t=t, c=choice: queue(c, t) for t in sets])  # type: ignore[misc]
    for _ in range(3):
        rounds.append({choice: run(24) for choice, run in timed.items()})
    return min(choices, key=lambda choice: min(r[choice] for r in rounds))


def cores() -> int:
    """Multiprocessors of the GPU."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def flags(work: Work) -> dict[str, Any]:
    """The constants of both kernels."""
    return {
        "RMS": work.kind == "rms",
        "ADD": work.has_residual,
        "DROP": work.row == "dropout",
        "WEIGHT": work.row != "modulated",
        "BIAS": work.kind == "layer",  # or the shift of a modulation
        "MODULATE": work.row == "modulated",
        "GATE": work.row == "gated",
        "HEADS": work.heads,
    }


class _Rows(Way):
    """Both kernels, with tiles of the subclass's choice."""

    def tiles(self, work: Work, block: int) -> list[tuple[int, int]]:
        """(rows of a tile, warps) to try."""
        raise NotImplementedError

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """All works whose rows fit in a program."""
        block = max(128, triton.next_power_of_2(work.cols))
        tiles = self.tiles(work, block)
        if work.direction == "forward":
            return self._forward(work, sets, block, tiles)
        return self._backward(work, sets, block, tiles)

    @staticmethod
    def _parts(work: Work, data: Data) -> list[Data]:
        """Queries and keys one after the other; everything else as it is."""
        if work.row != "qk":
            return [data]
        parts = [{"x": data[n], "weight": data[f"{n}_weight"]} for n in ("q", "k")]
        if work.direction == "backward":
            for n, part in zip(("q", "k"), parts, strict=True):
                part["dy"] = data["d" + n]
        return parts

    @staticmethod
    def queue_forward(
        work: Work, t: Data, block: int, tile: tuple[int, int], save: bool
    ) -> dict[str, Tensor]:
        """One launch; allocates the results."""
        x, rows = t["x"], work.rows * work.heads
        out = torch.empty(x.shape, dtype=FP8 if work.quantised else x.dtype, device=x.device)
        total = torch.empty_like(x) if work.has_residual else None
        scales = None
        if work.quantised in ("row", "128"):
            count = 1 if work.quantised == "row" else -(-work.cols // 128)
            scales = torch.empty(rows, count, device=x.device)
        mean = torch.empty(rows, device=x.device) if save and work.kind == "layer" else None
        rstd = torch.empty(rows, device=x.device) if save else None
        constants = {**flags(work), "QUANT": QUANT[work.quantised], "SAVE": save}
        constants["BIAS"] = "bias" in t
        samples = x.shape[0] if work.row == "modulated" else 1
        forward_kernel[(triton.cdiv(rows, tile[0]),)](
            x, t.get("residual"), t.get("weight"), t.get("bias"), t.get("scale"), t.get("shift"),
            t.get("gate"), out, total, scales, mean, rstd,
            rows, work.cols, x.stride(0), rows // samples, work.eps, STATIC, DROPOUT, SEED,
            **constants, ROWS=tile[0], BLOCK=block, num_warps=tile[1],
        )  # fmt: skip
        found = {"q8" if work.quantised else "y": out, "sum": total, "scale": scales}
        found |= {"mean": mean, "rstd": rstd}
        if work.quantised == "tensor":
            found["scale"] = t["static"]
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _forward(
        self, work: Work, sets: Sequence[Data], block: int, tiles: list[tuple[int, int]]
    ) -> Prepared:
        # Training saves the statistics; what only inference has does not.
        save = work.group not in ("fp8", "decode")

        def queue(tile: tuple[int, int], data: Data) -> list[dict[str, Tensor]]:
            parts = self._parts(work, data)
            return [self.queue_forward(work, part, block, tile, save) for part in parts]

        tile = fastest(tiles, queue, sets)

        def outputs() -> dict[str, Tensor]:
            found = queue(tile, sets[0])
            if work.row == "qk":
                return {"q": found[0]["y"], "k": found[1]["y"]}
            return found[0]

        return Prepared([lambda t=t: queue(tile, t) for t in sets], outputs)  # type: ignore[misc]

    def _backward(
        self, work: Work, sets: Sequence[Data], block: int, tiles: list[tuple[int, int]]
    ) -> Prepared:
        saved: dict[int, list[dict[str, Tensor]]] = {}
        for data in sets:
            saved[id(data)] = [
                self.queue_forward(work, part, block, tiles[0], True)
                for part in self._parts(work, data)
            ]

        def queue(choice: tuple[tuple[int, int], int], data: Data) -> list[dict[str, Tensor]]:
            parts = zip(self._parts(work, data), saved[id(data)], strict=True)
            return [self.queue_backward(work, t, s, block, *choice) for t, s in parts]

        choices = [(tile, cores() * times) for tile in tiles[-2:] for times in (2, 8)]
        choice = fastest(choices, queue, sets)

        def outputs() -> dict[str, Tensor]:
            found = queue(choice, sets[0])
            if work.row == "qk":
                pairs = zip(("q", "k"), found, strict=True)
                return {f"d{n}{key}": f[of] for n, f in pairs
                        for key, of in (("", "dx"), ("_weight", "dweight"))}  # fmt: skip
            first = saved[id(sets[0])][0]
            return {**found[0], **({"sum": first["sum"]} if "sum" in first else {})}

        return Prepared([lambda t=t: queue(choice, t) for t in sets], outputs)  # type: ignore[misc]

    @staticmethod
    def queue_backward(
        work: Work, t: Data, saved: Data, block: int, tile: tuple[int, int], programs: int
    ) -> dict[str, Tensor]:
        """The launch, and torch's sum of the programs' parts."""
        x, rows = t["x"], work.rows * work.heads
        samples = x.shape[0] if work.row == "modulated" else 1
        tiles = triton.cdiv(rows // samples, tile[0])
        programs = max(1, min(programs // samples, tiles))
        steps = triton.cdiv(tiles, programs)
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dresidual = torch.empty_like(dx) if work.row == "dropout" else dx
        dgate = torch.empty_like(dx) if work.row == "gated" else None
        parts = torch.empty(2, samples, programs, work.cols, device=x.device)
        backward_kernel[(programs, samples)](
            t["dy"], saved.get("sum", x), t.get("weight"), t.get("scale"), t.get("gate"),
            t.get("dsum"), saved.get("mean"), saved["rstd"], dx, dresidual, dgate, parts[0],
            parts[1], rows // samples, steps, work.cols, x.stride(0), DROPOUT, SEED,
            **flags(work), ROWS=tile[0], BLOCK=block, num_warps=tile[1],
        )  # fmt: skip
        if work.kind == "layer":
            first, second = parts.sum(2).to(x.dtype).unbind()
        else:
            first, second = parts[0].sum(1).to(x.dtype), None
        found = {"dx": dx}
        if work.has_residual:
            found["dresidual"] = dresidual
        if dgate is not None:
            found["dgate"] = dgate
        if work.row == "modulated":
            assert second is not None
            return {**found, "dscale": first[:, None], "dshift": second[:, None]}
        found["dweight"] = first[0]
        if second is not None:
            found["dbias"] = second[0]
        return found


class OneRow(_Rows):
    """A program for each row; its backward keeps the sums of many rows."""

    name = "row-triton"
    what = "a program a row in Triton, as flash-attn's layer_norm_fn and Mamba's norms are"

    def tiles(self, work: Work, block: int) -> list[tuple[int, int]]:
        """4 to 32 elements for each thread."""
        warps = [w for w in (1, 2, 4, 8, 16, 32) if 8 <= block // (32 * w) <= 32]
        return [(1, w) for w in warps[-3:]] or [(1, 1)]


class Tiles(_Rows):
    """A program for several short rows."""

    name = "tile-triton"
    what = "a program for a tile of short rows in Triton, as quack's norms are"

    def tiles(self, work: Work, block: int) -> list[tuple[int, int]]:
        """Rows that are short enough to put several into a tile."""
        found = [(size // block, warps) for size, warps in TILES if size // block > 1]
        if not found:
            raise UnsupportedError("a row fills a tile")
        return found


class InPlace(Way):
    """residual += x, then x = norm(residual)."""

    name = "inplace-triton"
    what = "in place, as vLLM's and FlashInfer's fused_add_rms_norm are"

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """RMSNorm of a sum, forward."""
        if work.row != "add" or work.kind != "rms" or work.direction != "forward":
            raise UnsupportedError("in place there is the sum with RMSNorm only, forward")
        block = triton.next_power_of_2(work.cols)
        warps = [w for w in (1, 2, 4, 8, 16, 32) if 8 <= block // (32 * w) <= 32] or [1]
        # The sum grows with every replay, slowly; of x it is the norm that is left.
        own = [{n: t[n].clone() for n in ("x", "residual", "weight")} for t in sets]

        def queue(w: int, t: Data) -> None:
            in_place_kernel[(work.rows,)](
                t["x"], t["residual"], t["weight"], work.rows, work.cols, work.eps, BLOCK=block,
                num_warps=w,
            )  # fmt: skip

        best = fastest(warps[-3:], queue, own)

        def outputs() -> dict[str, Tensor]:
            fresh = {n: sets[0][n].clone() for n in ("x", "residual", "weight")}
            queue(best, fresh)
            return {"y": fresh["x"], "sum": fresh["residual"]}

        return Prepared([lambda t=t: queue(best, t) for t in own], outputs)  # type: ignore[misc]


def triton_ways() -> list[Way]:
    """Every peer written here."""
    return [OneRow(), Tiles(), InPlace()]
