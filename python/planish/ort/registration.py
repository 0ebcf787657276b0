"""The execution provider under ONNX Runtime: found, registered once, put into options."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from planish.library.loaded import library

__all__ = ["PROVIDER", "register", "session_options", "taken"]

#: The provider's name to the runtime (src/ort/provider.h).
PROVIDER = "PlanishExecutionProvider"
_REGISTERED_AS = "planish"
#: An entry of options that planish has been put into.
_MARK = "planish.added"
#: The first runtime whose interface has what planish uses.
_LEAST = (1, 24)
_lock = threading.Lock()


def _runtime() -> Any:
    """The onnxruntime that is installed; ImportError says what is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            "planish.ort: onnxruntime is not installed: pip install onnxruntime"
        ) from error
    found = str(onnxruntime.__version__)
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < _LEAST or not hasattr(onnxruntime, "register_execution_provider_library"):
        wanted = ".".join(map(str, _LEAST))
        raise ImportError(f"planish.ort: onnxruntime is {found}, wanted {wanted} or later")
    return onnxruntime


def _plugin() -> Path:
    """libplanish_ort.so, which stands beside libplanish.so."""
    path = library().path.with_name("libplanish_ort.so")
    if not path.is_file():
        raise ImportError(f"planish.ort: no libplanish_ort.so: looked for {path}")
    return path


def _devices(runtime: Any) -> list[Any]:
    return [device for device in runtime.get_ep_devices() if device.ep_name == PROVIDER]


def register() -> None:
    """Makes PlanishExecutionProvider known to ONNX Runtime, once for the process.

    ImportError: onnxruntime is not installed or older than 1.24, or libplanish_ort.so is not there.
    RuntimeError: the runtime refuses it, in its own words.
    """
    runtime = _runtime()
    with _lock:
        if _devices(runtime):
            return
        path = _plugin()
        try:
            runtime.register_execution_provider_library(_REGISTERED_AS, str(path))
        except Exception as error:
            raise RuntimeError(f"planish.ort: {path} was not registered: {error}") from error
        if not _devices(runtime):
            raise RuntimeError("planish.ort: onnxruntime finds no CPU that planish may run on")


def session_options(options: Any = None) -> Any:
    """These onnxruntime.SessionOptions, or new ones, with planish before the runtime's own kernels.

    It registers the provider where that has not been done. planish comes behind the providers that
    the options have already; nodes that it does not take run on the runtime's own CPU kernels. The
    same options may be given again. Errors: as ``register``; TypeError where ``options`` are of
    another type.
    """
    register()
    runtime = _runtime()
    if options is None:
        options = runtime.SessionOptions()
    elif not isinstance(options, runtime.SessionOptions):
        raise TypeError(
            f"planish.ort.session_options: options must be onnxruntime.SessionOptions, "
            f"not {type(options).__name__}"
        )
    try:
        options.get_session_config_entry(_MARK)
    except RuntimeError:  # of the runtime: there is none
        options.add_session_config_entry(_MARK, "1")
        options.add_provider_for_devices(_devices(runtime)[:1], {})
    return options


def taken(session: Any) -> list[tuple[str, ...]]:
    """The operators that run on planish in a session, one tuple for each call of it.

    The session's options need ``add_session_config_entry("session.record_ep_graph_assignment_info",
    "1")``.
    """
    groups = session.get_provider_graph_assignment_info()
    return [
        tuple(node.op_type for node in group.get_nodes())
        for group in groups
        if group.ep_name == PROVIDER
    ]
