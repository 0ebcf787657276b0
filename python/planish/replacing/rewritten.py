"""Blocks whose forward calls planish's fused functions, and back: a block's class changes, the
object stays.

The new class is a subclass of the block's, made here, whose forward is the library's own with some
statements changed (reading.py, rewriting.py), each after a probe (places.py). Attention processors
of diffusers, which are no modules, get their ``__call__`` so.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch
from planish.replacing import families, places, stages, swapped
from planish.replacing.forms import size_of
from planish.replacing.layers import Layer, assign, body_of, bound_forward, original_of
from planish.replacing.reading import Place, Reader
from planish.replacing.rewriting import Unreadable, parsed, rewritten
from torch import nn

__all__ = ["Left", "decide", "everything", "fuse", "holders", "places_of", "put"]

#: (what, why) of what stays apart in a block.
Left = tuple[str, str]


@functools.cache
def _tree(function: Any) -> ast.FunctionDef | str:
    try:
        return parsed(function)
    except Unreadable as error:
        return str(error)


def holders(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Blocks with norms of their own, and processors of attention: with the module that has the
    norms."""
    for module in model.modules():
        if any(stages.norm_form(child) is not None for child in module.children()):
            yield module, module
            processor = module.__dict__.get("processor")
            if processor is not None and not isinstance(processor, nn.Module):
                yield processor, module


def _method(holder: Any) -> str:
    return "forward" if isinstance(holder, nn.Module) else "__call__"


def _is_ours(holder: Any) -> bool:
    return isinstance(holder, _Rewritten)


class _Decision:
    """What a block's places become."""

    def __init__(self, holder: Any, module: Any) -> None:
        self.holder, self.module = holder, module
        self.helpers: dict[str, Any] = {}
        self.keys: list[Any] = []
        self.places: list[Place] = []
        self.left: dict[tuple[str, ...], Left] = {}
        self.cls = original_of(holder)
        self.function = getattr(self.cls, _method(holder))
        self.owners: list[str] = []
        self.tree = _tree(self.function)
        if isinstance(self.tree, str):
            return
        names = [one.arg for one in (*self.tree.args.posonlyargs, *self.tree.args.args)]
        self.owners = names[:1] if holder is module else names[1:2]
        self.tree = copy.deepcopy(self.tree)
        Reader(self.tree, self.owners, self._accept, self._likely).run()

    def _child(self, name: str) -> Any:
        return self.module._modules.get(name)

    def _accept(self, place: Place) -> str | None:
        norms = [self._child(name) for name in place.norms]
        if any(norm is None for norm in norms):
            return None
        chain = [self._child(name) for name in place.chain]
        if any(one is None for one in chain):
            return None
        kinds = [stages.chain_kind(one) for one in chain]
        if place.kind == "added":
            if not all(kind in ("none", "drop") for kind in kinds):
                return None
        elif chain and not any(kind in ("scale", "drop") for kind in kinds):
            return None
        pairs = self._proven(place, norms, chain)
        if isinstance(pairs, str):
            if pairs:
                self.left.setdefault(place.norms, (str(place), pairs))
            return None
        helper, key = places.helper_of(place, norms, chain, pairs)
        name = f"_planish_{len(self.helpers)}"
        self.helpers[name] = helper
        self.keys.append((place, key))
        self.places.append(place)
        return name

    def _proven(self, place: Place, norms: list[Any], chain: list[Any]) -> Any:
        forms = [stages.norm_form(norm) for norm in norms]
        if any(form is None for form in forms):
            if not any(self._is_norm(norm) for norm in norms):
                return ""
            return "the norm is not one over the last axis that runs on planish"
        if place.kind == "queries and keys":
            if type(norms[0]) is not type(norms[1]) or forms[0] != forms[1]:
                return "the two norms differ"
            if len({size_of(f, norm) for f, norm in zip(forms, norms, strict=True) if f}) > 1:
                return "the two norms differ in their widths"
            if any(getattr(norm, "bias", None) is not None for norm in norms):
                return "planish.qk_norm takes no bias"
        found, why = places.prove(place, norms, chain)
        own = {p.dtype for norm in norms for p in norm._parameters.values() if p is not None}
        return found if found and own <= {held for x, held in found if x == held} else why

    @staticmethod
    def _is_norm(module: Any) -> bool:
        return bool(swapped.form_of(module)) or families.why_not(module) is None

    def _likely(self, test: ast.expr) -> bool | None:
        """What the test gives for this block, where it asks for its settings alone."""
        names = {one.id for one in ast.walk(test) if isinstance(one, ast.Name)}
        if names != set(self.owners) or any(isinstance(one, ast.Call) for one in ast.walk(test)):
            return None
        expression = ast.fix_missing_locations(ast.Expression(copy.deepcopy(test)))
        try:
            code = compile(expression, "<test>", "eval")
            found = eval(code, {"__builtins__": {}}, {self.owners[0]: self.module})
        except Exception:
            return None
        self.keys.append(bool(found) if isinstance(found, bool) else None)
        return found if isinstance(found, bool) else None


class _Rewritten(Layer):
    """What the classes made here share."""

    _planish_places: tuple[Place, ...]

    @staticmethod
    def _planish_again(holder: Any) -> None:
        if isinstance(holder, nn.Module):  # of a processor it is not known whose it is
            put(holder, holder)


_classes: dict[Any, type] = {}


def _class(decision: _Decision) -> type:
    key = decision.cls, decision.function, tuple(decision.keys)
    if key not in _classes:
        assert isinstance(decision.tree, ast.FunctionDef)
        method = rewritten(decision.function, decision.tree, decision.helpers)
        cls = decision.cls
        places = tuple(_distinct(decision.places))
        body = body_of(cls, **{_method(decision.holder): method, "_planish_places": places})
        _classes[key] = type(cls.__name__, (_Rewritten, cls), body)
    return _classes[key]


def _distinct(found: list[Place]) -> list[Place]:
    """One for each norm, which may be in several branches: what does the most."""
    most: dict[tuple[str, ...], Place] = {}
    for place in found:
        had = most.get(place.norms)
        if had is None or len(str(place)) > len(str(had)):
            most[place.norms] = place
    return list(most.values())


def decide(holder: Any, module: Any) -> tuple[type | None, list[Left]]:
    """The class that fuses, or None, and what is left apart, with reasons. What the attributes of a
    block or of what it holds raise is a reason."""
    try:
        return _decide(holder, module)
    except Exception as error:
        why = f"looking at it raises {type(error).__name__}: {error}".splitlines()[0]
        return None, [("its norms", why)] if holder is module else []


def _decide(holder: Any, module: Any) -> tuple[type | None, list[Left]]:
    decision = _Decision(holder, module)
    if isinstance(decision.tree, str):
        return None, [("its norms", decision.tree)] if holder is module else []
    if isinstance(holder, nn.Module):
        why = bound_forward(holder)
        if "parametrizations" in holder._modules:  # whose properties are its own class's
            why = why or "its parameters are computed (torch.nn.utils.parametrize)"
        if why:
            return None, [("its norms", why)]
    fused = {name for place in decision.places for name in place.norms}
    left = [
        (", ".join(norms), f"{what}: {why}")
        for norms, (what, why) in decision.left.items()
        if not fused.intersection(norms)
    ]
    if holder is module:
        processor = module.__dict__.get("processor")
        fused |= {name for place in places_of(processor) for name in place.norms}
        fused |= {name for norms in decision.left for name in norms}
        left += [
            (name, "nothing right around it in this forward")
            for name, child in module._modules.items()
            if child is not None and stages.norm_form(child) is not None and name not in fused
        ]
    return (_class(decision) if decision.places else None), left


def put(holder: Any, module: Any) -> None:
    """Gives a block, or a processor, the forward that fuses, where there is one."""
    if _is_ours(holder) or isinstance(holder, torch.jit.ScriptModule):
        return
    cls, _ = decide(holder, module)
    if cls is not None:
        assign(holder, cls)


def fuse(model: nn.Module) -> None:
    """What :func:`planish.replace` does for ``fuse=True``."""
    for holder, module in list(holders(model)):
        put(holder, module)


def everything(model: nn.Module) -> Iterator[Any]:
    """Modules and processors of attention: all that may have a class of planish."""
    for module in model.modules():
        yield module
        processor = module.__dict__.get("processor")
        if processor is not None and not isinstance(processor, nn.Module):
            yield processor


def places_of(holder: Any) -> tuple[Place, ...]:
    """What its forward does in one."""
    return type(holder)._planish_places if _is_ours(holder) else ()
