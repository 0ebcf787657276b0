"""Registers planish's operators with torch as soon as both are imported, in whichever order.

torch.export.load and torch.jit.load look operators up by name, so they have to be there before the
first call of planish. This module imports torch no earlier than the program does: where it is not
there yet, its import is waited for. It is no "torch.backends" entry point of the package, which
torch would call in every process that imports it, whether that uses planish or not, and whose
failure is a failure of ``import torch``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["register_with_torch"]


def _register() -> None:
    """What fails here fails again, with its exception, at the first use."""
    try:
        importlib.import_module("planish.operators.batch_ops")  # and ops, which it stands on
    except Exception as error:
        logging.getLogger("planish").debug("planish's operators are not registered: %s", error)


#: Where torch.compile looks for a backend by its name.
_BACKENDS = "torch._dynamo.backends.registry"


def compile_graph(model: Any, inputs: Any, **options: Any) -> Any:
    """The backend "planish", which is imported when a graph is compiled."""
    return importlib.import_module("planish.compile").backend(model, inputs, **options)


def _register_backend() -> None:
    """The name that the package's entry point has as well, for a planish that is not installed."""
    try:
        sys.modules[_BACKENDS].register_backend(compiler_fn=compile_graph, name="planish")
    except Exception as error:
        logging.getLogger("planish").debug("the backend planish is not registered: %s", error)


class _WaitsFor:
    """A finder of modules that finds none: it sees a module's import begin, and acts at its end."""

    def __init__(self, module: str, act: Callable[[], None]) -> None:
        self._module, self._act = module, act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_then_register(module: ModuleType) -> None:
            del loader.exec_module  # the class's own again
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)
                raise
            self._act()

        try:
            loader.exec_module = execute_then_register  # type: ignore[method-assign]
        except AttributeError:
            logging.getLogger("planish").debug(
                "the loader of %s cannot be waited for: %r", name, loader
            )
        return spec


def register_with_torch() -> None:
    """Now, or once torch is imported; torch.compile's backend once torch's compiler is."""
    if hasattr(sys.modules.get("torch"), "library"):
        _register()
    elif "torch" not in sys.modules:
        sys.meta_path.insert(0, _WaitsFor("torch", _register))
    if hasattr(sys.modules.get(_BACKENDS), "register_backend"):
        _register_backend()
    elif _BACKENDS not in sys.modules:
        sys.meta_path.insert(0, _WaitsFor(_BACKENDS, _register_backend))
