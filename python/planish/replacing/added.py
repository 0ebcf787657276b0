"""Norms whose result is added to a residual, in the statements of a function.

``v = residual + norm(x)``, perhaps with stochastic depth between the two, in one statement or in
several: the post-norms of OLMo 2, Gemma and Swin V2. A sum that is read by a norm is another place
(sums.py), which is looked for first. reading.py has the rest.
"""

from __future__ import annotations

import ast

from planish.replacing.patterns import Place, assigned, is_pure, names, replaced, unconditional
from planish.replacing.sums import Sums

__all__ = ["Added"]

#: Modules between the norm and the sum: more do not occur.
_MOST = 2


class Added(Sums):
    """The part of a Reader (reading.py) that reads norms and the sums after them."""

    def _added(self, done: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``v = residual + h`` with ``h = norm(x)`` in it, or in the statements right before."""
        found = assigned(rest[0])
        if found is None or not self._is_sum(found[1]):
            return None
        v, value = found
        assert isinstance(value, ast.BinOp)
        for residual, other in ((value.left, value.right), (value.right, value.left)):
            if not is_pure(residual):
                continue
            call, taken = self._added_call(residual, other, done, rest, v)
            if call is None:
                continue
            del done[len(done) - taken :]
            del rest[0]
            return [ast.Assign([ast.Name(v, ast.Store())], call)]
        return None

    def _added_inside(self, statement: ast.stmt) -> ast.stmt:
        """The same anywhere in a statement, where all of it is one expression."""
        for node in list(unconditional(statement)):
            if not isinstance(node, ast.BinOp) or not self._is_sum(node):
                continue
            for residual, other in ((node.left, node.right), (node.right, node.left)):
                if is_pure(residual):
                    call, _ = self._added_call(residual, other, [], [], "")
                    if call is not None:
                        return self._added_inside(replaced(statement, node, call))
        return statement

    @staticmethod
    def _is_sum(value: ast.expr) -> bool:
        return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)

    def _added_call(
        self,
        residual: ast.expr,
        x: ast.expr,
        done: list[ast.stmt],
        rest: list[ast.stmt],
        v: str,
    ) -> tuple[ast.Call | None, int]:
        """The call that stands for residual + chain(norm(..)), and how many of the statements
        before belong to it."""
        chain: list[str] = []
        taken = 0
        while len(chain) <= _MOST:
            known = self._norm(x)
            if known is not None:
                assert isinstance(x, ast.Call)
                place = Place("added", known[0], (known[1],), tuple(chain), residual=True)
                helper = self.accept(place)
                if helper is not None:
                    modules = ast.Tuple([self._own(name) for name in chain], ast.Load())
                    given: list[ast.expr] = [x.func, x.args[0], residual]
                    return self._call(helper, [*given, modules] if chain else given), taken
                chain.append(known[1])
                x = x.args[0]
                continue
            if not isinstance(x, ast.Name) or len(done) <= taken:
                break
            before = assigned(done[-1 - taken])
            if before is None or before[0] != x.id or x.id in names(residual):
                break
            if self._norm(before[1]) is None or not (x.id == v or self._is_dead(x.id, rest)):
                break
            taken += 1
            x = before[1]
        return None, 0
