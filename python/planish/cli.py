"""The planish command: doctor, bench, check, model, coverage, try, run, cache, pack.

Each sub-command is a module of its own, imported when it is asked for: ``planish doctor`` must work
where the others' needs are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

import planish

__all__ = ["main"]

#: Command -> module with main(argv) -> exit status, and what it does.
_COMMANDS = {
    "doctor": ("planish.doctor", "what planish finds on this machine, and whether it all fits"),
    "bench": ("planish.bench", "time planish beside torch and others, and check every result"),
    "check": ("planish.check", "each kernel on each tier: is it right, and how fast"),
    "cache": ("planish.cache", "the GPU kernels kept on disk: path, list, clear"),
    "pack": ("planish.pack", "GPU kernels compiled ahead of time, in one file without NVRTC"),
    "run": ("planish.run", "run an unchanged Python program with planish under torch"),
    "coverage": ("planish.coverage", "which norms of a model run on planish, and why others not"),
    "try": ("planish.trial", "your model before and after: what a step gains, in a minute"),
    "model": ("planish.model", "put planish under a real model, check it and time it"),
}


def _usage() -> str:
    lines = ["usage: planish <command> [options]", "", "commands:"]
    for name, (module, text) in _COMMANDS.items():
        if importlib.util.find_spec(module) is not None:
            lines.append(f"  {name:8}  {text}")
    lines += ["", "planish <command> --help tells a command's options.", "planish --version"]
    return "\n".join(lines)


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
    module_name = _COMMANDS[command][0]
    if importlib.util.find_spec(module_name) is None:
        print(f"planish: {command} is not part of this installation", file=sys.stderr)
        return 2
    status = importlib.import_module(module_name).main(rest)
    return int(status or 0)
