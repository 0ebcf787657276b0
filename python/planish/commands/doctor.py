"""``planish doctor``: what planish finds on this machine, and whether it all fits.

Exit status 0: everything planish needs is there. 1: something is missing; the report says what.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import planish
from planish.library import variables
from planish.library.loaded import library

__all__ = ["main", "report"]


def report() -> dict[str, Any]:
    """Everything doctor prints, as data; ``problems`` lists what keeps planish from working, and
    the variables that mean nothing."""
    result = _found()
    result["variables"] = variables.set_here()
    result["problems"] += variables.misset().values()
    return result


def _found() -> dict[str, Any]:
    problems: list[str] = []
    result: dict[str, Any] = {
        "planish": planish.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "problems": problems,
    }
    try:
        lib = library()
    except ImportError as error:
        problems.append(str(error))
        return result
    result["library"] = {"path": str(lib.path), "version": lib.version, "cpu_tier": lib.cpu_tier()}
    try:
        import torch  # first: NVRTC is looked for beside the libraries that torch loads
    except ImportError as error:
        result["gpu"] = lib.gpu_report()
        problems.append(f"torch does not import ({error}): only the C library can be used")
        return result
    result["gpu"] = lib.gpu_report()
    version = lib.torch_version()
    result["torch"] = {
        "version": torch.__version__,
        "abi": f"{version // 100}.{version % 100}",
        "threads": torch.get_num_threads(),
        "symbols": [symbol._asdict() for symbol in lib.symbols()],
    }
    missing = [symbol for symbol in lib.symbols() if symbol.required and not symbol.found]
    problems += [f"torch {torch.__version__} lacks {s.name}: {s.use}" for s in missing]
    if not missing:
        result["compile"] = _compile()
        result["operators"] = _operators("cpu", problems)
        if not problems:
            result["calls"] = _on_a_new_thread(lambda: _calls("cpu", problems), problems)
        if torch.version.cuda and not (lacking := lib.cuda_is_missing()):
            result["cuda_before"] = _owners("cuda")
            result["cuda_operators"] = _operators("cuda", problems)
            if torch.cuda.is_available() and not problems:
                calls = _on_a_new_thread(lambda: _calls("cuda", problems), problems)
                result["cuda_calls"] = calls
        elif torch.version.cuda:
            problems.append(f"torch's CUDA tensors are left to torch: {lacking}")
        problems += _gpu_problems(result["gpu"])
    return result


def _compile() -> dict[str, str]:
    """What torch's compiler has of what planish uses; empty where there is no compiler."""
    try:
        import torch
        from planish.compile import needs

        with torch._C.DisableTorchFunction():  # a caller's function mode does not see this
            return needs.found()
    except ImportError:
        return {}


def _gpu_problems(gpu: dict[str, Any]) -> list[str]:
    """What keeps planish from a GPU that is there. No GPU is no problem, nor is no NVRTC where a
    pack is loaded."""
    packs = gpu["packs"]
    found = [packs["problem"]] if "problem" in packs else []
    if gpu["cache"] is None and os.environ.get("PLANISH_CACHE_DIR"):
        found.append(
            f"PLANISH_CACHE_DIR={os.environ['PLANISH_CACHE_DIR']} means nothing: no folder that "
            "this user alone can write to can be made there"
        )
    if not gpu["devices"]:
        return found
    found += [device["problem"] for device in gpu["devices"] if "problem" in device]
    if "problem" in gpu["nvrtc"] and not packs["loaded"]:
        found.append(f"the GPU stays with torch: {gpu['nvrtc']['problem']}")
    return found


def _owners(device: str) -> dict[str, str]:
    """Who implements each operator at the device's key."""
    import torch
    from planish.library import dispatcher

    return {
        name: _owner(torch._C._dispatch_dump(f"aten::{name}"), dispatcher.KEYS[device])
        for op in dispatcher.OPS
        for name in dispatcher.replaced(op, device)
    }


def _operators(device: str, problems: list[str]) -> dict[str, str]:
    """Enables planish for a moment and looks at who owns each operator then."""
    from planish.library import dispatcher, switch

    try:
        with switch.enabled(devices=device):
            owners = _owners(device)
    except RuntimeError as error:
        problems.append(str(error))
        return {}
    problems += [
        f"aten::{name} on {dispatcher.KEYS[device]} belongs to {owner} although planish is enabled"
        for name, owner in owners.items()
        if owner != "planish"
    ]
    return owners


#: An operator of each group, and how planish.stats() counts its forward.
_CALLED = {
    "layer_norm": "native_layer_norm",
    "group_norm": "native_group_norm",
    "rms_norm": "_fused_rms_norm",
    "batch_norm": "native_batch_norm",
    "weight_norm": "_weight_norm_interface",
}


def _calls(device: str, problems: list[str]) -> dict[str, str]:
    """Where one strided and one channels-last call of each operator run: "planish", or why not.
    That a GPU has no fast kernel for a layout is no problem."""
    import torch
    from planish.library import counts, dispatcher, switch

    def place(counted: str, before: dict[str, Any]) -> str:
        now: dict[str, Any] = dict(counts.stats()[counted])
        if now["planish"] > before["planish"]:
            return "planish"
        new = [why for why, n in now["torch"].items() if n > before["torch"].get(why, 0)]
        return f"torch ({', '.join(new) or 'its own composition'})"

    def call(op: str, x: torch.Tensor) -> torch.Tensor:
        if op == "weight_norm":
            v = x.repeat(1, 1, 16, 64)  # large enough for planish on any CPU
            return torch._weight_norm(v, torch.ones(2, 1, 1, 1, device=device), 0)
        function = getattr(torch.nn.functional, op)
        if op == "batch_norm":
            z: torch.Tensor = function(x, None, None, training=True)
            return z
        y: torch.Tensor = function(x, 3 if op == "group_norm" else x.shape[-1:])
        return y

    x = torch.arange(480.0, device=device).sin().reshape(2, 6, 4, 10)
    layouts = {
        "strided": x[..., :5],
        "channels last": x.contiguous(memory_format=torch.channels_last),
    }
    found = {}
    taken = {op: counted for op, counted in _CALLED.items() if dispatcher.replaced(op, device)}
    for op, counted in taken.items():
        for layout, tensor in layouts.items():
            name = f"F.{op}, {layout}"
            expected = call(op, tensor)
            with switch.enabled(op, device):
                before: dict[str, Any] = dict(counts.stats()[counted])
                result = call(op, tensor)
                found[name] = place(counted, before)
            if result.stride() != expected.stride() or not torch.allclose(
                result, expected, rtol=1e-4, atol=1e-4
            ):
                problems.append(f"{name} on {device} differs from torch's")
            elif device == "cpu" and found[name] != "planish":
                problems.append(f"{name} on {device} runs on {found[name]}")
    return found


def _on_a_new_thread(work: Callable[[], dict[str, str]], problems: list[str]) -> dict[str, str]:
    """Where no mode, transform or tracing of the caller's sees what is called."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(work).result()
        except RuntimeError as error:
            problems.append(str(error))
            return {}


def _owner(dump: str, key: str) -> str:
    for line in dump.splitlines():
        for words in (f"{key}: registered at ", f"{key}: fallthrough registered at "):
            if line.startswith(words):
                place = line.removeprefix(words).split(" :: ")[0]
                if place.startswith("planish"):
                    return "planish"
                return "torch" if "/aten/src/ATen/Register" in place else place
    return "torch's composition"


def _print_gpu(result: dict[str, Any]) -> None:
    gpu = result["gpu"]
    driver, nvrtc = gpu["driver"], gpu["nvrtc"]
    print(f"gpu       driver {driver['version'] or 'none: ' + driver['problem']}")
    print(f"          NVRTC {nvrtc['version'] or 'none: ' + nvrtc['problem']}")
    for pack in gpu["packs"]["loaded"]:
        left = ", {left_out} left out: damaged, or of another planish" if pack["left_out"] else ""
        print(f"          pack {{path}}, {{kernels}} kernels{left}".format(**pack))
    for number, device in enumerate(gpu["devices"]):
        about = device.get("problem") or (
            f"compute capability {device['capability']}, "
            f"{device['multiprocessors']} multiprocessors"
        )
        print(f"          GPU {number}: {device['name']}, {about}")
    print(f"          kernels are kept in {gpu['cache'] or 'no folder'}")


def _print(result: dict[str, Any], verbose: bool) -> None:
    print(f"planish   {result['planish']}, Python {result['python']}, {result['machine']}")
    if "library" in result:
        found = result["library"]
        print(
            f"library   {found['path']} (version {found['version']}), CPU tier {found['cpu_tier']}"
        )
        _print_gpu(result)
    if "torch" in result:
        found = result["torch"]
        print(f"torch     {found['version']} (C ABI {found['abi']}), {found['threads']} threads")
        symbols = found["symbols"]
        present = sum(symbol["found"] for symbol in symbols)
        print(f"          {present} of {len(symbols)} functions found in libtorch")
        for symbol in symbols:
            if verbose or not symbol["found"]:
                state = "found  " if symbol["found"] else "MISSING"
                need = "" if symbol["found"] or symbol["required"] else " (can do without)"
                print(f"          {state} {symbol['name']}: {symbol['use']}{need}")
    for name, value in result["variables"].items():
        known = "" if variables.is_known(name) else ": planish has no such variable"
        print(f"variable  {name}={value}{known}")
    for name, owner in result.get("operators", {}).items():
        print(f"override  aten::{name} on CPU -> {owner}")
    for name, owner in result.get("cuda_operators", {}).items():
        before = result["cuda_before"][name]
        foreign = "" if before.startswith("torch") else f" (in front of {before})"
        print(f"override  aten::{name} on CUDA -> {owner}{foreign}")
    for name, place in result.get("calls", {}).items():
        print(f"call      {name}, on CPU -> {place}")
    for name, place in result.get("cuda_calls", {}).items():
        print(f"call      {name}, on CUDA -> {place}")
    for name, state in result.get("compile", {}).items():
        print(f"compile   {name}: {state}")
    for problem in result["problems"]:
        print(f"PROBLEM   {problem}")
    print("all well" if not result["problems"] else "planish cannot work here as it should")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="planish doctor", description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--verbose", action="store_true", help="name every function of libtorch")
    options = parser.parse_args(argv)
    result = report()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, options.verbose)
    return 1 if result["problems"] else 0
