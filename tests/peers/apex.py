"""Apex's own tests of its normalization layers, run against planish.apex.

    python tests/peers/apex.py FOLDER [--suite NAME] [--only TEXT] [--device cpu|cuda]

FOLDER is a checkout of github.com/NVIDIA/apex; nothing is built there. On CUDA the suites run as
they are. On the CPU "cuda" is taken for "cpu" in them, and what they compare with is torch's
module in place of Apex's CPU path, which would be planish again; shapes that need tens of GB or
hours there are smaller, as `_smaller` says. The exit status is 1 where a case failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path[0] = os.path.dirname(os.path.abspath(__file__))
import suites  # noqa: E402

del sys.path[0]  # this file is apex.py: nothing else is to be imported from here

import planish.apex  # noqa: E402
import torch  # noqa: E402

_SUITES = {
    "L0 run_fused_layer_norm": "tests/L0/run_fused_layer_norm/test_fused_layer_norm.py",
    "contrib layer_norm": "apex/contrib/test/layer_norm/test_fast_layer_norm.py",
    "contrib group_norm": "apex/contrib/test/group_norm/test_group_norm.py",
}
_CLASSES = ("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm")

_NOT_ON_CPU = {
    "test_run_benchmark": "measures the time of CUDA streams",
    "test_group_norm_inductor": "hours of 3x3 convolutions on a CPU; tests/torch has one like it",
}

#: Why a case that starts so fails on the CPU; it is counted as failed.
_KNOWN_ON_CPU = {
    "test_autocast_fused_layer_norm_float16": "compared with the gradient of torch's float16 norm "
    "on the CPU, which is itself past the suite's tolerance of float64; planish's is within",
}


def _reference_of(module: torch.nn.Module) -> torch.nn.Module:
    """torch's module with the same parameters."""
    shape, affine = module.normalized_shape, module.elementwise_affine
    rms = isinstance(module, planish.apex.FusedRMSNorm)
    cls = torch.nn.RMSNorm if rms else torch.nn.LayerNorm
    made = cls(shape, eps=module.eps, elementwise_affine=affine)
    made.load_state_dict(module.state_dict())
    return made


def _free_memory() -> tuple[int, int]:
    """Of this much a suite may ask: a third of what there is."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kilobytes["MemAvailable"] * 1024 // 3, kilobytes["MemTotal"] * 1024


_NO_GPU = (0, 0), 16  # compute capability, multiprocessors
#: What the suites ask torch.cuda for when they are read or choose cases.
_STAND_IN = SimpleNamespace(
    manual_seed=lambda seed: None,  # on a GPU it leaves the CPU's numbers alone, which are drawn
    is_bf16_supported=lambda: True,
    is_available=lambda: True,  # of _has_sufficient_cuda_memory
    mem_get_info=_free_memory,
    current_device=lambda: 0,
    get_device_properties=lambda: SimpleNamespace(multi_processor_count=_NO_GPU[1]),
)


def _smaller(module: ModuleType) -> None:
    """On the CPU, group norm: 2 images of 64 x 64 in place of 32 of 256 x 256, where a case names
    no shape. Layer norm of contrib: 32 rows in place of 512, of every length."""
    test_rows: Callable[..., Any] | None = getattr(module, "_test_impl", None)
    if test_rows is not None:
        vars(module)["_test_impl"] = lambda s, b, *rest, **more: test_rows(16, 2, *rest, **more)
    case: Any = getattr(module, "GroupNormTest", None)
    if case is None:
        return
    vars(module)["get_cc_and_sm_count"] = lambda _: _NO_GPU
    verify: Callable[..., None] = case.verify_group_norm
    names = verify.__code__.co_varnames[: verify.__code__.co_argcount]
    defaults = list(verify.__defaults__ or ())
    for name, size in {"N": 2, "H": 64, "W": 64}.items():
        defaults[names.index(name) - len(names)] = size
    verify.__defaults__ = tuple(defaults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a checkout of NVIDIA/apex")
    parser.add_argument("--suite", default="", help="a part of a suite's name")
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=None)
    parser.add_argument("--verbose", action="store_true", help="whole texts of failures")
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    # group_norm's tests read a file beside them, so the folder is no stand-in: it is read, not used
    assert planish.apex.install(shadow=True)
    outcomes = []
    for name, path in _SUITES.items():
        if given.suite not in name:
            continue
        file = given.folder / path
        if not file.is_file():
            parser.error(f"{file} is not there")
        change = None
        if device == "cpu":
            change = suites.ToCPU(_CLASSES)
        module_name = "apex_suite_" + file.stem
        module = suites.load(
            file, module_name, change, reference_of=_reference_of, cuda_stand_in=_STAND_IN
        )
        if device == "cpu":
            _smaller(module)
        print(f"{name}, {device}", flush=True)
        leave_out = _NOT_ON_CPU if device == "cpu" else {}
        known = _KNOWN_ON_CPU if device == "cpu" else {}
        outcomes.append(suites.run(name, module, leave_out, known, given.only))
    print(f"\n{suites.table(outcomes)}")
    for outcome in outcomes:
        print(f"{outcome.suite}: {outcome.seconds:.0f} s")
        if given.verbose:
            print("\n".join(outcome.texts))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
