"""Statements and expressions that replacing/reading.py looks for, each by itself.

Nothing here knows of a function as a whole.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "Place",
    "asks_for_none",
    "assigned",
    "attribute",
    "before_sum",
    "gate",
    "is_pure",
    "load",
    "modulation",
    "module_call",
    "names",
    "partner",
    "reads",
    "replaced",
    "scaling",
    "unconditional",
    "under_views",
    "unpack",
]


@dataclasses.dataclass(frozen=True)
class Place:
    """One place of a source where a norm and what stands around it can be one function."""

    #: ``sum``: (v, y) = (a + b, norm(a + b)); ``added``: a + norm(x); ``modulated``: norm(x) * (1 +
    #: scale) + shift, after a sum where ``residual``; ``queries and keys``.
    kind: str
    #: The variable that the norms are attributes of: ``self``, or ``attn`` of a processor.
    owner: str
    #: Attributes: the norm, or the norms of queries and keys.
    norms: tuple[str, ...]
    #: Modules between the other summand and the sum, outermost first: LayerScale and the like. Of
    #: ``added``: between the norm and the sum.
    chain: tuple[str, ...] = ()
    residual: bool = False
    gate: bool = False
    #: Of ``modulated``: whether there is one.
    shift: bool = True

    def __str__(self) -> str:
        """In a few words, for a report."""
        if self.kind == "queries and keys":
            return "norms of queries and keys"
        if self.kind == "added":
            return "norm + add"
        words = ["add"] if self.residual else []
        modulation = ["modulation" if self.shift else "scale"] if self.kind == "modulated" else []
        words = ["gate", *words] if self.gate else words
        if self.chain:
            words = ["factors", *words]
        return " + ".join([*words, "norm", *modulation])


_PURE_METHODS = {
    *("unsqueeze", "squeeze", "view", "reshape", "to", "float", "type_as", "transpose", "permute"),
    *("flatten", "unflatten", "contiguous"),
}


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def attribute(node: ast.AST) -> tuple[str, str] | None:
    """Variable and attribute of ``variable.attribute``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return None


def module_call(node: ast.AST) -> tuple[str, str] | None:
    """Variable and attribute of ``variable.attribute(argument)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    return None if isinstance(node.args[0], ast.Starred) else attribute(node.func)


def names(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def reads(node: ast.AST) -> set[str]:
    """Names that must be set before it: also those of ``name += 1`` and ``del name``."""
    changed = {
        one.target.id
        for one in ast.walk(node)
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)
    }
    return names(node) | names(node, ast.Del) | changed


#: Parts of an expression that changes nothing.
_PLAIN: tuple[type[ast.AST], ...] = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def is_pure(node: ast.AST) -> bool:
    """Whether it changes nothing and may be evaluated a little earlier."""
    if isinstance(node, ast.Call):
        called = node.func
        if not (isinstance(called, ast.Attribute) and called.attr in _PURE_METHODS):
            return False
    elif not isinstance(node, _PLAIN):
        return False
    return all(is_pure(child) for child in ast.iter_child_nodes(node))


def unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement or expression that are evaluated whenever it is."""
    yield node
    if isinstance(node, ast.IfExp):
        yield from unconditional(node.test)
    elif isinstance(node, ast.BoolOp):
        yield from unconditional(node.values[0])
    elif isinstance(node, ast.Compare):
        yield from unconditional(node.left)
    elif not isinstance(
        node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ):
        for child in ast.iter_child_nodes(node):
            yield from unconditional(child)


def assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Name and value of ``name = value``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id, statement.value
    return None


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().generic_visit(node)


def replaced(statement: ast.stmt, old: ast.AST, new: ast.expr) -> ast.stmt:
    result: Any = _Replace(old, new).visit(statement)
    return result  # type: ignore[no-any-return]


def _one_plus(node: ast.expr) -> ast.expr | None:
    """``scale`` of ``1 + scale``, also of ``(1 + scale)[:, None]``."""
    if isinstance(node, ast.Subscript):
        inner = _one_plus(node.value)
        return None if inner is None else ast.Subscript(inner, node.slice, ast.Load())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Constant) and type(one.value) in (int, float) and one.value == 1:
                return other
    return None


def modulation(
    node: ast.AST, is_base: Callable[[ast.expr], bool]
) -> tuple[ast.expr, ast.expr] | None:
    """Scale and shift of ``base * (1 + scale) + shift``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return None
    scale = scaling(node.left, is_base)
    return (scale, node.right) if scale is not None and is_pure(node.right) else None


def scaling(node: ast.AST, is_base: Callable[[ast.expr], bool]) -> ast.expr | None:
    """Scale of ``base * (1 + scale)``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for base, factor in ((node.left, node.right), (node.right, node.left)):
        scale = _one_plus(factor) if is_base(base) else None
        if scale is not None and is_pure(scale):
            return scale
    return None


def asks_for_none(test: ast.expr) -> bool:
    """``name is not None``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
    )


def before_sum(test: ast.expr, statement: ast.stmt) -> ast.expr:
    """``v.ndim == 4`` as it can be asked before ``v = a + b``: of the larger of the two; any other
    test as it is."""
    found = assigned(statement)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(test, ast.Compare):
        return test
    if attribute(test.left) != (found[0], "ndim") or len(test.comparators) != 1:
        return test
    names = found[1].left, found[1].right
    if not all(isinstance(one, ast.Name) for one in names):
        return test
    if not isinstance(test.comparators[0], ast.Constant):
        return test
    a, b = (ast.Attribute(copy.deepcopy(one), "ndim", ast.Load()) for one in names)
    more = ast.Compare(copy.deepcopy(a), [ast.Gt()], [copy.deepcopy(b)])
    return ast.Compare(ast.IfExp(more, a, b), test.ops, test.comparators)


def gate(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Gate and the rest of ``gate * rest``; a gate is what is called one."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for gate, rest in ((node.left, node.right), (node.right, node.left)):
        if any("gate" in name for name in names(gate)) and is_pure(gate):
            return gate, rest
    return None


_KEY_OF = {"q": "k", "query": "key", "qn": "kn", "qnorm": "knorm"}


def partner(name: str) -> str | None:
    """``k_norm`` of ``q_norm``."""
    words = name.split("_")
    other = [_KEY_OF.get(word, word) for word in words]
    return "_".join(other) if other != words else None


def under_views(node: ast.expr) -> ast.expr:
    """``x`` of ``x.transpose(1, 2)`` and the like."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _PURE_METHODS
        and all(is_pure(argument) for argument in node.args)
        and not node.keywords
    ):
        node = node.func.value
    return node


def unpack(one: str, other: str, value: ast.expr) -> ast.stmt:
    names: list[ast.expr] = [ast.Name(one, ast.Store()), ast.Name(other, ast.Store())]
    return ast.Assign([ast.Tuple(names, ast.Store())], value)
