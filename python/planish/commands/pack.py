"""``planish pack``: GPU kernels compiled ahead of time, in one file (docs/guide/gpu.md).

planish pack OUT                                       what this user's kernel cache holds
planish pack OUT --norms LIST.json --gpu H100          a list of norms, compiled without a GPU
planish pack OUT --norms LIST.json --arch 90 --multiprocessors 132

PLANISH_PACK=OUT or planish.load_pack("OUT") then loads it. LIST.json is a list of objects; "cols"
(or "shape") is all that one needs:

  kind        "layer" (what is taken where it is missing), "rms" or "l2"
  cols        row length, or a list of them
  shape       in place of cols: sizes of x, the first null; "reduce" and "affine" list axes
  rows        rows (size of the first axis), a number or a list; else every class of them
  dtype       of x, y, dy and dx: f32 (else), f16, bf16, f64
  weight      dtype, or null for none; else dtype's
  bias        the same; else none for rms
  statistics  dtype of mean and rstd, or null for none in forward; else f32, or f64 with f64
  passes      list of "forward", "backward"; else both. "parts": those of planish.distributed, cols
              being what one GPU has of a row
  gradients   of backward: list of "dx", "dweight", "dbias"; else all
  offset      1 for weights stored around zero; else 0
  alignment   of every tensor's data in bytes, a number or a list; else 16
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planish.commands.command_lines import UsageError, at_least
from planish.library.ahead import Gpu, Problem, compile_norms, kernel_files
from planish.library.loaded import library

__all__ = ["load_pack", "main"]

_MAGIC = b"planpack"

#: A block's shared memory and the largest cluster, by compute capability.
_LIMITS = {
    80: (166912, 1),
    86: (101376, 1),
    87: (166912, 1),
    89: (101376, 1),
    90: (232448, 16),
    100: (232448, 16),
    103: (232448, 16),
    120: (101376, 8),
    121: (101376, 8),
}

#: Compute capability and multiprocessors, by name.
_GPUS = {
    "A100": (80, 108),
    "A30": (80, 56),
    "A10": (86, 72),
    "A40": (86, 84),
    "RTX-3090": (86, 82),
    "L4": (89, 58),
    "L40": (89, 142),
    "L40S": (89, 142),
    "RTX-4090": (89, 128),
    "H100": (90, 132),
    "H100-PCIe": (90, 114),
    "H200": (90, 132),
    "GH200": (90, 132),
    "B200": (100, 148),
    "RTX-5070": (120, 48),
    "RTX-5080": (120, 84),
    "RTX-5090": (120, 170),
}


def load_pack(path: str | os.PathLike[str]) -> None:
    """Loads ``path``, a file made by ``planish pack``: from now on its kernels need no NVRTC.

    Raises OSError if it cannot be read, is no pack, or is of another version of planish.

    Example:

    >>> planish.load_pack("no.pack")
    Traceback (most recent call last):
    OSError: planish.load_pack: ...
    """
    library().load_pack(os.fspath(path))


# ---- The file ------------------------------------------------------------------------------------


def _version(name: str) -> tuple[int, ...]:
    """The compiler's version in the name of a file."""
    words = name.removesuffix(".kernel").rpartition("-")[2].split(".")
    return tuple(int(word) for word in words if word.isdecimal())


def _chosen(files: dict[str, bytes]) -> list[bytes]:
    """What a pack takes: of one kernel that of the newest compiler, in the order of their names."""
    best: dict[str, str] = {}
    for name in sorted(files, key=_version):
        if library().pack_takes(files[name]):
            best[name.partition("-")[0]] = name
    return [files[best[kernel]] for kernel in sorted(best)]


def _write(out: Path, kernels: Sequence[bytes]) -> None:
    """All of it or nothing: a new file, then renamed."""
    fd, name = tempfile.mkstemp(dir=out.parent, prefix=".new-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.writelines([_MAGIC, *kernels])
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, out)
    except BaseException:
        os.unlink(name)
        raise


def _from_cache() -> dict[str, bytes]:
    folder = library().cache_path()
    if folder is None:
        raise Problem("no kernel cache is kept (planish cache path)")
    return kernel_files(folder, set())


# ---- The command ---------------------------------------------------------------------------------


def _named_gpu(name: str) -> Gpu:
    by_name = {known.lower(): numbers for known, numbers in _GPUS.items()}
    if name.lower() not in by_name:
        raise UsageError(f"--gpu {name}; known are {', '.join(_GPUS)}")
    return _gpu(*by_name[name.lower()])


def _gpu(arch: int, multiprocessors: int, shared: int | None = None, cluster: int = 0) -> Gpu:
    if arch not in _LIMITS and not (shared and cluster):
        raise UsageError(
            f"--arch {arch}; known are {', '.join(map(str, _LIMITS))}; another needs "
            "--shared-bytes and --max-cluster"
        )
    usual = _LIMITS.get(arch, (0, 0))
    return Gpu(arch, multiprocessors, shared or usual[0], cluster or usual[1])


def gpus_here() -> list[Gpu]:
    """The GPUs of this machine, each sort once, as far as planning asks about them."""
    found = []
    for device in library().gpu_report()["devices"]:
        if "capability" in device:
            arch = int(device["capability"].replace(".", ""))
            found.append(_gpu(arch, device["multiprocessors"]))
    return list(dict.fromkeys(found))


def _named_gpus(options: argparse.Namespace) -> list[Gpu]:
    found = [_named_gpu(name) for name in options.gpu]
    if (options.arch is None) != (options.multiprocessors is None):
        raise UsageError("--arch and --multiprocessors go together")
    if options.arch is not None:
        found.append(
            _gpu(
                options.arch,
                options.multiprocessors,
                options.shared_bytes,
                options.max_cluster or 0,
            )
        )
    return found


def _pack(options: argparse.Namespace) -> int:
    out = Path(options.out)
    if not out.absolute().parent.is_dir():
        raise Problem(f"{out.absolute().parent} is no folder")
    files: dict[str, bytes] = {}
    gpus = _named_gpus(options)
    if options.norms:
        gpus = gpus or gpus_here()
        if not gpus:
            raise UsageError("no GPU is here: name one by --gpu or by --arch and --multiprocessors")
        files |= compile_norms(Path(options.norms), gpus, options.jobs)
        if len(_chosen(files)) < len(files):
            raise Problem(
                "this NVRTC does not know every architecture asked for: it made PTX, which a pack "
                "does not hold"
            )
    if options.from_cache or not options.norms:
        files |= _from_cache()
    kernels = _chosen(files)
    if not kernels:
        raise Problem(f"no kernel for {out}: {len(files)} found, none of this planish's texts")
    _write(out, kernels)
    left = f", {len(files) - len(kernels)} left out" if len(files) > len(kernels) else ""
    print(f"{out}: {len(kernels)} kernels, {out.stat().st_size / 1024:.1f} KiB{left}")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="planish pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--from-cache", action="store_true", help="what the kernel cache holds (without --norms)"
    )
    parser.add_argument("--norms", metavar="LIST.json", help="norms to compile, as above")
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="NAME", help=f"one of {', '.join(_GPUS)}"
    )
    parser.add_argument("--arch", type=at_least(1), help="compute capability of a GPU, 90 for 9.0")
    parser.add_argument("--multiprocessors", type=at_least(1), help="how many it has")
    parser.add_argument("--shared-bytes", type=at_least(1), help="shared memory a block may have")
    parser.add_argument(
        "--max-cluster", type=at_least(1), help="blocks in a cluster; 1: no clusters"
    )
    parser.add_argument(
        "--jobs", type=at_least(1), default=os.cpu_count() or 1, help="processes that compile"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    try:
        return _pack(_arguments(argv))
    except (Problem, OSError) as problem:
        print(f"planish pack: {problem}", file=sys.stderr)
        return 1
