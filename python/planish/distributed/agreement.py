"""Whether the ranks of a group make the same call: looked at before anything else is exchanged,
where it is asked for. Then either all of them go on or all of them raise the same sentence."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

import torch
from torch import Tensor

__all__ = ["agree", "checked", "group_of", "is_asked"]

_asked: contextvars.ContextVar[bool] = contextvars.ContextVar("planish_checked", default=False)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Calls of planish.distributed inside compare what the ranks of their group were given, by one
    more exchange for each call: shapes but for the sharded sizes, dtypes, options and which
    gradients are wanted. Where ranks disagree, RuntimeError on every rank says who was given what.
    Without it such a call fails in the collective, hangs, or is wrong, as the backend has it.

    All ranks of a group have to be inside, or none. ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` asks for the
    same of every call. What torch.compile traces is not checked.

    Example:

    >>> with planish.distributed.checked():
    ...     y = planish.distributed.layer_norm(torch.randn(2, 8))
    """
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def is_asked() -> bool:
    """Whether the ranks are to compare what they were given."""
    if torch.compiler.is_compiling():
        return False
    debug: Any = dist
    return bool(_asked.get() or debug.get_debug_level() == debug.DebugLevel.DETAIL)


def group_of(function: str, group: Any) -> dist.ProcessGroup:
    """The process group that is meant: None for that of all processes, a mesh of one axis for its
    group."""
    world: Any = dist.group.WORLD if dist.is_available() else None
    if world is None:
        raise RuntimeError(
            f"{function}: Default process group has not been initialized, please make sure to call "
            "init_process_group."
        )
    if group is None:
        return world  # type: ignore[no-any-return]
    if isinstance(group, dist.device_mesh.DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"{function}: group is a mesh of {group.ndim} axes; wanted one axis: mesh['tp']"
            )
        return group.get_group()
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{function}: this rank is not in the group")
    raise TypeError(
        f"{function}: Expected group to be a torch.distributed.ProcessGroup, a DeviceMesh of one "
        f"axis, or None, but got {type(group).__name__}"
    )


def _described(tensor: Tensor, sharded: frozenset[int]) -> str:
    sizes = ("*" if axis in sharded else str(size) for axis, size in enumerate(tensor.shape))
    return f"({', '.join(sizes)}) of {tensor.dtype}{' with gradient' * tensor.requires_grad}"


def agree(
    function: str,
    group: dist.ProcessGroup,
    tensors: dict[str, tuple[Tensor | None, Any]],
    **options: Any,
) -> None:
    """Raises on every rank where these are not those of each other rank. ``tensors``: by name, with
    the axes that are sharded, whose sizes may differ."""
    if not is_asked():
        return
    named = [
        f"{name}: {'None' if tensor is None else _described(tensor, frozenset(sharded))}"
        for name, (tensor, sharded) in tensors.items()
    ]
    mine = "; ".join([function, *named, *(f"{key}={value!r}" for key, value in options.items())])
    mine += f"; grad mode {'on' if torch.is_grad_enabled() else 'off'}"
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, mine, group=group)
    if len(set(everyone)) == 1:
        return
    said: dict[str, list[int]] = {}
    for rank, text in enumerate(everyone):
        said.setdefault(text, []).append(rank)
    lines = "".join(f"\n  rank {', '.join(map(str, who))}: {text}" for text, who in said.items())
    raise RuntimeError(f"{function}: the ranks of the group disagree about the call:{lines}")
