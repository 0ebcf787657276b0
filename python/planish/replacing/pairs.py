"""Which attributes of a block are called one right behind the other: a norm and its activation, a
convolution and its norm.

Read from the source of the block's class: one that is called once in the whole class, right after
the other, on what that returned. A class whose source says something else, or is not to be had, has
no such pairs.
"""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["of", "once"]


def _sources(cls: type[nn.Module]) -> list[ast.AST] | None:
    trees: list[ast.AST] = []
    for base in cls.__mro__:
        if base is nn.Module:
            break
        if base.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc"):
            continue
        try:
            trees.append(ast.parse(textwrap.dedent(inspect.getsource(base))))
        except (OSError, TypeError, SyntaxError, IndentationError):
            return None
    return trees


def _functions(trees: list[ast.AST]) -> list[ast.FunctionDef]:
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [function for function in found if function.name != "__init__"]


def _own(node: ast.AST) -> str | None:
    """The attribute, of ``self.attribute``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None


def _call(statement: ast.stmt) -> tuple[str, str] | None:
    """Variable and attribute of ``v = self.attribute(v, ...)``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call) or not call.args:
        return None
    attribute, first = _own(call.func), call.args[0]
    if attribute is None or not isinstance(first, ast.Name) or first.id != target.id:
        return None
    return target.id, attribute


def _made(statement: ast.stmt) -> tuple[str, str] | None:
    """Variable and attribute of ``v = self.attribute(...)``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
        return None
    attribute = _own(call.func)
    return None if attribute is None else (target.id, attribute)


def _ends(statement: ast.stmt, variable: str) -> list[str] | None:
    """The attributes that the statement's paths end in calling on the variable; None where a path
    ends otherwise. ``if self.norm:`` without an else is about a norm that is there."""
    if isinstance(statement, ast.If):
        found: list[str] = []
        for branch in (statement.body, statement.orelse):
            if not branch:
                continue
            ends = _ends(branch[-1], variable)
            if ends is None:
                return None
            found += ends
        if not statement.orelse and _own(statement.test) not in found:
            return None
        return found
    call = _call(statement)
    return [call[1]] if call is not None and call[0] == variable else None


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                yield statements


#: What may be asked of a module without a look at what it holds.
_SIZES = ("in_channels", "out_channels", "kernel_size", "stride", "groups", "num_features")


def _uses(functions: list[ast.FunctionDef]) -> collections.Counter[str | None]:
    """How often each attribute is named, but for tests of whether it is there and for its sizes."""
    nodes = [node for function in functions for node in ast.walk(function)]
    tests = [node.test for node in nodes if isinstance(node, ast.If)]
    free = {id(test.left if isinstance(test, ast.Compare) else test) for test in tests}
    free |= {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in _SIZES}
    return collections.Counter(_own(node) for node in nodes if id(node) not in free)


@functools.cache
def of(cls: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of names of a norm and its activation."""
    functions = _functions(_sources(cls) or [])
    uses = _uses(functions)
    found: list[tuple[str, str]] = []
    for function in functions:
        for statements in _blocks(function):
            for before, statement in itertools.pairwise(statements):
                call = _call(statement)
                ends = None if call is None else _ends(before, call[0])
                if call is None or not ends or len(set(ends)) != 1 or uses[call[1]] != 1:
                    continue
                if uses[ends[0]] == len(ends):
                    found.append((ends[0], call[1]))
    return tuple(found)


def _is_alone(node: ast.AST) -> bool:
    """Whether it is a call of one argument."""
    return isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords


def _around(node: ast.AST) -> tuple[str, str] | None:
    """Both attributes of ``self.second(self.first(...))``."""
    if not _is_alone(node):
        return None
    assert isinstance(node, ast.Call)
    inner = node.args[0]
    second = _own(node.func)
    first = _own(inner.func) if isinstance(inner, ast.Call) else None
    return None if first is None or second is None else (first, second)


@functools.cache
def once(cls: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of names of a module that is called once, on anything, and of one that is called once
    on what that returns and nothing else sees: ``v = self.first(x)`` and then ``v =
    self.second(v)``, or one around the other. What returns nothing is not looked at, as what sets
    the weights at the beginning."""
    functions = [
        function
        for function in _functions(_sources(cls) or [])
        if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    ]
    uses = _uses(functions)
    found: list[tuple[str, str]] = []
    for function in functions:
        found += [pair for pair in map(_around, ast.walk(function)) if pair is not None]
        for statements in _blocks(function):
            for before, statement in itertools.pairwise(statements):
                made, call = _made(before), _call(statement)
                if made is None or call is None or made[0] != call[0]:
                    continue
                if _is_alone(statement.value):  # type: ignore[attr-defined]
                    found.append((made[1], call[1]))
    return tuple((first, second) for first, second in found if uses[first] == uses[second] == 1)
