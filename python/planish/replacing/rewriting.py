"""A function with some statements changed, made of its own source.

The source has to be what runs: compiled again as it stands it must give the function's own
bytecode, or nothing is changed. The new function has the old one's globals, closure, defaults,
signature and lines, so that tracebacks and torch.compile show the library's text.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Unreadable", "parsed", "remade", "rewritten"]


class Unreadable(Exception):
    """Why a function cannot be read."""


def _shape(function: types.FunctionType, tree: ast.FunctionDef) -> None:
    """Leaves what is set from the old function: defaults, annotations, decorators."""
    tree.decorator_list, tree.returns = [], None
    arguments = tree.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in [*every, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [
        None if one is None else ast.Constant(None) for one in arguments.kw_defaults
    ]


def rewritten(
    function: types.FunctionType, tree: ast.FunctionDef, helpers: Mapping[str, Callable[..., Any]]
) -> types.FunctionType:
    """The function with this tree, in which the names of ``helpers`` stand for these. Globals and
    cells are the old one's, so that each sees what the other writes to a variable."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: types.CellType(helper) for name, helper in helpers.items()}
    # Parsed and not built, for the fields that a version of Python has.
    module = ast.parse(f"def _planish_make({', '.join(cells)}): return {tree.name}")
    maker: Any = module.body[0]
    for node in ast.walk(maker):
        if hasattr(node, "lineno"):
            ast.copy_location(node, tree)
    maker.body.insert(0, tree)
    ast.fix_missing_locations(module)
    flags = function.__code__.co_flags & _FUTURE
    code = compile(module, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    for _ in ("_planish_make", "the function in it"):
        (code,) = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return remade(function, code, tuple(cells[name] for name in code.co_freevars))


_FUTURE = functools.reduce(
    lambda one, other: one | other,
    (getattr(__import__("__future__"), n).compiler_flag for n in ("annotations",)),
)


def parsed(function: Any) -> ast.FunctionDef:
    """The tree of the function's source; raises Unreadable."""
    if not isinstance(function, types.FunctionType):
        raise Unreadable("its forward is no function of Python")
    if hasattr(function, "__wrapped__"):
        raise Unreadable("its forward is wrapped in a decorator")
    try:
        lines, first = inspect.getsourcelines(function)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise Unreadable("its source is not to be had") from error
    if not isinstance(tree, ast.FunctionDef):
        raise Unreadable("its source is not to be had")
    ast.increment_lineno(tree, first - 1)
    _shape(function, tree)
    try:
        again = rewritten(function, tree, {}).__code__
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise Unreadable("its source cannot be compiled by itself") from error
    if _instructions(again) != _instructions(function.__code__):
        raise Unreadable("what runs is not its source")
    return tree


#: How a function of an imported name is called depends on the import being in the same source.
_ALIKE = {"LOAD_METHOD": "LOAD_ATTR"}
_NOTHING = {"NOP", "PUSH_NULL", "CACHE", "EXTENDED_ARG"}


def _instructions(code: types.CodeType) -> list[Any]:
    """What a function does, step by step, and in functions inside of it."""
    found: list[Any] = [code.co_varnames, code.co_freevars]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    for one in dis.get_instructions(code):
        if one.opname in _NOTHING:
            continue
        value: Any = None if one.opcode in jumps else one.argval
        if isinstance(value, types.CodeType):
            value = _instructions(value)
        found.append((_ALIKE.get(one.opname, one.opname), repr(value)))
    return found


def remade(
    function: types.FunctionType, code: types.CodeType, closure: tuple[types.CellType, ...]
) -> types.FunctionType:
    """The function with other code and other cells, and everything else its own."""
    made = types.FunctionType(code, function.__globals__, function.__name__, None, closure)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    for name in ("__module__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(function, name))
    made.__dict__.update(function.__dict__)
    return made
