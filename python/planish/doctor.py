"""``planish doctor``: what planish finds on this machine, and whether it all fits.

Exit status 0: everything planish needs is there. 1: something is missing; the report says what.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from typing import Any

import planish
from planish._library import library

__all__ = ["main", "report"]


def report() -> dict[str, Any]:
    """Everything doctor prints, as data; ``problems`` lists what keeps planish from working."""
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
        import torch
    except ImportError as error:
        problems.append(f"torch does not import ({error}): only the C library can be used")
        return result
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
        result["operators"] = _operators(problems)
    return result


def _operators(problems: list[str]) -> dict[str, str]:
    """Enables planish for a moment and looks at who owns each operator then."""
    import torch
    from planish import _enable

    owners: dict[str, str] = {}
    try:
        with _enable.enabled():
            for names in _enable._REPLACED.values():
                for name in names:
                    owners[name] = _owner(torch._C._dispatch_dump(f"aten::{name}"))
    except RuntimeError as error:
        problems.append(str(error))
    return owners


def _owner(dump: str) -> str:
    for line in dump.splitlines():
        if line.startswith("CPU: registered at "):
            place = line.removeprefix("CPU: registered at ").split(" :: ")[0]
            return "planish" if place.startswith("planish") else place
    return "torch's composition"


def _print(result: dict[str, Any], verbose: bool) -> None:
    print(f"planish   {result['planish']}, Python {result['python']}, {result['machine']}")
    if "library" in result:
        found = result["library"]
        print(
            f"library   {found['path']} (version {found['version']}), CPU tier {found['cpu_tier']}"
        )
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
    for name, owner in result.get("operators", {}).items():
        print(f"override  aten::{name} on CPU -> {owner}")
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
