"""Which statements of a block's forward are a norm with what stands around it.

Read from the source: ``v = a + b`` and then ``self.norm(v)``, with LayerScale, stochastic depth or
a gate before the sum and a modulation behind the norm; ``self.norm(a + b)``; ``self.norm(x) * (1 +
scale) + shift``; and the norms of queries and keys that stand side by side. A Reader takes the
statements of a function and gives them back with these as calls of one helper each. Everything is
evaluated once and in the order it was, but for pure expressions; whether a place is taken is asked
of the caller. Nothing is run or compiled here (rewriting.py).
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence

__all__ = ["Place", "Reader"]


@dataclasses.dataclass(frozen=True)
class Place:
    """One place of a source where a norm and what stands around it can be one function."""

    #: ``sum``: (v, y) = (a + b, norm(a + b)); ``modulated``: norm(x) * (1 + scale) + shift, after a
    #: sum where ``residual``; ``queries and keys``.
    kind: str
    #: The variable that the norms are attributes of: ``self``, or ``attn`` of a processor.
    owner: str
    #: Attributes: the norm, or the norms of queries and keys.
    norms: tuple[str, ...]
    #: Modules between the other summand and the sum, outermost first: LayerScale and the like.
    chain: tuple[str, ...] = ()
    residual: bool = False
    gate: bool = False

    def __str__(self) -> str:
        """In a few words, for a report."""
        if self.kind == "queries and keys":
            return "norms of queries and keys"
        words = ["add"] if self.residual else []
        words = ["gate", *words] if self.gate else words
        if self.chain:
            words = ["factors", *words]
        return " + ".join([*words, "norm", *(["modulation"] if self.kind == "modulated" else [])])


#: Asked for every place: the name of the helper to call there, or None to leave it.
Accept = Callable[[Place], "str | None"]

_PURE_METHODS = {
    *("unsqueeze", "squeeze", "view", "reshape", "to", "float", "type_as", "transpose", "permute"),
    *("flatten", "unflatten", "contiguous"),
}


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _attribute(node: ast.AST) -> tuple[str, str] | None:
    """Variable and attribute of ``variable.attribute``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return None


def _module_call(node: ast.AST) -> tuple[str, str] | None:
    """Variable and attribute of ``variable.attribute(argument)``."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        if not isinstance(node.args[0], ast.Starred):
            return _attribute(node.func)
    return None


def _names(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def _is_pure(node: ast.AST) -> bool:
    """Whether it changes nothing and may be evaluated a little earlier."""
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.BinOp)
    plain += (ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context, ast.Compare, ast.cmpop)
    plain += (ast.BoolOp, ast.boolop, ast.List)
    if isinstance(node, ast.Call):
        called = node.func
        if not (isinstance(called, ast.Attribute) and called.attr in _PURE_METHODS):
            return False
    elif not isinstance(node, plain):
        return False
    return all(_is_pure(child) for child in ast.iter_child_nodes(node))


def _unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement or expression that are evaluated whenever it is."""
    yield node
    if isinstance(node, ast.IfExp):
        yield from _unconditional(node.test)
    elif isinstance(node, ast.BoolOp):
        yield from _unconditional(node.values[0])
    elif isinstance(node, ast.Compare):
        yield from _unconditional(node.left)
    elif not isinstance(
        node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ):
        for child in ast.iter_child_nodes(node):
            yield from _unconditional(child)


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
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


def _replaced(statement: ast.stmt, old: ast.AST, new: ast.expr) -> ast.stmt:
    result: ast.stmt = _Replace(old, new).visit(statement)
    return result


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


def _modulation(
    node: ast.AST, is_base: Callable[[ast.expr], bool]
) -> tuple[ast.expr, ast.expr] | None:
    """Scale and shift of ``base * (1 + scale) + shift``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return None
    product, shift = node.left, node.right
    if not (isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)):
        return None
    for base, factor in ((product.left, product.right), (product.right, product.left)):
        scale = _one_plus(factor) if is_base(base) else None
        if scale is not None and _is_pure(scale) and _is_pure(shift):
            return scale, shift
    return None


def _asks_for_none(test: ast.expr) -> bool:
    """``name is not None``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
    )


def _before_sum(test: ast.expr, statement: ast.stmt) -> ast.expr:
    """``v.ndim == 4`` as it can be asked before ``v = a + b``: of the larger of the two; any other
    test as it is."""
    found = _assigned(statement)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(test, ast.Compare):
        return test
    if _attribute(test.left) != (found[0], "ndim") or len(test.comparators) != 1:
        return test
    names = found[1].left, found[1].right
    if not all(isinstance(one, ast.Name) for one in names):
        return test
    if not isinstance(test.comparators[0], ast.Constant):
        return test
    a, b = (ast.Attribute(copy.deepcopy(one), "ndim", ast.Load()) for one in names)
    more = ast.Compare(copy.deepcopy(a), [ast.Gt()], [copy.deepcopy(b)])
    return ast.Compare(ast.IfExp(more, a, b), test.ops, test.comparators)


def _gate(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Gate and the rest of ``gate * rest``; a gate is what is called one."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    for gate, rest in ((node.left, node.right), (node.right, node.left)):
        if any("gate" in name for name in _names(gate)) and _is_pure(gate):
            return gate, rest
    return None


_KEY_OF = {"q": "k", "query": "key", "qn": "kn", "qnorm": "knorm"}


def _partner(name: str) -> str | None:
    """``k_norm`` of ``q_norm``."""
    words = name.split("_")
    other = [_KEY_OF.get(word, word) for word in words]
    return "_".join(other) if other != words else None


def _under_views(node: ast.expr) -> ast.expr:
    """``x`` of ``x.transpose(1, 2)`` and the like."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _PURE_METHODS
        and all(_is_pure(argument) for argument in node.args)
        and not node.keywords
    ):
        node = node.func.value
    return node


@dataclasses.dataclass
class _Sum:
    """``v = residual + chain(gate * x)``, and how many statements before it belong to it."""

    residual: ast.expr
    x: ast.expr
    chain: list[str]
    gate: ast.expr | None
    taken: int = 0


class Reader:
    """Rewrites the statements of one function; ``owners`` are its variables that hold norms."""

    def __init__(
        self,
        function: ast.FunctionDef,
        owners: Sequence[str],
        accept: Accept,
        likely: Callable[[ast.expr], bool | None],
    ) -> None:
        self.function, self.likely = function, likely
        self._accept, self.accepted = accept, 0
        stored = _names(function, ast.Store)
        self.owners = [owner for owner in owners if owner not in stored]
        self.count = 0

    def run(self) -> None:
        """Changes the function's statements."""
        self.function.body = self._block(self.function.body)

    def accept(self, place: Place) -> str | None:
        """The caller's answer."""
        helper = self._accept(place)
        self.accepted += helper is not None
        return helper

    # ---- Statements -----------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rest, done = list(statements), list[ast.stmt]()
        while rest:
            at = rest[0]
            new = self._sum(done, rest) or self._pair(rest) or self._modulated(rest)
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
        for node in list(_unconditional(statement)):
            found = _modulation(node, lambda base: self._norm(base) is not None)
            if found is not None and isinstance(node, ast.BinOp):
                call = next(n for n in ast.walk(node) if self._norm(n) is not None)
                owner, norm = self._norm(call)  # type: ignore[misc]
                name = self.accept(Place("modulated", owner, (norm,)))
                if name is not None:
                    given = [call.func, call.args[0], *found]  # type: ignore[attr-defined]
                    return self._expressions(_replaced(statement, node, self._call(name, given)))
        for node in list(_unconditional(statement)):
            known = self._norm(node)
            if known is not None:
                assert isinstance(node, ast.Call)
                added = node.args[0]
                if isinstance(added, ast.BinOp) and isinstance(added.op, ast.Add):
                    name = self.accept(Place("sum", known[0], (known[1],), residual=True))
                    if name is not None:
                        call = self._call(name, [node.func, added.left, added.right])
                        y = ast.Subscript(call, ast.Constant(1), ast.Load())
                        return self._expressions(_replaced(statement, node, y))
        return statement

    def _norm(self, node: ast.AST) -> tuple[str, str] | None:
        found = _module_call(node)
        return found if found is not None and found[0] in self.owners else None

    def _call(self, helper: str, arguments: Sequence[ast.expr]) -> ast.Call:
        return ast.Call(_load(helper), [copy.deepcopy(one) for one in arguments], [])

    def _new(self) -> str:
        self.count += 1
        return f"_planish_y{self.count}"

    # ---- Sums -----------------------------------------------------------------------------------

    def _sum(self, done: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``v = a + b``, perhaps other names for v and ifs, and a statement with ``norm(v)``."""
        found = _assigned(rest[0])
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
            chain = ast.Tuple([self._self(name) for name in sums.chain], ast.Load())
            given: list[ast.expr] = [call.func, sums.residual, sums.x]
            both = self._call(helper, [*given, chain] if sums.chain else given)
            new = [_unpack(v, y, both)]
            for statement in between:
                if isinstance(statement, ast.If):
                    again = ast.Assign([ast.Name(y, ast.Store())], copy.deepcopy(call))
                    statement.body = [*self._block(statement.body), again]
                    if statement.orelse:
                        statement.orelse = [*self._block(statement.orelse), copy.deepcopy(again)]
                new.append(statement)
            rest[at] = _replaced(rest[at], call, _load(y))
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
        test = _before_sum(statement.test, rest[0])
        before = rest[: first + 1]
        taken = 0
        while taken < len(done) and self._belongs(done[-1 - taken], before[0]):
            taken += 1
            before = [done[-taken], *before]
        stored = {v} | {name for one in before[taken + 1 :] for name in _names(one, ast.Store)}
        stored |= {name for one in before[:taken] for name in _names(one, ast.Store)}
        if test is statement.test and (not _is_pure(test) or _names(test) & stored):
            return None
        likely = self.likely(test)
        if likely is None and not found:
            if statement.orelse or not (test is not statement.test or _asks_for_none(test)):
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

    @staticmethod
    def _belongs(statement: ast.stmt, sums: ast.stmt) -> bool:
        """Whether it makes a summand: with a module or a gate."""
        found = _assigned(statement)
        if found is None or found[0] not in _names(sums):
            return False
        known = _module_call(found[1])
        return (known is not None and known[0] == "self") or _gate(found[1]) is not None

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
        target = _assigned(statement)
        node: ast.AST | None = None
        found, length = None, 1
        if target is not None and target[1] is call and len(rest) > at + 1:
            following = _assigned(rest[at + 1])
            name = target[0]
            if following is not None and following[0] == name and name != v:
                node, length = following[1], 2
                found = _modulation(
                    node, lambda base: isinstance(base, ast.Name) and base.id == name
                )
        else:
            for node in _unconditional(statement):
                found = _modulation(node, lambda base: base is call)
                if found is not None:
                    break
        if found is None or node is None:
            return None
        new_names = {v} | {one for s in rest[1 : at + length - 1] for one in _names(s, ast.Store)}
        if any(_names(one) & new_names for one in found):
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
            new = [_unpack(v, y, self._call(helper, given)), *rest[1:at]]
            rest[at + length - 1] = _replaced(rest[at + length - 1], node, _load(y))
            del rest[: at + length - 1]
            return new
        return None

    def _of(self, v: str, statement: ast.stmt) -> ast.Call | None:
        """The call ``norm(v)`` that the statement makes, whatever else it does."""
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            return None
        for node in _unconditional(statement):
            if isinstance(node, ast.NamedExpr):
                return None
            if self._norm(node) is not None:
                assert isinstance(node, ast.Call)
                argument = node.args[0]
                if isinstance(argument, ast.Name) and argument.id == v:
                    return node
        return None

    def _may_stand_between(self, v: str, statement: ast.stmt) -> bool:
        """Another name for v, or an if: what it changes is seen to."""
        if isinstance(statement, ast.If):
            jumps = ast.Break | ast.Continue | ast.Yield | ast.YieldFrom
            return not any(isinstance(node, jumps) for node in ast.walk(statement))
        found = _assigned(statement)
        return found is not None and found[0] != v and isinstance(found[1], ast.Name)

    def _sums(
        self, value: ast.BinOp, done: list[ast.stmt], rest: list[ast.stmt], v: str
    ) -> Iterator[_Sum]:
        """What the sum may be read as, the most in one first."""
        for residual, other in ((value.left, value.right), (value.right, value.left)):
            sums = _Sum(residual, other, [], None)
            self._unwrap(sums, done, rest, v)
            if sums.chain or sums.gate is not None:
                yield sums
        yield _Sum(value.left, value.right, [], None)

    def _unwrap(self, sums: _Sum, done: list[ast.stmt], rest: list[ast.stmt], v: str) -> None:
        """Takes modules or a gate off the summand, also in the statements right before."""
        while True:
            known = _module_call(sums.x)
            if known is not None and known[0] == "self" and sums.gate is None:
                assert isinstance(sums.x, ast.Call)
                sums.chain.append(known[1])
                sums.x = sums.x.args[0]
                continue
            gated = _gate(sums.x)
            if gated is not None and sums.gate is None and not sums.chain:
                sums.gate, sums.x = gated
                continue
            if not isinstance(sums.x, ast.Name) or len(done) <= sums.taken:
                return
            name = sums.x.id
            before = _assigned(done[-1 - sums.taken])
            if before is None or before[0] != name or name in _names(sums.residual):
                return
            value = before[1]
            known = _module_call(value)
            takes = (known is not None and known[0] == "self") or _gate(value) is not None
            if not takes or not (name == v or self._is_dead(name, rest)):
                return
            sums.taken += 1
            sums.x = value

    def _is_dead(self, name: str, rest: list[ast.stmt]) -> bool:
        """Whether nothing after the sum reads it before it is set again."""
        for statement in rest[1:]:
            found = _assigned(statement)
            if name in _names(statement):
                return False
            if found is not None and found[0] == name:
                return True
        return self._is_last(name, rest)

    def _is_last(self, name: str, rest: list[ast.stmt]) -> bool:
        """Whether no line after the block reads it; a loop may come back to lines before."""
        if any(isinstance(node, ast.For | ast.While) for node in ast.walk(self.function)):
            return False
        end = max(getattr(rest[0], "end_lineno", 0) or 0, 0)
        return not any(
            isinstance(node, ast.Name) and node.id == name and node.lineno > end
            for node in ast.walk(self.function)
            if isinstance(getattr(node, "ctx", None), ast.Load) and hasattr(node, "lineno")
        )

    def _self(self, name: str) -> ast.expr:
        return ast.Attribute(_load("self"), name, ast.Load())

    # ---- Modulation in two statements, queries and keys -----------------------------------------

    def _modulated(self, rest: list[ast.stmt]) -> list[ast.stmt] | None:
        """``n = norm(x)``, ``n = n * (1 + scale) + shift``."""
        first = _assigned(rest[0])
        second = _assigned(rest[1]) if len(rest) > 1 else None
        if first is None or second is None or first[0] != second[0]:
            return None
        name, call = first
        known = self._norm(call)
        found = _modulation(second[1], lambda base: isinstance(base, ast.Name) and base.id == name)
        if known is None or found is None or any(name in _names(one) for one in found):
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
        first, second = _assigned(one), _assigned(other)
        if first is None or second is None or first[0] in _names(second[1]):
            return None
        return self._both(rest, [first[1], second[1]], 2)

    def _both(
        self, rest: list[ast.stmt], values: Sequence[ast.expr], length: int
    ) -> list[ast.stmt] | None:
        calls = [_under_views(value) for value in values]
        known = [self._norm(call) for call in calls]
        if known[0] is None or known[1] is None or known[0][0] != known[1][0]:
            return None
        owner, query = known[0]
        if _partner(query) != known[1][1]:
            return None
        helper = self.accept(Place("queries and keys", owner, (query, known[1][1])))
        if helper is None:
            return None
        one, other = calls
        assert isinstance(one, ast.Call) and isinstance(other, ast.Call)
        q, k = self._new(), self._new()
        both = self._call(helper, [one.func, other.func, one.args[0], other.args[0]])
        new = [_unpack(q, k, both)]
        for statement in rest[:length]:
            statement = _replaced(statement, one, _load(q))
            new.append(_replaced(statement, other, _load(k)))
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
        first, second = _assigned(one.body[0]), _assigned(other.body[0])
        if first is None or second is None or first[0] in _names(second[1]):
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
        found = _attribute(test)
        return found is not None and found[0] in self.owners


def _unpack(one: str, other: str, value: ast.expr) -> ast.stmt:
    names: list[ast.expr] = [ast.Name(one, ast.Store()), ast.Name(other, ast.Store())]
    return ast.Assign([ast.Tuple(names, ast.Store())], value)
