"""planish run: an unchanged Python program with planish under torch.

``planish run train.py --lr 1e-3`` is ``python train.py --lr 1e-3`` with planish.enable() behind its
first ``import torch``. This file knows how Python starts a program; nothing here imports torch.
"""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

import planish

__all__ = ["main"]

_USAGE = "planish run [--apex] [--no-enable] (script.py | folder | archive | -m module) [ARGS]"
_ABOUT = """\
Runs a Python program as python does, with torch's normalization operators on planish as soon as
torch is imported. sys.argv, sys.path, __main__ and the exit status are as python has them."""


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What is for planish, and what follows, the program's name first."""
    parser = argparse.ArgumentParser(
        "planish run", usage=_USAGE, description=_ABOUT, allow_abbrev=False
    )
    parser.add_argument(
        "--apex",
        action="store_true",
        help="let `import apex` find planish's normalization layers, where Apex is missing",
    )
    parser.add_argument(
        "--no-enable",
        action="store_true",
        help="leave torch's operators alone: for --apex without the rest",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    rest = given.program[1:] if given.program[:1] == ["--"] else given.program
    if not rest:
        parser.error("there is no program to run")
    return given, rest


# ---- planish behind the program's import of torch -----------------------------------------------


class _EnableBehindTorch:
    """Of sys.meta_path: enables planish when torch has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = self._found_by_others(path)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        run = loader.exec_module

        def run_and_enable(module: ModuleType) -> None:
            run(module)
            self.remove()
            planish.enable()

        loader.exec_module = run_and_enable  # of this one spec's loader
        return spec

    def _found_by_others(self, path: Sequence[str] | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec("torch", path)
                if spec is not None:
                    return spec
        return None

    def remove(self) -> None:
        meta_path: list[Any] = sys.meta_path
        if self in meta_path:
            meta_path.remove(self)


def _enable_behind_torch() -> None:
    if "torch" in sys.modules:
        planish.enable()
        return
    meta_path: list[Any] = sys.meta_path
    meta_path.insert(0, _EnableBehindTorch())


# ---- The program --------------------------------------------------------------------------------


class _CannotRun(Exception):
    """Python's own sentence about what it was given."""


def _new_main(spec: ModuleSpec | None, file: str | None) -> ModuleType:
    """An empty __main__, put in place of planish's own."""
    module = ModuleType("__main__")
    contents: dict[str, Any] = {
        "__builtins__": builtins,
        "__file__": file,
        "__cached__": spec.cached if spec else None,
        "__loader__": spec.loader if spec else None,
        "__package__": spec.parent if spec else None,
        "__spec__": spec,
    }
    vars(module).update(contents)
    sys.modules["__main__"] = module
    return module


def _set_first_path(folder: str) -> None:
    """Python puts it there itself, for planish's own start; this is the program's."""
    if not getattr(sys.flags, "safe_path", False):  # python -P, since 3.11
        sys.path[0] = folder


def _code_of(spec: ModuleSpec, name: str) -> CodeType:
    loader: Any = spec.loader
    code: CodeType | None = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise _CannotRun(f"No code object available for {name}")
    return code


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise _CannotRun(
            f"Error while finding module specification for {name!r} ({error})"
        ) from error
    if spec is None:
        raise _CannotRun(f"No module named {name}")
    if spec.submodule_search_locations is None:
        return spec
    if name.endswith(".__main__"):
        raise _CannotRun(f"{name} is a package and cannot be directly executed")
    try:
        return _find_module(f"{name}.__main__")
    except _CannotRun as error:
        raise _CannotRun(
            f"{error}; {name!r} is a package and cannot be directly executed"
        ) from error


def _load_module(name: str) -> tuple[ModuleType, CodeType]:
    _set_first_path(os.getcwd())
    spec = _find_module(name)
    code = _code_of(spec, name)
    sys.argv[0] = spec.origin or name
    return _new_main(spec, spec.origin), code


def _load_script(name: str) -> tuple[ModuleType, CodeType]:
    path = os.path.abspath(name)
    if os.path.isdir(path) or (not path.endswith(".py") and _is_archive(path)):
        _set_first_path(path)
        spec = PathFinder.find_spec("__main__", [path])
        if spec is None:
            raise _CannotRun(f"can't find '__main__' module in {name!r}")
        return _new_main(spec, spec.origin), _code_of(spec, name)
    try:
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        raise _CannotRun(f"can't open file {path!r}: {why}") from error
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    return _new_main(None, path), compile(text, path, "exec", dont_inherit=True)


def _is_archive(path: str) -> bool:
    return os.path.isfile(path) and zipfile.is_zipfile(path)


def _run(code: CodeType, main_module: ModuleType) -> int:
    try:
        exec(code, vars(main_module))
    except Exception as error:
        # as python shows it: without what is between planish and the program
        trace = error.__traceback__
        shown = trace.tb_next if trace is not None else None
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns the exit status where the program does not end by itself."""
    given, program = _parse(sys.argv[2:] if argv is None else argv)
    sys.argv = list(program)
    if given.apex:
        import planish.apex

        planish.apex.install()
    if not given.no_enable:
        _enable_behind_torch()
    try:
        loaded = _load_module(program[0]) if given.module else _load_script(program[0])
    except _CannotRun as error:
        print(f"planish run: {error}", file=sys.stderr)
        return 1 if given.module else 2
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    return _run(loaded[1], loaded[0])
