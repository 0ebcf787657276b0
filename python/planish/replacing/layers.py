"""planish's classes in the order of a module's classes: how one is put on, copied, and taken out
from wherever it is by then.

A layer is a class made at run time, before the class that a module had. What other libraries put on
top of it later (torch.nn.utils.parametrize, FSDP2) is a subclass of it, and stays: it is made once
more, over the class from before. A class is assigned in one step, and a layer keeps nothing on the
instance that its forward needs, so that a forward which another thread is in finishes as it began.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from planish.replacing.rewriting import remade
from torch import nn

__all__ = ["WAS", "Layer", "assign", "body_of", "bound_forward", "original_of", "planned", "take"]

#: In a module's __dict__: the class it had, where its class is one that users make, too.
WAS = "_planish_was"


class Layer:
    """Before the original class in the order of classes."""

    _planish_original: Any

    @staticmethod
    def _planish_again(holder: Any) -> None:
        """Looks at what was loaded from a pickle once more."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the original class has it, with its name for this one; a copy has this class again."""
        found = super().__reduce_ex__(protocol)
        if isinstance(found, str):
            return found
        make, given, state, *rest = found if len(found) > 2 else (*found, None)
        layer = _layer(type(self), None)
        make, *given = (self._planish_original if one is layer else one for one in (make, *given))
        again = type(self)._planish_again
        kept = _Kept(type(self))
        return _made, (make, tuple(given), kept, again, state is not None), state, *rest


class _Kept:
    """The class of what is copied. Of what is pickled, which knows the original alone, None."""

    def __init__(self, cls: Any = None) -> None:
        self.cls = cls

    def __deepcopy__(self, memo: Any) -> _Kept:
        return self

    def __reduce__(self) -> Any:
        return _Kept, ()


def _made(make: Any, given: Any, kept: _Kept, again: Any, has_state: bool) -> Any:
    """What ``make`` makes, which becomes planish's once it has its state."""
    new = make(*given)
    if has_state:
        cls: Any = type(new)
        new.__class__ = _stateless(cls, kept.cls, again)
    else:
        _finish(new, kept.cls, again)
    return new


def _finish(new: Any, kept: type | None, again: Callable[[Any], None]) -> None:
    if kept is not None and getattr(kept, "_planish_original", None) is type(new):
        new.__class__ = kept
    else:
        again(new)


@functools.cache
def _stateless(cls: Any, kept: Any, again: Callable[[Any], None]) -> type:
    """The class of an object until it gets its state."""

    def __setstate__(self: Any, state: Any) -> None:
        self.__class__ = cls
        if hasattr(cls, "__setstate__"):
            self.__setstate__(state)
        else:
            plain, slots = state if isinstance(state, tuple) else (state, None)
            self.__dict__.update(plain or {})
            for name, value in (slots or {}).items():
                setattr(self, name, value)
        _finish(self, kept, again)

    return type(cls.__name__, (cls,), {"__setstate__": __setstate__})


def body_of(original: Any, **more: Any) -> dict[str, Any]:
    """What a layer over this class has in its own __dict__: it goes by the same name."""
    names = ("__module__", "__qualname__", "__doc__")
    return (
        {name: getattr(original, name) for name in names} | {"_planish_original": original} | more
    )


# ---- The original class -------------------------------------------------------------------------


def _stands_for(cls: Any, was: Any) -> Any:
    """The class that this one stands for, if it is planish's; ``was``: what WAS says."""
    if "_planish_original" in cls.__dict__:
        return cls._planish_original
    return was if cls.__module__.partition(".")[0] == "planish" else None


def _layer(cls: Any, was: Any) -> Any:
    """The first class of planish in the order of these, or None."""
    return next((one for one in cls.__mro__ if _stands_for(one, was) is not None), None)


def original_of(holder: Any) -> Any:
    """The class before planish changed it; what others put on top of planish's is not in it."""
    cls, was = type(holder), _was(holder)
    while (layer := _layer(cls, was)) is not None:
        cls = _stands_for(layer, was)
        was = None if cls is was else was
    return cls


def _was(holder: Any) -> Any:
    return getattr(holder, "__dict__", {}).get(WAS)


def _without(cls: Any, was: Any, made: dict[Any, Any]) -> Any:
    """The class with planish's layers taken out from under what is on top of them."""
    while (layer := _layer(cls, was)) is not None:
        original = _stands_for(layer, was)
        cls = original if cls is layer else _rebuilt(cls, layer, original, made)
        was = None if original is was else was
    return cls


def _rebuilt(cls: Any, layer: Any, original: Any, made: dict[Any, Any]) -> Any:
    """A class like this one with ``original`` for ``layer`` among its bases."""
    if cls is layer:
        return original
    if not issubclass(cls, layer):
        return cls
    key = cls, original
    if key not in made:
        bases = (_rebuilt(base, layer, original, made) for base in cls.__bases__)
        members = dict(cls.__dict__)
        for name in ("__dict__", "__weakref__", "_abc_impl"):
            members.pop(name, None)
        new = type(cls)(cls.__name__, tuple(dict.fromkeys(bases)), members)
        instead = {cls: new, layer: original}
        for name, value in members.items():
            found = _instead(value, instead, {})
            if found is not value:
                setattr(new, name, found)
        made[key] = new
    return made[key]


def _instead(value: Any, classes: dict[Any, Any], seen: dict[int, Any]) -> Any:
    """A function that names one of the classes in its closure, as super() does, with the other
    class there; anything else as it is."""
    if isinstance(value, type):
        return classes.get(value, value)
    if isinstance(value, staticmethod | classmethod):
        inner = _instead(value.__func__, classes, seen)
        return value if inner is value.__func__ else type(value)(inner)
    if isinstance(value, property):
        was = value.fget, value.fset, value.fdel
        get, put, delete = (_instead(one, classes, seen) for one in was)
        return value if (get, put, delete) == was else property(get, put, delete, value.__doc__)
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    if id(value) not in seen:
        seen[id(value)] = value
        cells = [_cell(cell, classes, seen) for cell in value.__closure__]
        if any(one is not cell for one, cell in zip(cells, value.__closure__, strict=True)):
            seen[id(value)] = remade(value, value.__code__, tuple(cells))
    return seen[id(value)]


def _cell(cell: Any, classes: dict[Any, Any], seen: dict[int, Any]) -> Any:
    content = _content(cell)
    if not isinstance(content, type | types.FunctionType):
        return cell
    found = _instead(content, classes, seen)
    return cell if found is content else types.CellType(found)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


# ---- Putting on and taking out ------------------------------------------------------------------

#: Attributes of an instance that may be the class's forward, bound: accelerate's hooks keep it as
#: the second and, once they are removed, as the first.
_BOUND = ("forward", "_old_forward")


def _own_forwards(module: nn.Module) -> list[str]:
    held, own = module.__dict__, type(module).forward
    return [name for name in _BOUND if getattr(held.get(name), "__func__", None) is own]


def bound_forward(module: nn.Module) -> str:
    """Why a forward that is an attribute of the instance is in the way; empty where it is not."""
    if "forward" not in module.__dict__:
        return ""
    if _own_forwards(module):
        return ""
    return "its forward was replaced on the instance, by something other than its class"


def assign(holder: Any, cls: Any) -> None:
    """Changes the class of a module, or of what is none."""
    was: Any = type(holder)
    holder.__class__ = cls
    if not isinstance(holder, nn.Module):
        return
    instead = {was.forward: cls.forward}
    for one in was.__mro__:  # under what others put on top
        original = _stands_for(one, _was(holder))
        if original is not None:
            instead.setdefault(one.forward, original.forward)
    for name in _BOUND:
        if name in holder.__dict__:
            holder.__dict__[name] = _rebound(holder.__dict__[name], holder, instead, [])


def _rebound(value: Any, module: nn.Module, instead: dict[Any, Any], seen: list[Any]) -> Any:
    """A forward bound to the module as it is now bound; what wraps one is given it."""
    if isinstance(value, types.MethodType):
        now = instead.get(value.__func__)
        return value if now is None else types.MethodType(now, module)
    seen.append(value)
    for cell in value.__closure__ or () if isinstance(value, types.FunctionType) else ():
        content = _content(cell)
        if isinstance(content, types.MethodType | types.FunctionType) and content not in seen:
            cell.cell_contents = _rebound(content, module, instead, seen)
    return value


def planned(holders: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Of these what has layers of planish, with the class that it has without them; raises
    RuntimeError where a class on top of one cannot be made over another."""
    made: dict[Any, Any] = {}
    found = []
    for holder in holders:
        cls = type(holder)
        try:
            new = _without(cls, _was(holder), made)
        except Exception as error:  # whatever another library's class says to a new subclass
            raise RuntimeError(
                f"planish.restore: {cls.__module__}.{cls.__qualname__}, made over a class of "
                f"planish, cannot be made over the original ({error}); nothing was restored"
            ) from error
        if new is not cls or _was(holder) is not None:
            found.append((holder, new))
    return found


def take(found: Iterable[tuple[Any, Any]]) -> None:
    """Takes the layers out, as planned."""
    for holder, cls in found:
        assign(holder, cls)
        # What planish's forwards read on the instance goes after the class: they look (GroupNorm).
        for name in (WAS, "activation", "channels_last") if _was(holder) is not None else ():
            holder.__dict__.pop(name, None)
