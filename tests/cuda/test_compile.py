"""Every kind of specialisation compiles for every supported architecture, and none spills.

Runs without a GPU: NVRTC makes the machine code and its report is read. A spill costs 20 to 50%
of a kernel's speed (docs/notebook-gpu.md), so it is a failure, not a warning.
"""

from __future__ import annotations

import re
import sys

from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, Plan, ShimError

ARCHS = (80, 89, 90, 100, 120)


def same(dtype: str, direction: int, weight: str | None = None) -> dict[str, str]:
    """All tensors of one dtype, f32 statistics (f64 ones for f64)."""
    statistics = "f64" if dtype == "f64" else "f32"
    roles = ["x", "y"] if direction == FORWARD else ["x", "dy", "dx"]
    affine = ["weight", "bias"] if direction == FORWARD else ["weight", "dweight", "dbias"]
    types = dict.fromkeys(roles, dtype) | dict.fromkeys(affine, weight or dtype)
    return types | {"mean": statistics, "rstd": statistics}


def without(types: dict[str, str], *roles: str) -> dict[str, str]:
    """The same without some tensors."""
    return {r: t for r, t in types.items() if r not in roles}


def cases() -> list[tuple[str, int, int, int, dict[str, str], int]]:
    """(name, direction, kind, cols, dtypes, access)."""
    forward_cols = (1, 3, 24, 40, 64, 96, 100, 128, 256, 267, 368, 512, 769, 1024, 1536, 4096, 6656)
    forward_cols += (5632, 7680, 8192, 8704, 12289, 15872, 32768, 131072, 262144, 802816)
    backward_cols = (1, 3, 24, 40, 96, 128, 200, 267, 512, 769, 1000, 1024, 3072, 4096, 8192, 15872)
    backward_cols += (802816,)
    out = []
    for direction, cols_list in ((FORWARD, forward_cols), (BACKWARD, backward_cols)):
        word = "forward" if direction == FORWARD else "backward"
        for cols in cols_list:
            for dtype in ("f16", "bf16", "f32"):
                out.append(
                    (f"{word} {cols} {dtype}", direction, LAYER, cols, same(dtype, direction), 16)
                )
    for direction in (FORWARD, BACKWARD):
        word = "forward" if direction == FORWARD else "backward"
        for cols in (24, 769, 4096):
            out.append(
                (
                    f"{word} rms {cols}",
                    direction,
                    RMS,
                    cols,
                    without(same("bf16", direction), "mean", "bias", "dbias"),
                    16,
                )
            )
            out.append((f"{word} {cols} f64", direction, LAYER, cols, same("f64", direction), 16))
            out.append(
                (
                    f"{word} {cols} f16, f32 weight",
                    direction,
                    LAYER,
                    cols,
                    same("f16", direction, "f32"),
                    16,
                )
            )
            out.append(
                (
                    f"{word} {cols} bare",
                    direction,
                    LAYER,
                    cols,
                    without(same("f16", direction), "weight", "bias", "dweight", "dbias"),
                    16,
                )
            )
            for access in (2, 4, 8):
                out.append(
                    (
                        f"{word} {cols} f16 at {access} bytes",
                        direction,
                        LAYER,
                        cols,
                        same("f16", direction),
                        access,
                    )
                )
    for cols in (2048, 32768, 131072):
        out.append((f"backward {cols} bf16", BACKWARD, LAYER, cols, same("bf16", BACKWARD), 16))
    return out


def main() -> int:
    """Compiles all and prints what failed; the number of failures is the exit status."""
    archs = tuple(int(a) for a in sys.argv[1].split(",")) if len(sys.argv) > 1 else ARCHS
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    bad = compiled = 0
    for name, direction, kind, cols, types, access in cases():
        if only not in name:
            continue
        for arch in archs:
            try:
                plan = Plan(direction, kind, 1 << 14, cols, types, arch=arch)
            except ShimError as e:
                # Said by the backend: these rows have no kernel on this architecture.
                print(f"no plan: sm_{arch} {name}: {e}")
                bad += arch == 90
                continue
            for last in (0, 1, 2):
                try:
                    report = plan.compile(arch, access, last)
                except ShimError as e:
                    print(f"FAILED: sm_{arch} {name}: {e}")
                    bad += 1
                    continue
                if report is None:
                    continue
                compiled += 1
                spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
                stack = [int(n) for n in re.findall(r"(\d+) bytes stack frame", report)]
                registers = re.findall(r"Used (\d+) registers", report)
                assert spills and registers, f"no report of registers: {report}"
                if any(spills) or any(stack):
                    print(
                        f"SPILL: sm_{arch} {name}: spills {spills}, stack {stack}, "
                        f"registers {registers}; {plan.describe()}"
                    )
                    bad += 1
    print(f"{compiled} kernels compiled, {bad} bad")
    return min(bad, 99)


if __name__ == "__main__":
    sys.exit(main())
