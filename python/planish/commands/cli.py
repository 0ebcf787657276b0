"""The planish command: doctor, bench, check, model, coverage, try, run, cache, pack.

Each sub-command is a module of its own, imported when it is asked for: ``planish doctor`` must work
where the others' needs are not installed. Their options are in command_lines.py, or where nothing
beside the library is needed in the module itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import planish
from planish.commands import command_lines

__all__ = ["main"]

#: Command -> module with main(argv) -> exit status, and what it does.
_COMMANDS = {
    "doctor": (
        "planish.commands.doctor",
        "what planish finds on this machine, and whether it all fits",
    ),
    "bench": ("planish.bench", "time planish beside torch and others, and check every result"),
    "check": ("planish.check", "each kernel on each tier: is it right, and how fast"),
    "cache": ("planish.commands.cache", "the GPU kernels kept on disk: path, list, clear"),
    "pack": (
        "planish.commands.pack",
        "GPU kernels compiled ahead of time, in one file without NVRTC",
    ),
    "run": ("planish.commands.run", "run an unchanged Python program with planish under torch"),
    "coverage": (
        "planish.commands.coverage",
        "which norms of a model run on planish, and why others not",
    ),
    "try": (
        "planish.commands.trial",
        "your model before and after: what a step gains, in a minute",
    ),
    "model": ("planish.demo.command", "put planish under a real model, check it and time it"),
}

#: What a missing package is called, and how one gets it.
_PACKAGES = {
    "torch": "PyTorch 2.10 or newer, and there is none: pip install torch",
    "numpy": "NumPy, and there is none: pip install numpy",
}


#: What a command needs whatever it is asked to do. NumPy first: torch warns where it is missing.
_NEEDS = {
    "bench": ("numpy", "torch"),
    "check": ("numpy", "torch"),
    "model": ("numpy", "torch"),
    "coverage": ("torch",),
    "try": ("torch",),
}


def _usage() -> str:
    lines = ["usage: planish <command> [options]", "", "commands:"]
    lines += [f"  {name:8}  {text}" for name, (_, text) in _COMMANDS.items()]
    lines += ["", "planish <command> --help tells a command's options.", "planish --version"]
    return "\n".join(lines)


def _lacking(error: ImportError) -> str:
    """What is not there, in one sentence; an import that fails inside of planish is no such."""
    package = (error.name or "").partition(".")[0]
    if package == "planish":
        raise error
    if isinstance(error, ModuleNotFoundError) and package:
        return f"needs {_PACKAGES.get(package, f'{package}, and it is not installed')}"
    return str(error).removeprefix("planish: ")


def _run(command: str, rest: list[str]) -> int:
    try:
        if command_lines.is_here(command, rest):
            command_lines.parse(command, rest)  # before torch is asked for
        for package in _NEEDS.get(command, ()):
            importlib.import_module(package)
        return int(importlib.import_module(_COMMANDS[command][0]).main(rest) or 0)
    except command_lines.UsageError as error:
        print(f"planish {command}: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"planish {command}: {_lacking(error)}", file=sys.stderr)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"planish {planish.__version__}")
        return 0
    command, *rest = arguments
    if command not in _COMMANDS:
        print(f"planish: no command {command!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    return _run(command, rest)
