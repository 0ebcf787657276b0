"""Puts planish's modules under the names of Apex, where Apex is missing, and takes them away again.

A finder in sys.meta_path answers for those names: it makes real modules, with specs, whose contents
are those of planish.apex. It is asked last, after all that is installed, but where it was told to
stand in front. Nothing is imported before the program imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["install", "installed", "uninstall"]

_log = logging.getLogger("planish")

#: Modules of Apex, each planish.apex.<the same> here, and whether it is a package.
_MODULES = {
    "apex": True,
    "apex._autocast_utils": False,
    "apex.normalization": True,
    "apex.normalization.fused_layer_norm": False,
    "apex.contrib": True,
    "apex.contrib.layer_norm": True,
    "apex.contrib.layer_norm.layer_norm": False,
    "apex.contrib.group_norm": True,
    "apex.contrib.group_norm.group_norm": False,
    "apex.contrib.groupbn": True,
    "apex.contrib.groupbn.batch_norm": False,
    "apex.contrib.cudnn_gbn": True,
    "apex.contrib.cudnn_gbn.batch_norm": False,
    "apex.parallel": True,
}
#: Apex's extension modules, which are at the top.
_EXTENSIONS = ("fused_layer_norm_cuda", "fast_layer_norm")


def _why_not(name: str) -> str:
    return (
        f"No module named {name!r}: this apex is planish's (planish.apex.install), which has "
        "apex.normalization, SyncBatchNorm of apex.parallel, and of apex.contrib layer_norm, "
        "groupbn, cudnn_gbn and group_norm alone; NVIDIA Apex itself is not installed"
    )


def _home(name: str) -> str:
    return (
        "planish.apex" + name.removeprefix("apex") if name in _MODULES else f"planish.apex.{name}"
    )


class _Loader:
    """Makes a module with the contents of planish's."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        contents = module.__dict__
        if name == "apex":
            contents.update(__doc__=_TEXT, __all__=["normalization"], __getattr__=_apex_attribute)
            return
        home = importlib.import_module(_home(name))
        for key, value in vars(home).items():
            is_part = isinstance(value, ModuleType) and value.__name__.startswith("planish.apex.")
            if not is_part and not (key.startswith("__") and key not in ("__doc__", "__all__")):
                contents[key] = value
        own: Any = vars(home).get("__getattr__")
        if own is not None:
            contents["__getattr__"] = own
            importlib.import_module("planish.apex._custom_ops").define()
        if name in _WHOLE:
            for part in _parts(name):
                importlib.import_module(part)


#: Packages that import their modules, so that those are attributes at once.
_WHOLE = (
    "apex.normalization",
    *(f"apex.contrib.{name}" for name in ("layer_norm", "group_norm", "groupbn", "cudnn_gbn")),
)


def _parts(package: str) -> list[str]:
    return [name for name in _MODULES if name.rpartition(".")[0] == package]


_TEXT = "NVIDIA Apex's normalization layers, on planish."


def _apex_attribute(name: str) -> object:
    if f"apex.{name}" in _MODULES:  # `import apex` alone has them, and imports no torch
        return importlib.import_module(f"apex.{name}")
    raise AttributeError(f"module 'apex' has no attribute {name!r}: {_why_not('apex.' + name)}")


class _Finder:
    """Of sys.meta_path."""

    def __init__(self, in_front: bool) -> None:
        self.in_front = in_front

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name in _EXTENSIONS:
            return _spec(name) if not self.in_front else None
        if not name.startswith("apex") or (
            name != "apex" and not _is_ours(sys.modules.get("apex"))
        ):
            return None
        if name in _MODULES:
            return _spec(name)
        if not name.startswith("apex."):
            return None
        # Not name=name: `from apex import amp` would then have another sentence than this. And
        # "apex" is what Python itself names where it is missing.
        raise ModuleNotFoundError(_why_not(name), name="apex")


def _spec(name: str) -> ModuleSpec:
    is_package = _MODULES.get(name, False)
    loader: Any = _Loader()
    return ModuleSpec(name, loader, origin=f"planish ({_home(name)})", is_package=is_package)


def _is_ours(module: ModuleType | None) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Loader)


#: The finders in sys.meta_path, and what stood in sys.modules before install(shadow=True).
_finders: list[_Finder] = []
_replaced: dict[str, ModuleType] = {}


def _belongs(name: str) -> bool:
    return name == "apex" or name.startswith("apex.")


def _other_apex() -> tuple[str, bool] | None:
    """Where an apex that is not planish's is, and whether it has apex.normalization."""
    loaded = sys.modules.get("apex")
    if loaded is not None and not _is_ours(loaded):
        spec = loaded.__spec__
        path = list(getattr(loaded, "__path__", []))
        where = getattr(loaded, "__file__", None) or (path[0] if path else "sys.modules")
        has = "apex.normalization" in sys.modules
    else:
        spec = _others_spec("apex")
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
        where = spec.origin or (path[0] if path else "sys.meta_path")
        has = False
    return where, has or PathFinder.find_spec("apex.normalization", path) is not None


def _others_spec(name: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if not isinstance(finder, _Finder) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def install(shadow: bool = False) -> bool:
    """Lets ``import apex`` find planish's normalization layers in this process, from now on.

    A real Apex, one that has ``apex.normalization``, is left alone, but with ``shadow=True``; what
    it lacks of its extension modules ``fused_layer_norm_cuda`` and ``fast_layer_norm`` (a build
    without ``--cuda_ext``) it gets from planish in any case, so that its own Python then runs on
    planish. A package that is called apex and has no ``apex.normalization`` (such as the unrelated
    one of the Python package index, or a folder of that name) is stood in front of, with a warning
    to the logger ``planish``; where it is imported already it is left alone, but with
    ``shadow=True``.

    With ``shadow=True`` modules of an Apex that are imported already leave ``sys.modules`` until
    :func:`uninstall`; who holds them keeps them. Call this before importing what looks for Apex:
    timm looks once, when it is imported. Calling it again changes nothing but a ``shadow`` of false
    into true.

    Returns whether ``apex.normalization`` is planish's now. Raises nothing; imports nothing.

    Example:

    >>> planish.apex.install(), planish.apex.installed()
    (True, True)
    >>> from apex.normalization import FusedLayerNorm
    >>> planish.apex.uninstall()
    """
    if not any(not finder.in_front for finder in _finders):
        _add(_Finder(in_front=False))
    other = _other_apex()
    if other is None or installed():
        return True
    where, is_real = other
    is_loaded = "apex" in sys.modules
    if not shadow and (is_real or is_loaded):
        kind = "Apex" if is_real else "a package that is called apex and is not NVIDIA's"
        _log.info("planish leaves %s at %s as it is", kind, where)
        return False
    if not is_real:
        _log.warning("planish's apex stands in front of %s, which has no normalization", where)
    for name in [name for name in sys.modules if _belongs(name)]:
        _replaced[name] = sys.modules.pop(name)
    _add(_Finder(in_front=True))
    return True


def _add(finder: _Finder) -> None:
    meta_path: list[Any] = sys.meta_path
    meta_path.insert(0 if finder.in_front else len(meta_path), finder)
    _finders.append(finder)
    importlib.invalidate_caches()


def installed() -> bool:
    """Whether ``import apex`` finds planish's now.

    Example:

    >>> planish.apex.installed()
    False
    """
    if not _finders:
        return False
    if "apex" in sys.modules:
        return _is_ours(sys.modules["apex"])
    return any(finder.in_front for finder in _finders) or _others_spec("apex") is None


def uninstall() -> None:
    """Takes the names away again, and gives those back that stood there before. What has been
    imported from them goes on working.

    Example:

    >>> planish.apex.uninstall()  # does nothing where nothing is installed
    """
    meta_path: list[Any] = sys.meta_path
    for finder in _finders:
        if finder in meta_path:
            meta_path.remove(finder)
    _finders.clear()
    for name, module in list(sys.modules.items()):
        if (_belongs(name) or name in _EXTENSIONS) and _is_ours(module):
            del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()
