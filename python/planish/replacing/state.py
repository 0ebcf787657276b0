"""What a call of a module may leave behind besides its result: attributes, buffers, parameters,
what its class and the functions around it hold, and numbers drawn.

A probe (probe.py) runs on copies whose attributes are their own, so that nothing of the model's
changes, and compares what is here before and after. Nothing here knows of norms.
"""

from __future__ import annotations

import collections
import copy
import random
import types
from collections.abc import Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import torch
from torch import Tensor, nn

__all__ = ["Changes", "Reads", "Watch", "changed", "functions", "outside"]
__all__ += ["own_attributes", "snapshot"]

#: More elements or members than this are compared by identity alone.
_LARGE = 1 << 20
_MANY = 1000
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
#: torch's own attributes of a module.
_TORCHS = frozenset(vars(nn.Module()))
_LISTS = (list, tuple, set, frozenset, collections.deque)


class Changes(Exception):
    """The module's forward does what a norm of planish does not do."""


def _top(value: Any) -> str:
    return str(type(value).__module__).partition(".")[0]


def _is_record(value: Any, package: str) -> bool:
    """Whether it is an object of the module's own package, or one that holds values alone."""
    if isinstance(value, nn.Module | type | types.ModuleType | types.FunctionType):
        return False
    own = _top(value) == package or isinstance(value, types.SimpleNamespace)
    return own and isinstance(getattr(value, "__dict__", None), dict)


# ---- Copies -------------------------------------------------------------------------------------


def _lacks_memory(value: Any) -> bool:
    """Of a plain tensor with elements: to read it would end the process."""
    plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
    return plain and not value.is_meta and value.numel() and not value.untyped_storage().nbytes()


def own_attributes(module: nn.Module, held: dict[str, Any]) -> dict[str, Any]:
    """``held`` of the module with copies of what a call could change, torch's own left out."""
    if any(_lacks_memory(v) for inside in module.modules() for v in vars(inside).values()):
        raise Changes(
            "its parameters have no memory now, as FSDP1 leaves those that are sharded: replace() "
            "comes before the wrapping"
        )
    package = type(module).__module__.partition(".")[0]
    return {name: v if name in _TORCHS else owned(v, package) for name, v in held.items()}


def owned(value: Any, package: str, depth: int = 0) -> Any:
    """The value, or a copy on the CPU of what a call could change in it."""
    if isinstance(value, _PLAIN) or depth > 3:
        return value
    if isinstance(value, Tensor):
        if value.is_meta or value.numel() > _LARGE or isinstance(value, nn.Parameter):
            return value
        return value.detach().cpu().clone()
    if isinstance(value, torch.Generator):
        return value.clone_state() if value.device.type == "cpu" else value
    if isinstance(value, random.Random):
        return copy.copy(value)
    if type(value) in (list, set, collections.deque) and len(value) <= _MANY:
        return type(value)(owned(one, package, depth + 1) for one in value)
    if isinstance(value, dict) and len(value) <= _MANY:
        new = copy.copy(value)
        for key, one in value.items():
            new[key] = owned(one, package, depth + 1)
        return new
    if _is_record(value, package):
        new = copy.copy(value)
        if new is not value and isinstance(getattr(new, "__dict__", None), dict):
            for name, one in list(vars(value).items()):
                new.__dict__[name] = owned(one, package, depth + 1)
        return new
    return value


# ---- Before and after ---------------------------------------------------------------------------


def _seen(value: Any, package: str, depth: int = 0) -> Any:
    """What two looks at the same value have in common while it does not change."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        small = not value.is_meta and value.layout is torch.strided and value.numel() <= _LARGE
        return _Bits(value) if small else (id(value), value._version)
    if isinstance(value, torch.Generator):
        return _Bits(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if depth <= 3:
        if isinstance(value, _LISTS) and len(value) <= _MANY:
            return type(value), [_seen(one, package, depth + 1) for one in value]
        if isinstance(value, dict) and len(value) <= _MANY:
            return type(value), [(k, _seen(v, package, depth + 1)) for k, v in value.items()]
        if _is_record(value, package):
            return id(value), _seen(vars(value), package, depth + 1)
    return (id(value), len(value)) if isinstance(value, (*_LISTS, dict)) else id(value)


class _Bits:
    """A tensor's bytes; NaN equals itself."""

    def __init__(self, tensor: Tensor) -> None:
        self.of = tensor.dtype, tuple(tensor.shape), tensor.requires_grad
        self.bytes = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Bits)
            and self.of == other.of
            and torch.equal(self.bytes, other.bytes)
        )

    __hash__ = None  # type: ignore[assignment]


_HELD = {"_parameters": "the parameter", "_buffers": "the buffer"}


def snapshot(module: nn.Module) -> dict[tuple[str, str], Any]:
    """What the module itself holds, by (kind, name); its children are not looked at."""
    package = type(module).__module__.partition(".")[0]
    found: dict[tuple[str, str], Any] = {}
    for name, value in module.__dict__.items():
        if name in _HELD:
            for inner, tensor in value.items():
                found[_HELD[name], inner] = _seen(tensor, package)
        elif name == "_modules":
            found["the children", ""] = [(n, id(child)) for n, child in value.items()]
        elif name == "training" or name not in _TORCHS:
            found["the attribute", name] = _seen(value, package)
    return found


def changed(before: dict[tuple[str, str], Any], after: dict[tuple[str, str], Any]) -> str:
    """What is another now, in words; empty where all is as it was."""
    for key in (*before, *after):
        if key not in before or key not in after or not _same(before[key], after[key]):
            kind, name = key
            return f"{kind} {name!r}" if name else kind
    return ""


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


# ---- What is around the class -------------------------------------------------------------------


def functions(cls: type[nn.Module]) -> Iterator[types.FunctionType]:
    """Functions that its author wrote: those of its classes but torch's and planish's, behind
    decorators, and the functions and autograd functions of the same file that they name."""
    found: dict[int, types.FunctionType] = {}
    waiting: list[tuple[Any, int]] = []
    for one in cls.__mro__:
        if one is not object and one.__module__.partition(".")[0] not in ("torch", "planish"):
            waiting += [(value, 0) for value in vars(one).values()]
    while waiting and len(found) < _MANY:
        value, depth = waiting.pop()
        if isinstance(value, property):
            waiting += [(part, depth) for part in (value.fget, value.fset)]
        value = getattr(value, "__func__", value)  # staticmethod, classmethod
        if isinstance(value, type) and issubclass(value, torch.autograd.Function):
            waiting += [(part, depth) for part in vars(value).values()]
        if not isinstance(value, types.FunctionType) or id(value) in found:
            continue
        found[id(value)] = value
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            waiting.append((wrapped, depth))
        for cell in value.__closure__ or ():
            waiting.append((_content(cell), depth))
        if depth < 3:
            for name in names_in(value.__code__):
                named = value.__globals__.get(name)
                if str(getattr(named, "__module__", "torch")).partition(".")[0] != "torch":
                    waiting.append((named, depth + 1))
    return iter(found.values())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def names_in(code: types.CodeType) -> set[str]:
    """Globals and attributes that the code names, and functions inside of it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found


def outside(cls: type[nn.Module]) -> dict[tuple[str, str], Any]:
    """Values that a call of the class may change though the module does not hold them: of its
    classes, of closures, and of the file that it stands in."""
    package = cls.__module__.partition(".")[0]
    found: dict[tuple[str, str], Any] = {}
    for one in cls.__mro__:
        if one is not object and one.__module__.partition(".")[0] not in ("torch", "planish"):
            for name, value in vars(one).items():
                if not name.startswith("__") and _is_value(value, package):
                    found[f"the attribute of {one.__name__}", name] = _seen(value, package)
    for function in functions(cls):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if _is_value(_content(cell), package):
                found["the variable", name] = _seen(_content(cell), package)
        for name in names_in(function.__code__):
            if name in function.__globals__ and _is_value(function.__globals__[name], package):
                found["the variable", name] = _seen(function.__globals__[name], package)
    return found


def _is_value(value: Any, package: str) -> bool:
    known = (*_PLAIN, *_LISTS, dict, Tensor, torch.Generator, random.Random)
    return isinstance(value, known) or _is_record(value, package)


class Reads(dict[str, Any]):
    """A module's buffers, and which of them were read."""

    def __init__(self, held: dict[str, Any]) -> None:
        super().__init__(held)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises Changes before numbers are drawn or other processes are asked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Changes("its forward draws random numbers")
        if "c10d" in func.namespace:
            raise Changes("its forward asks other processes")
        return func(*args, **(kwargs or {}))
