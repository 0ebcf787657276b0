"""The PLANISH_ variables of the environment: what each is for, and which of those set mean nothing.

C reads them at the first use and says nothing of what it does not know. So it is said here: once
when the library is loaded (loaded.py), and by ``planish doctor``.
"""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["CPUS", "TIERS", "is_known", "misset", "set_here"]

#: Instruction sets by machine, the plainest first (src/cpu/dispatch.c).
TIERS = {
    "x86_64": ("portable", "avx2", "avx512", "avx512bf16"),
    "aarch64": ("portable", "neon"),
}
#: The rows of src/cpu/tuning.c.
CPUS = (
    *("generic", "generic_avx512", "intel", "intel_avx512", "zen3", "zen4", "zen5"),
    "neoverse",
)


def _one_of(*known: str) -> Callable[[str], str]:
    """Nothing, or what is wrong with the value."""

    def look(value: str) -> str:
        return "" if value in known or not value else f"known are {', '.join(known)}"

    return look


def _tier(value: str) -> str:
    return _one_of(*TIERS.get(platform.machine(), ("portable",)))(value)


def _folder_of_nvrtc(value: str) -> str:
    names = ("libnvrtc.so.13", "libnvrtc.so.12")
    if any((Path(value) / name).is_file() for name in names):
        return ""
    return f"this folder has neither {' nor '.join(names)}"


def _file(value: str) -> str:
    return "" if not value or Path(value).is_file() else "there is no such file"


def _anything(value: str) -> str:
    return ""


#: Each variable, and a function that says why a value means nothing.
_KNOWN: dict[str, Callable[[str], str]] = {
    "PLANISH_CPU_TIER": _tier,
    "PLANISH_CPU": _one_of(*CPUS),
    "PLANISH_CACHE_DIR": _anything,
    "PLANISH_NVRTC_PATH": _folder_of_nvrtc,
    "PLANISH_PACK": _file,
    "PLANISH_HUGE_PAGES": _one_of("0", "1"),
    "PLANISH_CHOICES": _file,
    "PLANISH_PEERS": _one_of("0", "1"),
    "PLANISH_LIBRARY": _anything,  # a file that does not load is an ImportError
    "PLANISH_BENCH_CLOCK": _one_of("wall", "cpu"),
    "PLANISH_BENCH_KEEPS_PAGES": _anything,
    "PLANISH_BENCH_ONEDNN": _file,
}


def set_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Every variable that is set and begins with PLANISH_, and its value."""
    return {name: environment[name] for name in sorted(environment) if name.startswith("PLANISH_")}


def is_known(name: str) -> bool:
    """Whether planish reads such a variable."""
    return name in _KNOWN


def misset(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those whose value means nothing, or whose name is nearly one of planish's, and a sentence
    that says so. A name that is like none of them is somebody else's."""
    found = {}
    for name, value in set_here(environment).items():
        why = ""
        if name in _KNOWN:
            why = _KNOWN[name](value)
        elif near := difflib.get_close_matches(name, _KNOWN, 1, 0.85):
            why = f"planish has no such variable; there is {near[0]}"
        if why:
            found[name] = f"{name}={value} means nothing: {why}"
    return found
