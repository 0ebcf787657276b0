"""What a figure depends on besides the code: the machine, the versions, the load. Reads only."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .providers.base import Provider

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "asimd", "asimdhp")


def _cpuinfo(key: str) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return ""


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def memory_available(device: str = "cpu") -> int:
    """Bytes of memory that can be had without swapping, or of the GPU."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info()[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def describe() -> dict[str, Any]:
    """The machine and its state now."""
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    described: dict[str, Any] = {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in FLAGS if flag in flags],
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m_5m_15m": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        described["gpu"] = torch.cuda.get_device_name()
    return described


def versions(providers: Iterable[Provider]) -> dict[str, str]:
    """The version of every provider that is there and has one."""
    found = {}
    for provider in providers:
        if provider.missing() is None:
            version = provider.version()
            if version:
                found[provider.name] = version
    return found
