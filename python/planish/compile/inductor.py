"""torch.compile's backend "planish", and inductor with planish's choices for every graph: the same
function, called by name or put in the place of inductor's own."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from planish.compile.choice import FASTER, MODES

__all__ = ["backend", "compile_graph", "is_on", "switch"]

_lock = threading.Lock()


class _State:
    """How graphs are compiled that inductor is asked for by its own name."""

    mode: str | None = None
    #: inductor's own function, where planish's stands in its place.
    inductors: Any = None


def _inductor() -> Any:
    """The module of inductor whose compile_fx every way to it calls."""
    from torch._inductor import compile_fx

    return compile_fx


def _own() -> Any:
    return _State.inductors or _inductor().compile_fx


def _with_pass(patches: dict[str, Any], one: Any) -> dict[str, Any]:
    """Inductor's options with this pass in front of the user's own."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    name = "joint_custom_pre_pass"
    theirs = patches.get(name, getattr(config, name))
    if theirs is None:
        return {**patches, name: one}
    others = list(theirs) if isinstance(theirs, list | tuple) else [theirs]

    class Several(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            for each in (one, *others):
                each(graph)

        def uuid(self) -> Any:
            known = [each.uuid() if hasattr(each, "uuid") else None for each in (one, *others)]
            return None if None in known else tuple(known)

    return {**patches, name: Several()}


class _Kept(dict[Any, Any]):
    """inductor's decompositions but for those of norms. They are a part of the key of its caches,
    which is made by pickle: so that this one has the same key in every process."""

    def __reduce__(self) -> Any:
        return _kept, ()


def _kept(whole: dict[Any, Any] | None = None) -> _Kept:
    from torch._inductor.decomposition import select_decomp_table

    from planish.compile import reading

    table = select_decomp_table() if whole is None else whole
    return _Kept((op, made) for op, made in table.items() if op not in reading.TORCHS)


def _given(table: Any) -> Any:
    return table


def _with_named_table(compile_inner: Any) -> Any:
    """Inductor's compilation of one graph. torch 2.12 hands on what has the decompositions as a
    local function, which has no place in the key of its caches: they were passed by."""

    def compile_one(*arguments: Any, **named: Any) -> Any:
        find: Any = named.get("get_decomp_fn")
        if "<locals>" in getattr(find, "__qualname__", ""):
            named["get_decomp_fn"] = functools.partial(_given, find())
        return compile_inner(*arguments, **named)

    return compile_one


def compile_graph(
    model: Any,
    inputs: Any,
    mode: str,
    config_patches: dict[str, Any] | None = None,
    decompositions: dict[Any, Any] | None = None,
    **more: Any,
) -> Any:
    """inductor's compile_fx, with norms that are whole until planish has chosen."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    from planish.compile import forms, joint, written

    forms.register()  # also for a graph that comes out of a cache
    left = written.rewrite(model, mode) if isinstance(model, torch.fx.GraphModule) else []
    patches = config_patches or {}
    with config.patch(patches):
        whole = dict(decompositions or select_decomp_table())
    kept = _kept(whole) if decompositions is None else dict(_kept(whole))
    chooses = joint.NormPass(mode, whole, left)
    more["inner_compile"] = _with_named_table(
        more.get("inner_compile") or _inductor().compile_fx_inner
    )
    return _own()(
        model,
        inputs,
        config_patches=_with_pass(patches, chooses),
        decompositions=kept,
        **more,
    )


def backend(
    model: torch.fx.GraphModule,
    inputs: Any,
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """The backend of ``torch.compile(model, backend="planish")``: inductor, of whose graphs planish
    takes the norms that it is faster at.

    ``mode`` and ``options`` are inductor's. One option is planish's own: ``options={"planish":
    "always"}`` takes every norm, so that its bits are those of eager calls of planish.

    Raises ValueError for a value of that option that is not known, RuntimeError as inductor does
    for options that it does not know.
    """
    given = dict(options or {})
    which = _checked(
        "torch.compile(backend='planish'): options['planish']", given.pop("planish", FASTER)
    )
    wrapper: Any = torch._TorchCompileInductorWrapper(mode or "default", given or None, None)  # type: ignore[no-untyped-call]
    return compile_graph(model, inputs, which, dict(wrapper.config), **more)


def _checked(argument: str, mode: Any, others: str = "") -> str:
    if mode not in MODES:
        known = ", ".join(map(repr, MODES))
        raise ValueError(f"{argument} is {mode!r}; known are {known}{others}")
    return str(mode)


def _instead(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
    """What stands in the place of inductor's compile_fx. It calls itself once more for options;
    what has planish's table of decompositions already is passed on."""
    if _State.mode is None or arguments or named.get("decompositions") is not None:
        return _own()(model, inputs, *arguments, **named)
    return compile_graph(model, inputs, _State.mode, **named)


def is_on() -> str | None:
    """The mode of graphs that inductor is asked for by its own name; None while planish stands
    aside there."""
    return _State.mode


def switch(compile: bool | str) -> None:
    """Has every graph that inductor makes from now on be looked at by planish, or none (False)."""
    with _lock:
        if compile is False:
            _State.mode = None
            if _State.inductors is not None:
                module = _inductor()
                if module.compile_fx is _replaced():
                    module.compile_fx = _State.inductors
                    _State.inductors = None
            return
        others = ", True and False"
        _State.mode = (
            FASTER if compile is True else _checked("planish.enable: compile", compile, others)
        )
        module = _inductor()
        if _State.inductors is None:
            _State.inductors = module.compile_fx
            module.compile_fx = _replaced()


@functools.cache
def _replaced() -> Any:
    own = _inductor().compile_fx

    @functools.wraps(own)
    def compile_fx(model_: Any, example_inputs_: Any, *arguments: Any, **named: Any) -> Any:
        return _instead(model_, example_inputs_, *arguments, **named)

    return compile_fx
