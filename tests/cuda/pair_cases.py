"""Norms of queries and keys as pairs: bits and launches against those of each alone.

What each alone gives is held against double elsewhere (stage_forward.py, emulation/table_levels.c).
A case runs on whatever library it is handed: that of a GPU or its emulation, which counts launches.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from c_api import BACKWARD, FORWARD, LAYER, RMS, SILU, Library, axes, norm, structs
from stage_reference import FILL, TORCH

import torch

Tensors = dict[str, torch.Tensor]

#: What stands around the outputs of a pair, and of each alone.
_HEADS, _COLS = 2, 3


@dataclasses.dataclass(frozen=True)
class PairCase:
    """Queries (batch, tokens, heads, columns), and keys with heads of their own."""

    batch: int = 2
    tokens: int = 9
    heads: tuple[int, int] = (8, 2)
    cols: int = 128
    x: str = "bf16"
    weight: str = "x"  # a dtype, as x; empty: absent
    bias: bool = False
    own: bool = False  # a weight for each head
    kind: int = RMS
    backward: bool = False
    #: Parts of one packed tensor, with values behind; dense; or with the heads before the tokens.
    layout: str = "packed"
    wanted: tuple[str, ...] = ("dx", "dweight", "dbias")  # of a backward
    activation: int = 0
    offset: int = 0
    #: Whether both fit one launch.
    together: bool = True
    multiprocessors: int = 4
    arch: int = 90
    seed: int = 1
    passes: ClassVar[tuple[int, int]] = (FORWARD, BACKWARD)

    @property
    def passed(self) -> int:
        """Of the C API."""
        return self.passes[self.backward]

    def name(self) -> str:
        """What tells it from others."""
        told = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if f.name not in ("seed", "backward") and getattr(self, f.name) != f.default
        ]
        return f"pair {'backward' if self.backward else 'forward'} {' '.join(told)}"

    def op(self) -> structs.Norm:
        """The operator of both."""
        return norm(
            kind=self.kind,
            reduce_axes=axes((3,)),
            affine_axes=axes((1 if self.layout == "first" else 2, 3) if self.own else (3,)),
            eps=1e-5,
            weight_offset=self.offset,
            activation=self.activation,
        )

    # ---- Tensors --------------------------------------------------------------------------------

    def parts(self, whole: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys: parts of a packed tensor, or two."""
        queries, keys = self.heads
        if self.layout == "dense":
            sizes = [(self.batch, self.tokens, heads, self.cols) for heads in self.heads]
            made = [torch.empty(size, dtype=TORCH[self.x]) for size in sizes]
            return made[0], made[1]
        assert whole is not None
        q, k = whole[:, :, :queries], whole[:, :, queries : queries + keys]
        if self.layout == "first":
            return q.transpose(1, 2), k.transpose(1, 2)
        return q, k

    def packed(self) -> torch.Tensor | None:
        """Room for queries, keys and values, full of NaN."""
        if self.layout == "dense":
            return None
        heads = sum(self.heads) + self.heads[1]
        return filled((self.batch, self.tokens, heads, self.cols), TORCH[self.x])

    def inputs(self, device: str) -> tuple[Tensors, Tensors]:
        """What both runs read; statistics are near those of x."""
        generator = torch.Generator().manual_seed(self.seed)
        whole = self.packed()
        found: list[Tensors] = []
        for heads, x in zip(self.heads, self.parts(whole), strict=True):
            values = torch.randn(x.shape, generator=generator) * 2 + 0.5
            x.copy_(values)
            made = {"x": x}
            shape = (heads, self.cols) if self.own else (self.cols,)
            dtype = TORCH[self.x if self.weight == "x" else self.weight or "f32"]
            if self.weight:
                made["weight"] = torch.randn(shape, generator=generator).to(dtype)
            if self.bias:
                made["bias"] = torch.randn(shape, generator=generator).to(dtype)
            if self.backward:
                dy = torch.randn(x.shape, generator=generator)
                made["dy"] = dy.to(TORCH[self.x])
                exact = x.double()
                mean = exact.mean(-1, keepdim=True) if self.kind == LAYER else 0 * exact[..., :1]
                rstd = ((exact - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
                wide = TORCH[self.statistics()]
                if self.kind == LAYER:
                    made["mean"] = mean.to(wide)
                made["rstd"] = rstd.to(wide)
            found.append(made)
        moved = None if whole is None else whole.to(device)
        for made, x in zip(found, self.parts(moved), strict=True):
            made["x"] = x if moved is not None else made["x"]
            made.update({role: t.to(device) for role, t in made.items() if role != "x"})
            made["x"] = made["x"].to(device) if moved is None else made["x"]
        return found[0], found[1]

    def statistics(self) -> str:
        """Their dtype."""
        return "f64" if self.x == "f64" or self.activation else "f32"

    def outputs(self, inputs: tuple[Tensors, Tensors]) -> tuple[Tensors, Tensors, Tensors]:
        """Of both, full of NaN, and the memory that they are in."""
        device = inputs[0]["x"].device
        whole = self.packed()
        whole = None if whole is None else whole.to(device)
        found: list[Tensors] = []
        memory: Tensors = {} if whole is None or not self.backward else {"packed": whole}
        for place, given in enumerate(inputs):
            x = given["x"]
            kept = (*x.shape[:-1], 1)
            made: Tensors = {}
            if self.backward:
                if "dx" in self.wanted:
                    room = None if whole is None else self.parts(whole)[place]
                    made["dx"] = filled(x.shape, x.dtype, device) if room is None else room
                for role in ("weight", "bias"):
                    if f"d{role}" in self.wanted and role in given:
                        of = given[role]
                        made[f"d{role}"] = filled(of.shape, of.dtype, device)
            else:
                made["y"] = filled(x.shape, x.dtype, device)
                made["rstd"] = filled(kept, TORCH[self.statistics()], device)
                if self.kind == LAYER:
                    made["mean"] = filled(kept, TORCH[self.statistics()], device)
            found.append(made)
            memory.update({f"{'qk'[place]}.{role}": t for role, t in made.items()})
        return found[0], found[1], memory

    # ---- Runs -----------------------------------------------------------------------------------

    def given(self, inputs: Tensors) -> Tensors:
        """What the pass takes of the inputs: a bias only forwards, or with an activation."""
        without = () if not self.backward or self.activation else ("bias",)
        return {role: t for role, t in inputs.items() if role not in without}

    def run_both(self, device: Library) -> tuple[Tensors, Tensors, int, int]:
        """Memory after each alone and after the pair, and the launches of both; 0: not counted."""
        inputs = self.inputs(device.device)
        q, k = map(self.given, inputs)
        alone_q, alone_k, alone = self.outputs(inputs)
        pair_q, pair_k, pair = self.outputs(inputs)
        begin = launches(device)
        device.run(self.op(), self.passed, {**q, **alone_q})
        device.run(self.op(), self.passed, {**k, **alone_k})
        middle = launches(device)
        device.run_pair(self.op(), self.passed, {**q, **pair_q}, {**k, **pair_k})
        return alone, pair, middle - begin, launches(device) - middle

    def write(self, device: Library) -> None:
        """Runs it where what would run is only written down."""
        self.run_both(device)

    def check(self, device: Library) -> list[str]:
        """What is wrong."""
        alone, pair, each, together = self.run_both(device)
        wrong = [f"{n}: other bits than alone" for n in alone if differ(alone[n], pair[n])]
        wrong += [f"{n}: not written" for n in pair if n != "packed" and unwritten(pair[n])]
        if each:
            finishes = each - 2
            wanted = 1 + (finishes if self.own and len(set(self.heads)) > 1 else min(finishes, 1))
            wanted = wanted if self.together else each
            if together != wanted:
                wrong.append(f"{together} launches for {each} of each alone; wanted {wanted}")
        return wrong


def filled(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A dense tensor of NaN whose bits are no kernel's."""
    made = torch.empty(shape, dtype=dtype, device=device)
    made.view(torch.uint8).fill_(FILL)
    return made


def differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether any bit does."""
    return not torch.equal(*(t.contiguous().view(torch.uint8) for t in (a, b)))


def unwritten(t: torch.Tensor) -> bool:
    """Whether an element is NaN."""
    return bool(t.isnan().any())


def launches(device: Library) -> int:
    """So far, where they are counted."""
    if not hasattr(device.lib, "launches_run"):
        return 0
    return ctypes.c_int.in_dll(device.lib, "launches_run").value


# ---- The list ------------------------------------------------------------------------------------


def pair_cases() -> Iterator[PairCase]:
    """Forwards and backwards, of every kind of kernel that pairs."""
    for backward in (False, True):
        for i, x in enumerate(("bf16", "f16", "f32")):
            yield PairCase(x=x, backward=backward, kind=(RMS, LAYER)[i % 2], bias=i % 2 == 1)
            yield PairCase(x=x, backward=backward, own=True, kind=(LAYER, RMS)[i % 2], tokens=13)
        more = {"backward": backward, "seed": 2}
        yield PairCase(layout="dense", **more)
        yield PairCase(layout="dense", own=True, heads=(3, 3), tokens=40, **more)
        yield PairCase(layout="first", batch=3, **more)
        yield PairCase(layout="first", own=True, batch=3, heads=(4, 2), together=False, **more)
        yield PairCase(x="f64", cols=64, weight="f64", **more)
        yield PairCase(weight="", cols=64, heads=(2, 4), **more)
        yield PairCase(weight="f32", offset=1, cols=256, **more)
        yield PairCase(batch=1, tokens=1, heads=(32, 8), **more)  # decoding
        yield PairCase(batch=3, tokens=1, heads=(32, 8), own=True, **more)
        yield PairCase(tokens=150, heads=(5, 2), multiprocessors=2, cols=96, **more)
        yield PairCase(cols=512, heads=(3, 2), tokens=30, **more)
        apart = {"together": False, **more}
        yield PairCase(cols=77, tokens=31, heads=(3, 2), **apart)  # tiles
        yield PairCase(cols=72, tokens=31, heads=(3, 2), **apart)  # nine chunks for four lanes
        yield PairCase(cols=1536, heads=(3, 2), x="f32", kind=LAYER, tokens=5, **apart)
        yield PairCase(cols=4096, heads=(2, 1), layout="dense", tokens=3, **apart)
        yield PairCase(activation=SILU, kind=LAYER, bias=True, **more)
        yield PairCase(arch=80, own=True, tokens=21, **more)
        # One head of keys lies one stride apart, and its queries do not.
        yield PairCase(heads=(4, 1), together=False, **more)
    yield PairCase(backward=True, wanted=("dx",))
    yield PairCase(backward=True, wanted=("dweight",), own=True)
    yield PairCase(backward=True, wanted=("dweight", "dbias"), kind=LAYER, bias=True, tokens=200)
    yield PairCase(cols=65536, heads=(1, 1), layout="dense", x="f32", together=False, tokens=2)
