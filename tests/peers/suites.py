"""Runs a peer's unittest modules from a folder and says of each case what became of it.

What a suite is lies outside this project and is given by its folder; nothing of it is kept here. On
a machine without a GPU the text of a CUDA suite is changed on the way (`ToCPU`), so that it runs on
CPU tensors; on one with a GPU it runs as it is.
"""

from __future__ import annotations

import ast
import io
import sys
import time
import unittest
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

__all__ = ["Outcome", "ToCPU", "load", "run", "table"]


class ToCPU(ast.NodeTransformer):
    """ "cuda" becomes "cpu", x.cuda() becomes x.cpu(), torch.cuda becomes ``cuda_stand_in``, and no
    tensor is asserted to be_cuda.

    ``references``: classes of the peer whose instances the suite moves to the CPU by .cpu() to have
    something to compare with; that becomes ``reference_of(instance)``, for on the CPU the peer's
    class would be compared with itself.
    """

    def __init__(self, references: Iterable[str] = ()) -> None:
        self.references = set(references)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant("cpu"), node) if node.value == "cuda" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name("cuda_stand_in", ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if not isinstance(function, ast.Attribute):
            return node
        made = function.value.func if isinstance(function.value, ast.Call) else None
        if function.attr == "cpu" and isinstance(made, ast.Name) and made.id in self.references:
            name = ast.Name("reference_of", ast.Load())
            return ast.copy_location(ast.Call(name, [function.value], []), node)
        if function.attr == "cuda":
            function.attr = "cpu"
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        call = node.value
        asserts = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if asserts and call.func.attr in ("assertTrue", "assertFalse"):
            argument = call.args[0]
            if isinstance(argument, ast.Attribute) and argument.attr == "is_cuda":
                return ast.copy_location(ast.Pass(), node)
        return node


def load(path: Path, name: str, change: ast.NodeTransformer | None, **names: object) -> ModuleType:
    """The suite's module, changed or not, with these names in it."""
    tree: ast.AST = ast.parse(path.read_text(), str(path))
    if change is not None:
        tree = ast.fix_missing_locations(change.visit(tree))
    module = ModuleType(name)
    module.__file__ = str(path)
    vars(module).update(names)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), vars(module))  # type: ignore[arg-type]
    return module


@dataclass
class Outcome:
    """What became of the cases of one suite."""

    suite: str
    cases: int = 0
    passed: int = 0
    #: By reason; so are those that do not apply.
    failed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Result(unittest.TestResult):
    def __init__(self, outcome: Outcome, known: dict[str, str], chatty: bool) -> None:
        super().__init__()
        self.outcome, self.known, self.chatty = outcome, known, chatty
        self._bad: set[str] = set()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if self.chatty:
            word = "FAILED" if test.id() in self._bad else "done"
            print(f"  {word}: {test.id().rpartition('.')[2]}", flush=True)

    def _fail(self, test: unittest.TestCase, error: object) -> None:
        kind, value, _ = error  # type: ignore[misc]
        if test.id() in self._bad:
            return
        self._bad.add(test.id())
        name = test.id().rpartition(".")[2]
        lines = str(value).strip().splitlines() or [""]
        reason = f"{name}: {kind.__name__}: {lines[0][:160]}"
        for start, why in self.known.items():
            reason = why if name.startswith(start) else reason
        self.outcome.failed[reason] += 1
        self.outcome.texts.append(self._exc_info_to_string(error, test))  # type: ignore[attr-defined]

    def addError(self, test, err):  # type: ignore[no-untyped-def]
        super().addError(test, err)
        self._fail(test, err)

    def addFailure(self, test, err):  # type: ignore[no-untyped-def]
        super().addFailure(test, err)
        self._fail(test, err)

    def addSubTest(self, test, subtest, err):  # type: ignore[no-untyped-def]
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        if isinstance(test, unittest.TestCase) and test.id() not in self._bad:
            self.outcome.skipped[reason] += 1

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.outcome.passed += 1


def _cases(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    found: list[unittest.TestCase] = []
    for item in suite:
        found += _cases(item) if isinstance(item, unittest.TestSuite) else [item]
    return found


def run(
    name: str,
    module: ModuleType,
    leave_out: dict[str, str],
    known: dict[str, str],
    only: str = "",
    chatty: bool = True,
) -> Outcome:
    """Runs the cases whose name has ``only`` in it. ``leave_out``: cases that are not run, by name,
    and why. ``known``: why a case fails whose name starts so; it is counted as failed."""
    outcome = Outcome(name)
    result = _Result(outcome, known, chatty)
    began = time.monotonic()
    for case in _cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        method = case.id().rpartition(".")[2]
        if only not in method:
            continue
        outcome.cases += 1
        if method in leave_out:
            outcome.skipped[leave_out[method]] += 1
            continue
        stdout, sys.stdout = sys.stdout, io.StringIO()
        try:
            case.run(_Quiet(result, stdout))
        finally:
            sys.stdout = stdout
    outcome.seconds = time.monotonic() - began
    return outcome


class _Quiet:
    """The result, with what a suite prints kept back and what we print let through."""

    def __init__(self, result: _Result, stdout: object) -> None:
        self.__dict__.update(result=result, stdout=stdout)

    def __getattr__(self, name: str) -> object:
        value = getattr(self.result, name)
        if name != "stopTest":
            return value

        def stop(test: unittest.TestCase) -> None:
            kept, sys.stdout = sys.stdout, self.stdout
            try:
                value(test)
            finally:
                sys.stdout = kept

        return stop


def _reasons(counts: Counter[str]) -> str:
    return "; ".join(f"{count}: {reason}" for reason, count in counts.items())


def table(outcomes: Iterable[Outcome]) -> str:
    """One line a suite, for the README."""
    lines = ["| suite | cases | passed | failed, reason | not applicable, reason |"]
    lines.append("|---|---|---|---|---|")
    for o in outcomes:
        failed = f"{o.failed.total()}" + (f" ({_reasons(o.failed)})" if o.failed else "")
        skipped = f"{o.skipped.total()}" + (f" ({_reasons(o.skipped)})" if o.skipped else "")
        lines.append(f"| {o.suite} | {o.cases} | {o.passed} | {failed} | {skipped} |")
    return "\n".join(lines)
