"""Several builds of the GPU backend, and geometries of the last, beside one ceiling in one process.

    sh bench/gpu_build.sh before.so     (in the tree as it was)
    sh bench/gpu_build.sh after.so      (in this one)
    python3 bench/gpu_compare.py before=before.so after=after.so --rows backward,odd \
        --images channels,groups --dtype f16,bf16 --only 802816,view --csv OUT.csv

Lists are those of gpu_rows.py and gpu_channels.py, buffers and timing too. --variants as there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "cuda"))

import gpu_shim

Constants = dict[str, int]


def use(build: str) -> None:
    """From here on plans are those of this library."""
    os.environ["PLANISH_GPU_SHIM"] = build
    gpu_shim._lib[:] = [gpu_shim.load()]


class RowsWork:
    """A shape of gpu_rows.py."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        word = "fwd" if key[0] == gpu_shim.FORWARD else "bwd"
        kind = "layer" if key[1] == gpu_shim.LAYER else "rms"
        self.name = f"{kind} {word} {key[2]}x{key[3]} {key[4]}"

    def variants(self, found: Callable[..., list[Constants]]) -> list[Constants]:
        """What a file of variants has for it."""
        direction, _, *shape = self.key
        return found(direction, *shape)

    def prepare(self, constants: Constants) -> str:
        """Compiles it; what went wrong."""
        import gpu_rows

        return gpu_rows.prepare((*self.key, constants))

    def made(self) -> Any:
        """Its buffers."""
        import gpu_rows

        return gpu_rows.Work(*self.key)


class ImagesWork:
    """A shape of gpu_channels.py."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape
        self.name = shape.name()

    def variants(self, found: Callable[..., list[Constants]]) -> list[Constants]:
        """What a file of variants has for it."""
        return found(self.shape)

    def prepare(self, constants: Constants) -> str:
        """Compiles it; what went wrong."""
        import gpu_channels

        return gpu_channels.prepare((self.shape, constants))

    def made(self) -> Any:
        """Its buffers."""
        import gpu_channels

        return gpu_channels.Work(self.shape)


def works(arguments: argparse.Namespace) -> list[RowsWork | ImagesWork]:
    """All that the lists have, once each."""
    found: list[RowsWork | ImagesWork] = []
    if arguments.rows:
        import gpu_rows

        kinds = [gpu_shim.RMS if k == "rms" else gpu_shim.LAYER for k in arguments.kind.split(",")]
        for kind in kinds:
            for name in arguments.rows.split(","):
                found += [RowsWork((d, kind, *rest)) for d, _, *rest in gpu_rows.sweep(name)]
    if arguments.images:
        import gpu_channels

        for dtype in arguments.dtype.split(","):
            for name in arguments.images.split(","):
                found += [ImagesWork(s) for s in gpu_channels.shapes_of(name, dtype)]
    once = {work.name: work for work in found}
    words = arguments.only.split(",")
    return [work for name, work in once.items() if any(word in name for word in words)]


def prepare(job: tuple[str, RowsWork | ImagesWork, Constants]) -> str:
    """Compiles one geometry of one build to the disk cache."""
    build, work, constants = job
    use(build)
    return work.prepare(constants)


def main() -> None:
    """Prints one line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs="+", help="NAME=LIBRARY")
    parser.add_argument("--rows", default="", help="lists of gpu_rows.py")
    parser.add_argument("--kind", default="layer", help="of rows: layer, rms")
    parser.add_argument("--images", default="", help="lists of gpu_channels.py")
    parser.add_argument("--dtype", default="f16", help="of images")
    parser.add_argument("--only", default="", help="shapes whose name has one of these in it")
    parser.add_argument(
        "--variants", help="a Python file that defines variants(), for the last build"
    )
    parser.add_argument("--processes", type=int, default=8, help="compile ahead in parallel")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    builds = [
        (name, os.path.abspath(path)) for name, path in (b.split("=") for b in arguments.builds)
    ]
    space: dict[str, Any] = {"variants": lambda *_: []}
    if arguments.variants:
        exec(pathlib.Path(arguments.variants).read_text(), space)
    use(builds[0][1])
    todo = []
    for work in works(arguments):
        runs: list[tuple[str, str, Constants]] = [(name, path, {}) for name, path in builds]
        for v in work.variants(space["variants"]):
            runs.append((" ".join(f"{k}={n}" for k, n in v.items()), builds[-1][1], v))
        todo.append((work, runs))
    jobs = [(path, work, constants) for work, runs in todo for _, path, constants in runs]
    with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
        for error in filter(None, pool.map(prepare, jobs, chunksize=2)):
            print(f"not prepared: {error[:200]}")
    import gpu_rows
    import torch

    lines = []
    for work, runs in todo:
        made = work.made()
        ceiling = made.ceiling()
        text = f"{work.name}: ceiling {ceiling:.2f} us"
        lines.append([work.name, "ceiling", f"{ceiling:.3f}", "1"])
        for label, path, constants in runs:
            use(path)
            try:
                us = made.ours(**constants)
            except (gpu_shim.ShimError, RuntimeError) as error:
                print(f"{work.name} {label}: {str(error)[:200]}", flush=True)
                continue
            text += f" | {label} {us:.2f} {ceiling / us:.3f}"
            lines.append([work.name, label, f"{us:.3f}", f"{ceiling / us:.4f}"])
        print(text, flush=True)
        del made
        torch.cuda.empty_cache()
        gpu_rows.write_csv(arguments.csv, lines)


if __name__ == "__main__":
    main()
