"""Which statements of a block's forward are a norm with what stands around it.

Read from the source: ``v = a + b`` and then ``self.norm(v)``, with LayerScale, stochastic depth or
a gate before the sum and a modulation behind the norm; ``self.norm(a + b)``; ``a + self.norm(x)``
(added.py); ``self.norm(x) * (1 + scale) + shift``; and the norms of queries and keys that stand
side by side. A Reader takes the statements of a function and gives them back with these as calls of
one helper each. Everything is evaluated once and in the order it was, but for pure expressions;
whether a place is taken is asked of the caller. Nothing is run or compiled here (rewriting.py).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from planish.replacing.added import Added
from planish.replacing.patterns import (
    Place,
    assigned,
    attribute,
    load,
    modulation,
    names,
    partner,
    replaced,
    scaling,
    unconditional,
    under_views,
    unpack,
)
from planish.replacing.sums import Accept

__all__ = ["Accept", "Place", "Reader"]


class Reader(Added):
    """Rewrites the statements of one function; ``owners`` are its variables that hold norms."""

    def run(self) -> None:
        """Changes the function's statements."""
        self.function.body = self._block(self.function.body)

    # ---- Statements -----------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rest, done = list(statements), list[ast.stmt]()
        while rest:
            at = rest[0]
            new = self._sum(done, rest) or self._added(done, rest)
            new = new or self._pair(rest) or self._modulated(rest)
            if new is None:
                done.append(self._inside(rest.pop(0)))
            else:
                done += [
                    one if hasattr(one, "lineno") else ast.copy_location(one, at) for one in new
                ]
        return done

    def _inside(self, statement: ast.stmt) -> ast.stmt:
        """Blocks and expressions in a statement that is itself no place."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return statement
        fields = ["body", "orelse", "finalbody"]
        likely = self.likely(statement.test) if isinstance(statement, ast.If) else None
        if likely is not None:  # the other branch is not this block's
            fields = ["body" if likely else "orelse"]
        for field in fields:
            inner = getattr(statement, field, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(statement, field, self._block(inner))
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            statement = self._expressions(statement)
        return statement

    def _expressions(self, statement: ast.stmt) -> ast.stmt:
        """``norm(a + b)`` and ``norm(x) * (1 + scale) + shift`` anywhere in it."""
        for node in list(unconditional(statement)):
            found = modulation(node, lambda base: self._norm(base) is not None)
            if found is not None and isinstance(node, ast.BinOp):
                call = next(n for n in ast.walk(node) if self._norm(n) is not None)
                owner, norm = self._norm(call)  # type: ignore[misc]
                name = self.accept(Place("modulated", owner, (norm,)))
                if name is not None:
                    given = [call.func, call.args[0], *found]  # type: ignore[attr-defined]
                    return self._expressions(replaced(statement, node, self._call(name, given)))
        for node in list(unconditional(statement)):
            scale = scaling(node, lambda base: self._norm(base) is not None)
            if scale is not None:
                call = next(n for n in ast.walk(node) if self._norm(n) is not None)
                owner, norm = self._norm(call)  # type: ignore[misc]
                name = self.accept(Place("modulated", owner, (norm,), shift=False))
                if name is not None:
                    given = [call.func, call.args[0], scale, ast.Constant(None)]  # type: ignore[attr-defined]
                    return self._expressions(replaced(statement, node, self._call(name, given)))
        for node in list(unconditional(statement)):
            known = self._norm(node)
            if known is not None:
                assert isinstance(node, ast.Call)
                added = node.args[0]
                if isinstance(added, ast.BinOp) and isinstance(added.op, ast.Add):
                    name = self.accept(Place("sum", known[0], (known[1],), residual=True))
                    if name is not None:
                        call = self._call(name, [node.func, added.left, added.right])
                        y = ast.Subscript(call, ast.Constant(1), ast.Load())
                        return self._expressions(replaced(statement, node, y))
        return self._added_inside(statement)

    # ---- Modulation in two statements, queries and keys -----------------------------------------

    def _modulated(self, rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``n = norm(x)``, ``n = n * (1 + scale) + shift``."""
        first = assigned(rest[0])
        second = assigned(rest[1]) if len(rest) > 1 else None
        if first is None or second is None or first[0] != second[0]:
            return None
        name, call = first
        known = self._norm(call)
        found = modulation(second[1], lambda base: isinstance(base, ast.Name) and base.id == name)
        if known is None or found is None or any(name in names(one) for one in found):
            return None
        helper = self.accept(Place("modulated", known[0], (known[1],)))
        if helper is None:
            return None
        assert isinstance(call, ast.Call)
        value = self._call(helper, [call.func, call.args[0], *found])
        del rest[:2]
        return [ast.Assign([ast.Name(name, ast.Store())], value)]

    def _pair(self, rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``q = q_norm(q)`` and ``k = k_norm(k)``: in two statements, one, or behind two ifs."""
        if isinstance(rest[0], ast.Assign) and isinstance(rest[0].value, ast.Tuple):
            values = rest[0].value.elts
            return self._both(rest, values, 1) if len(values) == 2 else None
        if len(rest) < 2:
            return None
        one, other = rest[:2]
        if isinstance(one, ast.If) and isinstance(other, ast.If):
            return self._behind_ifs(rest, one, other)
        first, second = assigned(one), assigned(other)
        if first is None or second is None or first[0] in names(second[1]):
            return None
        return self._both(rest, [first[1], second[1]], 2)

    def _both(
        self, rest: list[ast.stmt], values: Sequence[ast.expr], length: int
    ) -> list[ast.stmt] | None:
        calls = [under_views(value) for value in values]
        known = [self._norm(call) for call in calls]
        if known[0] is None or known[1] is None or known[0][0] != known[1][0]:
            return None
        owner, query = known[0]
        if partner(query) != known[1][1]:
            return None
        helper = self.accept(Place("queries and keys", owner, (query, known[1][1])))
        if helper is None:
            return None
        one, other = calls
        assert isinstance(one, ast.Call) and isinstance(other, ast.Call)
        q, k = self._new(), self._new()
        both = self._call(helper, [one.func, other.func, one.args[0], other.args[0]])
        new = [unpack(q, k, both)]
        for statement in rest[:length]:
            statement = replaced(statement, one, load(q))
            new.append(replaced(statement, other, load(k)))
        del rest[:length]
        return new

    def _behind_ifs(
        self, rest: list[ast.stmt], one: ast.If, other: ast.If
    ) -> list[ast.stmt] | None:
        """``if attn.norm_q is not None: query = attn.norm_q(query)``, and the same of the key."""
        if one.orelse or other.orelse or len(one.body) != 1 or len(other.body) != 1:
            return None
        if not all(self._asks_for_norm(statement) for statement in (one, other)):
            return None
        first, second = assigned(one.body[0]), assigned(other.body[0])
        if first is None or second is None or first[0] in names(second[1]):
            return None
        apart = copy.deepcopy([one, other])
        together = self._both([one.body[0], other.body[0]], [first[1], second[1]], 2)
        if together is None:
            return None
        test = ast.BoolOp(ast.And(), [one.test, other.test])
        del rest[:2]
        return [ast.If(test, together, list(apart))]

    def _asks_for_norm(self, statement: ast.If) -> bool:
        """``if x.norm is not None`` or ``if x.norm``."""
        test: ast.expr = statement.test
        if isinstance(test, ast.Compare):
            none = test.comparators[0]
            if not isinstance(test.ops[0], ast.IsNot) or not isinstance(none, ast.Constant):
                return False
            test = test.left
        found = attribute(test)
        return found is not None and found[0] in self.owners
