"""Whether planish's kernels can run on a device: what an optional dependency is asked first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planish.library.loaded import library

if TYPE_CHECKING:
    import torch

__all__ = ["is_available"]

#: Devices on which they can. What is not here is asked again: a pack may be loaded later.
_found: set[torch.device] = set()


def is_available(device: str | int | torch.device = "cpu") -> bool:
    """Whether planish's kernels can run on ``device``, such as ``"cpu"``, ``"cuda"`` (the current
    GPU), ``"cuda:1"`` or ``x.device``.

    True on a CPU if planish's library and PyTorch 2.10 or newer are there; on a GPU also if the
    driver, compute capability 8.0 and NVRTC, or a pack of kernels, are. False for everything else,
    a device or a word that planish does not know included. No exception is raised, and it does not
    matter whether planish is enabled.

    The first question about a GPU loads the driver and NVRTC, after which a process that is forked
    cannot use the GPU; a True is kept.
    ``planish doctor`` says why the answer is False.

    Example:

    >>> planish.is_available(), planish.is_available(torch.device("cpu"))
    (True, True)
    >>> planish.is_available("mps")
    False
    """
    try:
        import torch

        where = torch.device(device)
        if where.type == "cuda" and where.index is None:
            current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
            where = torch.device("cuda", current)
        if where not in _found:
            if not _runs_on(where):
                return False
            _found.add(where)
    except Exception:  # whatever the reason, planish cannot be used there
        return False
    return True


def _runs_on(device: torch.device) -> bool:
    import torch

    lib = library()
    if any(symbol.required and not symbol.found for symbol in lib.symbols()):
        return False
    if device.type == "cpu":
        return True
    if device.type != "cuda" or lib.cuda_is_missing() or not torch.cuda.is_available():
        return False
    gpu = lib.gpu_report()
    if device.index >= len(gpu["devices"]) or "problem" in gpu["devices"][device.index]:
        return False
    return "problem" not in gpu["nvrtc"] or bool(gpu["packs"]["loaded"])
