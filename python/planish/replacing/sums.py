"""Sums and the norms that read them, in the statements of a function.

``v = a + b``, perhaps other names for v and ifs, and ``norm(v)``: what may stand between, and what
belongs to the summand. reading.py has the rest.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from planish.replacing.patterns import (
    Place,
    asks_for_none,
    assigned,
    before_sum,
    gate,
    is_pure,
    load,
    modulation,
    module_call,
    names,
    reads,
    replaced,
    unconditional,
    unpack,
)

__all__ = ["Accept", "Sums"]

#: Asked for every place: the name of the helper to call there, or None to leave it.
Accept = Callable[[Place], "str | None"]


@dataclasses.dataclass
class _Sum:
    """``v = residual + chain(gate * x)``, and how many statements before it belong to it."""

    residual: ast.expr
    x: ast.expr
    chain: list[str]
    gate: ast.expr | None
    taken: int = 0


class Sums:
    """The part of a Reader (reading.py) that reads sums and the norms after them."""

    def __init__(
        self,
        function: ast.FunctionDef,
        owners: Sequence[str],
        accept: Accept,
        likely: Callable[[ast.expr], bool | None],
    ) -> None:
        self.function, self.likely = function, likely
        self._accept, self.accepted = accept, 0
        stored = names(function, ast.Store)
        self.owners = [owner for owner in owners if owner not in stored]
        self.count = 0

    def accept(self, place: Place) -> str | None:
        """The caller's answer."""
        helper = self._accept(place)
        self.accepted += helper is not None
        return helper

    def _norm(self, node: ast.AST) -> tuple[str, str] | None:
        """Variable and attribute of a call of a child with one argument: a norm, if it is one."""
        found = module_call(node)
        return found if found is not None and found[0] in self.owners else None

    def _call(self, helper: str, arguments: Sequence[ast.expr]) -> ast.Call:
        return ast.Call(load(helper), [copy.deepcopy(one) for one in arguments], [])

    def _new(self) -> str:
        self.count += 1
        return f"_planish_y{self.count}"

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        raise NotImplementedError

    def _sum(self, done: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``v = a + b``, perhaps other names for v and ifs, and a statement with ``norm(v)``."""
        found = assigned(rest[0])
        if found is None:
            return None
        v, value = found
        if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
            return None
        between: list[ast.stmt] = []
        call: ast.Call | None = None
        for statement in rest[1:]:
            call = self._of(v, statement)
            if call is not None or not self._may_stand_between(v, statement):
                break
            between.append(statement)
        branches = self._branches(done, rest, between, v, call is not None)
        if branches is not None or call is None:
            return branches
        owner, norm = self._norm(call)  # type: ignore[misc]
        at = len(between) + 1
        ifs = [one for one in between if isinstance(one, ast.If)]
        if not ifs:
            new = self._sum_modulated(v, value, norm, done, rest, at, call)
            if new is not None:
                return new
        for sums in self._sums(value, done, rest, v):
            if sums.gate is not None:
                continue
            place = Place("sum", owner, (norm,), tuple(sums.chain), residual=True)
            helper = self.accept(place)
            if helper is None:
                continue
            del done[len(done) - sums.taken :]
            y = self._new()
            chain = ast.Tuple([self._own(name) for name in sums.chain], ast.Load())
            given: list[ast.expr] = [call.func, sums.residual, sums.x]
            both = self._call(helper, [*given, chain] if sums.chain else given)
            new = [unpack(v, y, both)]
            rest[at] = replaced(rest[at], call, load(y))
            if not ifs:
                del rest[0]  # what stands between is read next
                return new
            for statement in between:
                if isinstance(statement, ast.If):
                    again = ast.Assign([ast.Name(y, ast.Store())], copy.deepcopy(call))
                    statement.body = [*self._block(statement.body), again]
                    if statement.orelse:
                        statement.orelse = [*self._block(statement.orelse), copy.deepcopy(again)]
                new.append(statement)
            del rest[:at]
            return new
        return None

    def _branches(
        self,
        done: list[ast.stmt],
        rest: list[ast.stmt],
        between: list[ast.stmt],
        v: str,
        found: bool,
    ) -> list[ast.stmt] | None:
        """The sum moved into the branches of the first if after it, where the if does not ask for
        it: then what is in the branch, and what comes after, may be read with the sum."""
        first = next((i for i, one in enumerate(between) if isinstance(one, ast.If)), None)
        if first is None:
            return None
        statement = between[first]
        assert isinstance(statement, ast.If)
        test = before_sum(statement.test, rest[0])
        before = rest[: first + 1]
        taken = 0
        while taken < len(done) and self._belongs(done[-1 - taken], before[0]):
            taken += 1
            before = [done[-taken], *before]
        stored = {v} | {name for one in before[taken + 1 :] for name in names(one, ast.Store)}
        stored |= {name for one in before[:taken] for name in names(one, ast.Store)}
        if test is statement.test and (not is_pure(test) or names(test) & stored):
            return None
        likely = self.likely(test)
        if likely is None and not found:
            if statement.orelse or not (test is not statement.test or asks_for_none(test)):
                return None
            likely = False
        end = len(rest) if likely is not None else len(between) + 2
        after = rest[first + 2 : end]
        branches: list[list[ast.stmt]] = []
        accepted = self.accepted
        for branch, wanted in ((statement.body, True), (statement.orelse, False)):
            whole = copy.deepcopy([*before, *branch, *after])
            branches.append(self._block(whole) if likely in (None, wanted) else whole)
        if self.accepted == accepted:
            return None
        del rest[:end]
        del done[len(done) - taken :]
        return [ast.If(test, branches[0], branches[1])]

    def _belongs(self, statement: ast.stmt, sums: ast.stmt) -> bool:
        """Whether it makes a summand: with a module or a gate."""
        found = assigned(statement)
        return found is not None and found[0] in names(sums) and self._is_factor(found[1])

    def _is_factor(self, value: ast.expr) -> bool:
        """A call of a module of the block, or a product with a gate."""
        return self._norm(value) is not None or gate(value) is not None

    def _sum_modulated(
        self,
        v: str,
        value: ast.BinOp,
        norm: str,
        done: list[ast.stmt],
        rest: list[ast.stmt],
        at: int,
        call: ast.Call,
    ) -> list[ast.stmt] | None:
        """``v = r + gate * x``, ``n = norm(v)``, ``n = n * (1 + scale) + shift``, the last two
        perhaps in one."""
        statement = rest[at]
        target = assigned(statement)
        node: ast.AST | None = None
        found, length = None, 1
        if target is not None and target[1] is call and len(rest) > at + 1:
            following = assigned(rest[at + 1])
            name = target[0]
            if following is not None and following[0] == name:
                node, length = following[1], 2
                found = modulation(
                    node, lambda base: isinstance(base, ast.Name) and base.id == name
                )
        else:
            for node in unconditional(statement):
                found = modulation(node, lambda base: base is call)
                if found is not None:
                    break
        if found is None or node is None:
            return None
        new_names = {v} | {one for s in rest[1 : at + length - 1] for one in names(s, ast.Store)}
        if any(names(one) & new_names for one in found):
            return None
        owner = self._norm(call)[0]  # type: ignore[index]
        for sums in self._sums(value, done, rest, v):
            if sums.chain:
                continue
            place = Place("modulated", owner, (norm,), (), True, sums.gate is not None)
            helper = self.accept(place)
            if helper is None:
                continue
            del done[len(done) - sums.taken :]
            y = self._new()
            given = [call.func, sums.x, *found, sums.residual]
            if sums.gate is not None:
                given.append(sums.gate)
            rest[at + length - 1] = replaced(rest[at + length - 1], node, load(y))
            rest[: at + length - 1] = rest[1:at]
            return [unpack(v, y, self._call(helper, given))]
        return None

    def _of(self, v: str, statement: ast.stmt) -> ast.Call | None:
        """The call ``norm(v)`` that the statement makes, whatever else it does."""
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            return None
        for node in unconditional(statement):
            if isinstance(node, ast.NamedExpr):
                return None
            if self._norm(node) is not None:
                assert isinstance(node, ast.Call)
                argument = node.args[0]
                if isinstance(argument, ast.Name) and argument.id == v:
                    return node
        return None

    def _may_stand_between(self, v: str, statement: ast.stmt) -> bool:
        """Another name for v, what is made of other tensors (a second stream), or an if: what it
        changes is seen to."""
        if isinstance(statement, ast.If):
            jumps = ast.Break | ast.Continue | ast.Yield | ast.YieldFrom
            return not any(isinstance(node, jumps) for node in ast.walk(statement))
        found = assigned(statement)
        return found is not None and found[0] != v and is_pure(found[1])

    def _sums(
        self, value: ast.BinOp, done: list[ast.stmt], rest: list[ast.stmt], v: str
    ) -> Iterator[_Sum]:
        """What the sum may be read as, the most in one first."""
        for residual, other in ((value.left, value.right), (value.right, value.left)):
            sums = _Sum(residual, other, [], None)
            self._unwrap(sums, done, rest, v)
            if (sums.chain or sums.gate is not None) and is_pure(residual):
                yield sums  # what is pure may be evaluated in another order
        yield _Sum(value.left, value.right, [], None)

    def _unwrap(self, sums: _Sum, done: list[ast.stmt], rest: list[ast.stmt], v: str) -> None:
        """Takes modules or a gate off the summand, also in the statements right before."""
        while True:
            known = self._norm(sums.x)
            if known is not None and sums.gate is None:
                assert isinstance(sums.x, ast.Call)
                sums.chain.append(known[1])
                sums.x = sums.x.args[0]
                continue
            gated = gate(sums.x)
            if gated is not None and sums.gate is None and not sums.chain:
                sums.gate, sums.x = gated
                continue
            if not isinstance(sums.x, ast.Name) or len(done) <= sums.taken:
                return
            name = sums.x.id
            before = assigned(done[-1 - sums.taken])
            if before is None or before[0] != name or name in names(sums.residual):
                return
            if not self._is_factor(before[1]) or not (name == v or self._is_dead(name, rest)):
                return
            sums.taken += 1
            sums.x = before[1]

    def _is_dead(self, name: str, rest: list[ast.stmt]) -> bool:
        """Whether nothing after the sum reads it before it is set again."""
        for statement in rest[1:]:
            found = assigned(statement)
            if name in reads(statement):
                return False
            if found is not None and found[0] == name:
                return True
        return self._is_last(name, rest)

    def _is_last(self, name: str, rest: list[ast.stmt]) -> bool:
        """Whether no line after the block reads it; a loop may come back to lines before."""
        if any(isinstance(node, ast.For | ast.While) for node in ast.walk(self.function)):
            return False
        end = rest[0].end_lineno or rest[0].lineno
        return not any(
            name in reads(node)
            for node in ast.walk(self.function)
            if isinstance(node, ast.Name | ast.AugAssign) and getattr(node, "lineno", 0) > end
        )

    def _own(self, name: str) -> ast.expr:
        return ast.Attribute(load(self.owners[0]), name, ast.Load())
