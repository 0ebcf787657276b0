"""Blocks that call a batch norm, add a residual and apply an activation: ResNets of torchvision and
timm, and others written like them.

Read from the source of the block's forward:

    v = self.norm(x)             then modules that are not there, or do nothing
    v = self.act(v)

    v = self.norm(x)             likewise; statements about other variables may stand between
    v += residual                or v = v + residual, v = residual + v
    v = self.act(v)

The block gets a subclass whose forward has one call in place of these. What is called looks at the
modules as they are by then: where one has hooks, is another than it was, or is given what planish
does not run, they are called one by one as the source has it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

import torch
from planish.replacing.batch_calls import NORMS, known_activation, norm_act, norm_add_act
from planish.replacing.layers import Layer, assign, body_of, bound_forward, original_of
from planish.replacing.rewriting import Unreadable, parsed, rewritten
from torch import nn

__all__ = ["count", "fuse", "put"]

# ---- Reading ------------------------------------------------------------------------------------


def _own(node: ast.AST) -> str | None:
    """The attribute, of ``self.attribute``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None


def _call_of(node: ast.AST | None) -> tuple[str, ast.expr] | None:
    """(attribute, argument) of ``self.attribute(argument)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    name = _own(node.func)
    return None if name is None else (name, node.args[0])


def _called(statement: ast.stmt) -> tuple[str, str, ast.expr] | None:
    """(v, attribute, argument) of ``v = self.attribute(argument)``, or of a return of it where the
    argument is v."""
    if isinstance(statement, ast.Return):
        call = _call_of(statement.value)
        is_name = call is not None and isinstance(call[1], ast.Name)
        return (call[1].id, *call) if call is not None and is_name else None  # type: ignore[attr-defined]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, call = statement.targets[0], _call_of(statement.value)
    return (target.id, *call) if isinstance(target, ast.Name) and call is not None else None


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _added(statement: ast.stmt, v: str) -> tuple[ast.expr, bool, bool] | None:
    """(residual, in place, v is first) of a sum that v becomes."""
    if isinstance(statement, ast.AugAssign):
        is_sum = isinstance(statement.target, ast.Name) and statement.target.id == v
        if is_sum and isinstance(statement.op, ast.Add) and v not in _names(statement.value):
            return statement.value, True, True
        return None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or target.id != v or not isinstance(value, ast.BinOp):
        return None
    if not isinstance(value.op, ast.Add):
        return None
    for first, one, other in ((True, value.left, value.right), (False, value.right, value.left)):
        if isinstance(one, ast.Name) and one.id == v and v not in _names(other):
            return other, False, first
    return None


class _Reader:
    """Rewrites the statements of one block's forward."""

    def __init__(self, module: nn.Module, tree: ast.FunctionDef, residuals: bool) -> None:
        self.module, self.tree, self.residuals = module, tree, residuals
        self.helpers: dict[str, Any] = {}
        self.found = 0
        self.settings: list[tuple[str, bool]] = []

    def run(self) -> None:
        self.tree.body = self._block(self.tree.body)

    def _child(self, name: str) -> Any:
        return self.module._modules.get(name)

    def is_norm(self, name: str) -> bool:
        return type(self._child(name)) in NORMS

    def does(self, name: str) -> bool:
        """Whether it is an activation that a norm can do."""
        child = self._child(name)
        return child is not None and known_activation(child) is not None

    def helper(self, function: Any) -> str:
        """A name for it in the new function."""
        name = f"_planish_{len(self.helpers)}"
        self.helpers[name] = function
        self.found += 1
        return name

    def _is_absent(self, statement: ast.stmt) -> bool:
        """``if self.attribute is not None: ...`` of one that is None."""
        if not isinstance(statement, ast.If) or statement.orelse:
            return False
        test = statement.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return False
        none, name = test.comparators[0], _own(test.left)
        if not isinstance(test.ops[0], ast.IsNot) or not isinstance(none, ast.Constant):
            return False
        if none.value is not None or name is None:
            return False
        absent = getattr(self.module, name, 0) is None
        self.settings.append((name, absent))
        return absent

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rest, done = list(statements), list[ast.stmt]()
        while rest:
            new = self._place(rest)
            if new is not None:
                done += new
                continue
            statement = _Nested(self).visit(rest.pop(0))
            for field in ("body", "orelse"):
                inner = getattr(statement, field, None)
                if isinstance(inner, list) and isinstance(statement, ast.If | ast.With):
                    setattr(statement, field, self._block(inner))
            done.append(statement)
        return done

    def _place(self, rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """The statements of a place, which are taken off ``rest``, made one call."""
        call = _called(rest[0])
        if isinstance(rest[0], ast.Return) or call is None or not self.is_norm(call[1]):
            return None
        v, norm, argument = call
        chain: list[str] = []
        between: list[ast.stmt] = []
        added: tuple[ast.expr, bool, bool] | None = None
        for length, statement in enumerate(rest[1:], 2):
            then = _called(statement)
            of_v = then is not None and then[0] == v and isinstance(then[2], ast.Name)
            if then is not None and of_v and then[2].id == v:  # type: ignore[attr-defined]
                if self.does(then[1]):
                    if added is not None and not self.residuals:
                        return None
                    made = self._made(v, norm, argument, chain, between, added, then[1], rest[0])
                    if isinstance(statement, ast.Return):
                        made[-1] = ast.copy_location(ast.Return(made[-1].value), statement)  # type: ignore[attr-defined]
                    del rest[:length]
                    return made
                if added is None and type(self._child(then[1])) is nn.Identity:
                    chain.append(then[1])
                    continue
                return None
            if added is None and (sum_ := _added(statement, v)) is not None:
                added = sum_
                continue
            if self._is_absent(statement):
                continue
            if added is not None or v in _names(statement) or not self._may_wait(statement):
                return None
            between.append(statement)
        return None

    @staticmethod
    def _may_wait(statement: ast.stmt) -> bool:
        """Whether the norm may be called behind it: an assignment, or one where something is."""
        inner = statement.body if isinstance(statement, ast.If) else [statement]
        return all(isinstance(one, ast.Assign) for one in inner) and not getattr(
            statement, "orelse", None
        )

    def _made(
        self,
        v: str,
        norm: str,
        argument: ast.expr,
        chain: list[str],
        between: list[ast.stmt],
        added: tuple[ast.expr, bool, bool] | None,
        act: str,
        at: ast.stmt,
    ) -> list[ast.stmt]:
        helper = self.helper(norm_act if added is None else norm_add_act(added[1], added[2]))
        own = {name: f"self.{name}" for name in (norm, act, *chain)}
        modules = "".join(f"{own[name]}, " for name in chain)
        residual = "" if added is None else ", None"
        text = f"{v} = {helper}({own[norm]}, ({modules}), {own[act]}, {v}{residual})"
        (one,) = ast.parse(text).body
        value: Any = one
        if added is not None:
            value.value.args[4] = added[0]
        before: list[ast.stmt] = []
        if between:
            (first,) = ast.parse(f"{v} = None").body
            first.value = argument  # type: ignore[attr-defined]
            before = [first, *between]
        else:
            value.value.args[3] = argument
        for statement in (*before[:1], one):
            for node in ast.walk(statement):
                ast.copy_location(node, at)
        return [*before, one]


class _Nested(ast.NodeTransformer):
    """``self.act(self.norm(x))`` in an expression."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def visit_Call(self, node: ast.Call) -> Any:
        outer = _call_of(node)
        inner = None if outer is None else _call_of(outer[1])
        self.generic_visit(node)
        if outer is None or inner is None:
            return node
        if not self.reader.does(outer[0]) or not self.reader.is_norm(inner[0]):
            return node
        norm, act = node.args[0].func, node.func  # type: ignore[attr-defined]
        helper = ast.Name(self.reader.helper(norm_act), ast.Load())
        arguments = [norm, ast.Tuple([], ast.Load()), act, node.args[0].args[0]]  # type: ignore[attr-defined]
        return ast.fix_missing_locations(ast.copy_location(ast.Call(helper, arguments, []), node))

    def _leave(self, node: Any) -> Any:
        return node

    # what is run under conditions has its statements looked at by the reader
    visit_If = visit_With = visit_For = visit_While = visit_FunctionDef = visit_Lambda = _leave


# ---- Classes ------------------------------------------------------------------------------------


class _Fused(Layer):
    """What the classes made here share."""

    _planish_fused: tuple[int, bool]

    @staticmethod
    def _planish_again(holder: Any) -> None:
        put(holder, type(holder).__dict__.get("_planish_fused", (0, True))[1])


_trees: dict[Any, ast.FunctionDef | None] = {}
_classes: dict[Any, type | None] = {}


def _tree(function: Any) -> ast.FunctionDef | None:
    if function not in _trees:
        try:
            _trees[function] = parsed(function)
        except Unreadable:
            _trees[function] = None
    found = _trees[function]
    return None if found is None else copy.deepcopy(found)


def _class(module: nn.Module, residuals: bool) -> type | None:
    cls: Any = original_of(module)
    tree = _tree(cls.forward)
    if tree is None or not tree.args.args or tree.args.args[0].arg != "self":
        return None
    reader = _Reader(module, tree, residuals)
    reader.run()
    if not reader.found:
        return None
    code = ast.dump(reader.tree)
    key = cls, cls.forward, code
    if key not in _classes:
        method = rewritten(cls.forward, reader.tree, reader.helpers)
        fused = reader.found, residuals
        body = body_of(cls, forward=method, _planish_fused=fused)
        _classes[key] = type(cls.__name__, (_Fused, cls), body)
    return _classes[key]


def put(module: Any, residuals: bool) -> None:
    """Gives a block the forward that fuses, where there is one."""
    if (
        isinstance(module, Layer | torch.jit.ScriptModule)
        or type(module).__module__.partition(".")[0] in ("torch", "planish")
        or bound_forward(module)
        or not any(type(child) in NORMS for child in module._modules.values())
    ):
        return
    cls = _class(module, residuals)
    if cls is not None:
        assign(module, cls)


def fuse(model: nn.Module, residuals: bool) -> None:
    """What :func:`planish.replace` does for ``activations=True``; ``residuals``: for ``fuse``."""
    for module in list(model.modules()):
        put(module, residuals)


def _fused(model: nn.Module) -> Iterator[int]:
    for module in model.modules():
        if isinstance(module, _Fused):
            yield module._planish_fused[0]


def count(model: nn.Module) -> int:
    """Activations that a norm does in a block of these."""
    return sum(_fused(model))
