"""Hashes of the machine code of some hundred specialisations: did a change of the texts change it?

    python tests/cuda/machine_code.py --out BEFORE
    ... the change ...
    python tests/cuda/machine_code.py --out AFTER
    python tests/cuda/machine_code.py --compare BEFORE AFTER

A line for each kernel of each problem: its name, the SHA-256 of its machine code, how many bytes
that has; at the end one hash of all of them. Only instructions count (sections .text.* of NVRTC's
cubins), so a constant or a function may have another name, and a kernel another place in the list.
Needs NVRTC (pip install nvidia-cuda-nvrtc), torch and the library (PLANISH_LIBRARY, or what `make
test` builds), and no GPU. It does not say whether a kernel is right, nor how fast it is; nor does
another version of NVRTC give the same code.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import itertools
import multiprocessing
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpu_shim import (
    APPLY,
    BACKWARD,
    FORWARD,
    FROM_Y,
    LAYER,
    RMS,
    ROLES,
    SILU,
    STATISTICS,
    AnyPlan,
    Plan,
    ShimError,
)
from test_compile import same, without

ARCHS = (80, 90)
WORDS = {FORWARD: "forward", BACKWARD: "backward"}
#: Many rows: the grid is full and rings of rows are worth their start. Few: as in decoding.
MANY, FEW = 1 << 14, 16


class Case(NamedTuple):
    """A problem: its name, its plan on an architecture, its buffers' alignment in bytes."""

    name: str
    plan: Callable[[int], Plan] | None
    access: int = 16
    prepare: Callable[[int], None] | None = None  # in place of a plan: to the disk cache


def row_case(
    direction: int, kind: int, rows: int, cols: int, types: dict[str, str], *, access: int = 16
) -> Case:
    """Dense rows."""
    kinds = "layer" if kind == LAYER else "rms"
    used = " ".join(f"{r}:{t}" for r, t in types.items() if t != types["x"])
    name = f"rows {WORDS[direction]} {kinds} {rows}x{cols} {types['x']} {used}".strip()
    name += "" if "weight" in types else " bare"
    name += f" at {access}" if access != 16 else ""
    return Case(name, lambda arch: Plan(direction, kind, rows, cols, types, arch=arch), access)


def row_cases() -> Iterator[Case]:
    """The lengths of the benches, in every way that rows go."""
    cols_of = {
        FORWARD: (24, 96, 128, 200, 257, 368, 512, 768, 1024, 1537, 4096, 5632, 8192, 15872),
        BACKWARD: (24, 96, 128, 200, 368, 512, 768, 1001, 1024, 4096, 5632, 8192, 15872),
    }
    for direction, cols_list in cols_of.items():
        for cols, dtype in itertools.product(cols_list, ("bf16", "f32")):
            yield row_case(direction, LAYER, MANY, cols, same(dtype, direction))
        for cols in (32768, 131072, 262144):
            yield row_case(direction, LAYER, MANY, cols, same("bf16", direction))
        for cols in (128, 512, 1024, 4096, 8192):
            rms = without(same("f16", direction), "mean", "bias", "dbias")
            yield row_case(direction, RMS, MANY, cols, rms)
        for cols in (96, 1024, 5632):
            yield row_case(direction, LAYER, FEW, cols, same("bf16", direction))
        for cols in (257, 768):
            yield row_case(direction, LAYER, MANY, cols, same("bf16", direction, "f32"))
            bare = without(same("bf16", direction), "weight", "bias", "dweight", "dbias")
            yield row_case(direction, LAYER, MANY, cols, bare)
        for cols, access in ((1001, 2), (1024, 2), (768, 8)):
            yield row_case(direction, LAYER, MANY, cols, same("f16", direction), access=access)
        yield row_case(direction, LAYER, MANY, 1024, same("f64", direction))
    yield row_case(BACKWARD, LAYER, 4096, 802816, same("bf16", BACKWARD))
    mixed = same("bf16", FORWARD, "f32") | {"y": "f32"}
    for cols in (96, 1024):
        yield row_case(FORWARD, LAYER, MANY, cols, mixed)


def channel_cases() -> Iterator[Case]:
    """Norms over the channels of (64, channels, pixels)."""
    shapes = [(64, 3136, ""), (96, 3136, "last"), (256, 784, ""), (512, 196, ""), (1024, 49, "")]
    shapes += [(257, 225, ""), (4096, 784, ""), (96, 3025, "")]
    for direction, (c, hw, last) in itertools.product((FORWARD, BACKWARD), shapes):
        for dtype in ("bf16", "f32"):
            kind = RMS if c == 512 else LAYER
            types = same(dtype, direction, "f32" if c == 256 else None)
            types = types if kind == LAYER else without(types, "mean", "bias", "dbias")
            strides = {r: [c * hw, hw, 1] for r in ("x", "y", "dy", "dx")}
            if last:
                strides["y"] = [c * hw, 1, c]
            strides |= {r: [hw, 0, 1] for r in ("mean", "rstd")}
            strides |= {r: [0, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}

            def plan(
                arch: int,
                direction: int = direction,
                kind: int = kind,
                shape: tuple[int, int, int] = (64, c, hw),
                types: dict[str, str] = types,
                strides: dict[str, list[int]] = strides,
            ) -> Plan:
                return AnyPlan(direction, kind, shape, 2, 2, types, strides, arch=arch)

            yield Case(f"channels {WORDS[direction]} {c}x{hw} {dtype} {last}".strip(), plan)


def group_cases() -> Iterator[Case]:
    """Norms over groups of the channels of (64, groups, channels of a group, pixels)."""
    shapes = [(32, 8, 3136), (32, 10, 4096), (1, 256, 784), (64, 1, 12544), (32, 40, 1024)]
    shapes += [(32, 8, 49), (256, 1, 196), (32, 3, 784), (8, 125, 225), (32, 32, 49)]
    for direction, (g, d, hw) in itertools.product((FORWARD, BACKWARD), shapes):
        orders = {"": [d * g * hw, d * hw, hw, 1], "last": [d * g * hw, d, 1, d * g]}
        for (order, full), dtype in itertools.product(orders.items(), ("bf16", "f32")):
            for activation in (0, SILU) if (g, d) in ((32, 8), (32, 10), (256, 1)) else (0,):
                types = same(dtype, direction)
                if activation:
                    types |= {"bias": dtype, "mean": "f64", "rstd": "f64"}
                strides = dict.fromkeys(("x", "y", "dy", "dx"), full)
                strides |= {r: [g, 1, 0, 0] for r in ("mean", "rstd")}
                strides |= {r: [0, d, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}

                def plan(
                    arch: int,
                    direction: int = direction,
                    shape: tuple[int, int, int, int] = (64, g, d, hw),
                    types: dict[str, str] = types,
                    strides: dict[str, list[int]] = strides,
                    activation: int = activation,
                ) -> Plan:
                    return AnyPlan(
                        direction,
                        LAYER,
                        shape,
                        12,
                        6,
                        types,
                        strides,
                        activation=activation,
                        arch=arch,
                    )

                follows = "silu" if activation else ""
                words = ("groups", WORDS[direction], f"{g}x{d}x{hw}", dtype, order, follows)
                yield Case(" ".join(w for w in words if w), plan)


def general_cases() -> Iterator[Case]:
    """What takes any problem."""
    roles = {
        FORWARD: ["x", "weight", "bias", "y", "mean", "rstd"],
        BACKWARD: ["x", "weight", "mean", "rstd", "dy", "dx", "dweight", "dbias"],
        FROM_Y: ["y", "weight", "bias", "rstd", "dy", "dx", "dweight", "dbias"],
        STATISTICS: ["x", "mean", "m2"],
        APPLY: ["x", "weight", "bias", "y", "mean", "rstd"],
    }
    strides = dict.fromkeys(("x", "y", "dy", "dx"), (1, 64, 1280))
    strides |= dict.fromkeys(("mean", "rstd", "m2"), (1, 0, 0))
    strides |= dict.fromkeys(("weight", "bias", "dweight", "dbias"), (0, 0, 1))
    for (direction, present), activation in itertools.product(roles.items(), (0, SILU)):
        if activation and direction not in (FORWARD, BACKWARD):
            continue
        types = dict.fromkeys(present, "bf16")
        if activation:
            types["bias"] = "bf16"

        def plan(
            arch: int,
            direction: int = direction,
            types: dict[str, str] = types,
            activation: int = activation,
        ) -> Plan:
            sizes = (64, 20, 40)
            follows = {"activation": activation, "arch": arch}
            return AnyPlan(direction, LAYER, sizes, 6, 4, types, strides, **follows)

        yield Case(f"general pass {direction} bf16{' silu' if activation else ''}", plan)


def stage_cases() -> Iterator[Case]:
    """Stages around a norm: the cases that the emulation runs by default (test_stages.py)."""
    import stage_backward_cases
    import stage_forward_cases
    from c_api import Library
    from stage_reference import representative

    class Ahead(Library):
        """Compiles in place of running."""

        device, arch = "cpu", 0

        def run(self, op: Any, which: int, tensors: Any) -> None:
            self.prepare(op, which, tensors, self.arch)

    found: list[Any] = representative(stage_forward_cases.forward_cases(quick=True))
    found += representative(stage_backward_cases.backward_cases())
    for case in found:

        def prepare(arch: int, case: Any = case) -> None:
            ahead = Ahead()
            ahead.arch = arch
            tensors, _ = case.place("cpu")
            ahead.run(case.op(), case.passed, tensors)

        yield Case(f"stages {case.name()}", None, prepare=prepare)


def cases() -> list[Case]:
    """All of them; each has a name of its own."""
    found = [*row_cases(), *channel_cases(), *group_cases(), *general_cases(), *stage_cases()]
    if len({case.name for case in found}) != len(found):
        raise SystemExit("found two cases of one name; wanted a name for each")
    return found


def instructions(cubin: bytes) -> bytes:
    """The machine code of an ELF file: its sections .text.*, in the order of their names."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("found no 64-bit ELF file; wanted machine code")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    headers = [struct.unpack_from("<2I4Q", cubin, table + i * size) for i in range(count)]
    strings = headers[names][4]
    found = []
    for name, _, _, _, offset, length in headers:
        begin = strings + name
        word = cubin[begin : cubin.index(b"\0", begin)]
        if word.startswith(b".text."):
            found.append((word, cubin[offset : offset + length]))
    if not found:
        raise ValueError("found no section .text.*; wanted machine code")
    return b"".join(code for _, code in sorted(found))


def planned(case: Case, arch: int) -> Iterator[bytes]:
    """The cubins of a case that is a plan."""
    assert case.plan is not None
    plan, addresses = case.plan(arch), dict.fromkeys(ROLES, 4096 + case.access % 16)
    for number in itertools.count():
        try:
            cubin = plan.code(addresses, number)
        except ShimError as e:
            raise SystemExit(f"sm_{arch} {case.name}: {e}") from None
        if cubin is None:
            return
        yield cubin


def prepared(case: Case, arch: int) -> list[bytes]:
    """The cubins that a case leaves in an empty disk cache, in the order of their code."""
    assert case.prepare is not None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PLANISH_CACHE_DIR"] = folder
        case.prepare(arch)
        files = [path.read_bytes() for path in Path(folder).iterdir() if path.is_file()]
    # src/cuda/cache.c: "planish1", the bytes of key and code, a check; then both.
    found = []
    for file in files:
        key_bytes, code_bytes = struct.unpack_from("<2Q", file, 8)
        found.append(file[32 + key_bytes :][:code_bytes])
    if not found:
        raise SystemExit(f"sm_{arch} {case.name}: found nothing in the cache; wanted kernels")
    return sorted(found, key=instructions)


def lines_of(arch: int, index: int) -> list[str]:
    """A line for each kernel of a case."""
    os.environ["PLANISH_CACHE_DIR"] = os.environ["PLANISH_PACK"] = ""  # compiled here, every time
    case = cases()[index]
    lines: list[str] = []
    for cubin in planned(case, arch) if case.plan else prepared(case, arch):
        code = instructions(cubin)
        digest = hashlib.sha256(code).hexdigest()[:32]
        lines.append(f"{digest} {len(code):7} sm_{arch} {case.name}, kernel {len(lines)}")
    return lines


def measure(jobs: int) -> list[str]:
    """The lines of all cases, and of all together."""
    todo = [(arch, i) for i in range(len(cases())) for arch in ARCHS]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        parts = list(pool.map(lines_of, *zip(*todo, strict=True), chunksize=4))
    lines = [line for part in parts for line in part]
    total = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
    return [*lines, f"{total} {len(lines):7} kernels in all"]


def read(path: Path) -> dict[str, tuple[str, int]]:
    """A file's hashes and numbers of bytes, by name."""
    found = {}
    for line in path.read_text().splitlines():
        digest, size, name = line.split(None, 2)
        found[name] = (digest, int(size))
    return found


def compare(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> list[str]:
    """What differs: a line for each kernel."""
    before, after = dict(before), dict(after)
    before.pop("kernels in all", None)
    after.pop("kernels in all", None)
    lines: list[str] = []
    for name in sorted({*before, *after}):
        if name not in after:
            lines.append(f"gone: {name}")
        elif name not in before:
            lines.append(f"new: {name}")
        elif before[name][0] != after[name][0]:
            instructions_more = (after[name][1] - before[name][1]) // 16
            lines.append(f"differs, {instructions_more:+} instructions: {name}")
    return lines


def main() -> int:
    """The exit status: 1 where a comparison finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the lines to this file, too")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        before, after = (read(path) for path in options.compare)
        lines = compare(before, after)
        print("\n".join([*lines, f"{len(lines)} of {len(before) - 1} kernels differ"]))
        return bool(lines)
    lines = measure(options.jobs)
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
