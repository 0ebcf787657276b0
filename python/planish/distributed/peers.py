"""Sums and rows between the GPUs of one host by copies from one's memory to another's, which their
copy engines make while the kernels of other rows run: torch's symmetric memory. Where a group has
none (other hosts, gloo, no way from GPU to GPU) it goes by the backend's collectives, which
reduced.py calls.

A rank has room for one summand of its own rows from each other rank, and for its own results. Each
call begins with a barrier, behind which what the last one put there has been read by everyone."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

import torch
from torch import Tensor

__all__ = ["all_gather", "between", "reduce_norm_gather", "reduce_scatter"]

#: Bytes of all rows from which on copies are faster than the collectives, by the clock of an eager
#: call, too; and the most that room is made for on behalf of one group.
LEAST_BYTES, MOST_BYTES = 128 << 20, 1 << 30
#: More pieces than two were slower at every size.
PIECES = 2
#: How long a kernel waits for another rank before it ends the process, as the backend's watchdog.
PATIENCE_MS = 600_000


_on: Callable[[torch.device], Any] = torch.cuda.device
_event: Callable[[], Any] = torch.cuda.Event
_stream: Callable[[], Any] = torch.cuda.Stream


def _is_captured() -> bool:
    return torch.cuda.is_current_stream_capturing()


class Room:
    """What a rank has for the others: `made`, of which `memory` is torch's handle."""

    def __init__(self, memory: Any, made: Tensor, group: dist.ProcessGroup) -> None:
        self.memory, self.made, self.group, self.size = memory, made, group, made.numel()
        self.ranks, self.rank = group.size(), group.rank()
        self.others = [one for one in range(self.ranks) if one != self.rank]
        self.done: Any = None  # of the last call, for one on another stream

    def summands(self, of: int, like: Tensor) -> Tensor:
        """(others, rows, ...): what rank `of` has of each other rank, in their order."""
        sizes = (self.ranks - 1, *like.shape[1:])
        made: Tensor = self.memory.get_buffer(of, sizes, like.dtype, 0)
        return made

    def results(self, of: int, like: Tensor) -> Tensor:
        """(rows, ...): what rank `of` hands around."""
        offset = (self.ranks - 1) * like[0].numel()
        made: Tensor = self.memory.get_buffer(of, like.shape[1:], like.dtype, offset)
        return made

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A call: behind the last one of every rank, whatever streams these were on."""
        with _on(self.made.device):
            is_free = not _is_captured()  # a graph's order is its own
            if not is_free and self not in _in_graphs:
                _in_graphs.append(self)
            if is_free and self.done is not None:
                torch.cuda.current_stream().wait_event(self.done)
            self.memory.barrier(channel=0, timeout_ms=PATIENCE_MS)
            yield
            if is_free:
                self.done = self.done or _event()
                self.done.record()

    def tell(self, other: int, channel: int) -> None:
        self.memory.put_signal(other, channel=channel, timeout_ms=PATIENCE_MS)

    def hear(self, other: int, channel: int) -> None:
        self.memory.wait_signal(other, channel=channel, timeout_ms=PATIENCE_MS)


# ---- Which groups have room ----------------------------------------------------------------------

_rooms: dict[str, tuple[dist.ProcessGroup, Room | None]] = {}
#: Those that CUDA graphs read and write, when there is a larger one, too.
_in_graphs: list[Room] = []


def _identity(mine: int) -> tuple[str, ...]:
    """Of the host and its run, this process's GPU and every GPU that it can copy to."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        host = f"{socket.gethostname()} {file.read().strip()}"
    seen = [
        str(torch.cuda.get_device_properties(device).uuid)
        for device in range(torch.cuda.device_count())
        if device == mine or torch.cuda.can_device_access_peer(mine, device)
    ]
    return host, str(torch.cuda.get_device_properties(mine).uuid), *seen


def _are_neighbours(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether every rank has a GPU of its own in one host, to which every other rank's has a way.
    The ranks ask together and have the same answer."""
    if group.size() == 1 or "cuda:nccl" not in dist.get_backend_config(group):
        return False
    mine: tuple[str, ...] = ()
    if os.environ.get("PLANISH_PEERS") != "0":
        with contextlib.suppress(OSError, RuntimeError, AssertionError):
            mine = _identity(device.index)
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, mine, group=group)
    if not all(everyone):
        return False
    gpus = {gpu for _, gpu, *_ in everyone}
    hosts = {host for host, *_ in everyone}
    all_seen = all(gpus <= set(seen) for _, _, *seen in everyone)
    return len(hosts) == 1 and len(gpus) == group.size() and all_seen


def _all_have(found: object, group: dist.ProcessGroup, device: torch.device) -> bool:
    count = torch.tensor(int(found is not None), device=device)
    dist.all_reduce(count, dist.ReduceOp.MIN, group=group)
    return bool(count)


def _made(group: dist.ProcessGroup, size: int, device: torch.device) -> Room | None:
    """Room of that many bytes; None, on every rank, where one of them has none."""
    import torch.distributed._symmetric_memory as symmetric

    made = memory = None
    with contextlib.suppress(RuntimeError):
        made = symmetric.empty(size, dtype=torch.uint8, device=device)
    is_everywhere = _all_have(made, group, device)
    if made is None or not is_everywhere:
        return None
    with contextlib.suppress(RuntimeError):
        memory = symmetric.rendezvous(made, group)
    return Room(memory, made, group) if _all_have(memory, group, device) else None


def between(group: dist.ProcessGroup, own: Tensor, rows: int) -> Room | None:
    """Room for `rows` rows of all ranks like those of `own`, where the group has it and it pays:
    the same answer on every rank. What it takes to find out is done once; a CUDA graph that is
    captured before goes by the collectives."""
    if own.device.type != "cuda":
        return None
    size = rows * math.prod(own.shape[1:]) * own.element_size()
    if not LEAST_BYTES <= size <= MOST_BYTES or rows % group.size():
        return None
    of, room = _rooms.get(group.group_name, (None, None))
    if of is group and (room is None or room.size >= size):
        return room
    if _is_captured():
        return None
    if of is not group:
        room = None
    with torch.cuda.device(own.device):
        if of is group or _are_neighbours(group, own.device):
            torch.cuda.synchronize()
            dist.barrier(group)  # what was there has been read
            _rooms.pop(group.group_name, None)
            room = _made(group, size, own.device)
    _rooms[group.group_name] = group, room
    return room


# ---- What goes through it ------------------------------------------------------------------------


_kept_lanes: dict[torch.device, list[Any]] = {}


def _lanes() -> list[Any]:
    """Two streams beside the current one, behind what that has been given."""
    current = torch.cuda.current_stream()
    if current.device not in _kept_lanes:
        _kept_lanes[current.device] = [_stream(), _stream()]
    lanes = _kept_lanes[current.device]
    for lane in lanes:
        lane.wait_stream(current)
    return lanes


def _joined(lanes: list[Any]) -> None:
    for lane in lanes:
        torch.cuda.current_stream().wait_stream(lane)


def _by_rank(x: Tensor, room: Room) -> Tensor:
    """x as (ranks, rows of each, ...)."""
    return x.contiguous().view(room.ranks, x.shape[0] // room.ranks, *x.shape[1:])


def _cuts(whole: Tensor) -> list[slice]:
    """The pieces of the rows of whole[0]."""
    ends = [whole.shape[1] * (i + 1) // PIECES for i in range(PIECES)]
    return [slice(*ends) for ends in zip([0, *ends], ends, strict=False)]


def _give_summands(room: Room, whole: Tensor, cuts: list[slice]) -> None:
    """Each other rank's rows go to it, piece by piece."""
    for channel, rows in enumerate(cuts, 1):
        for other in room.others:
            place = room.rank - (room.rank > other)
            room.summands(other, whole)[place, rows].copy_(whole[other, rows])
            room.tell(other, channel)


def _sum(room: Room, whole: Tensor, rows: slice, channel: int) -> Tensor:
    """Of this rank's rows: the other ranks' in their order, then its own."""
    for other in room.others:
        room.hear(other, channel)
    theirs = room.summands(room.rank, whole)[:, rows]
    return whole[room.rank, rows] + (theirs[0] if room.ranks == 2 else theirs.sum(0))


def _hand_around(room: Room, whole: Tensor, y: Tensor, rows: slice, channel: int) -> None:
    room.results(room.rank, whole)[rows].copy_(y)
    for other in room.others:
        room.tell(other, channel)


def _take_results(room: Room, into: Tensor, cuts: list[slice]) -> None:
    for channel, rows in enumerate(cuts, 1 + len(cuts)):
        for other in room.others:
            room.hear(other, channel)
            into[other, rows].copy_(room.results(other, into)[rows])


def reduce_scatter(x: Tensor, room: Room) -> Tensor:
    """The sum over the ranks of this rank's rows of axis 0."""
    whole = _by_rank(x, room)
    with room.turn():
        _give_summands(room, whole, [slice(None)])
        return _sum(room, whole, slice(None), 1)


def all_gather(own: Tensor, room: Room) -> Tensor:
    """All rows of axis 0, from each rank's own."""
    y = own.new_empty((room.ranks, *own.shape))
    with room.turn():
        _hand_around(room, y, own, slice(None), 2)
        y[room.rank].copy_(own)
        _take_results(room, y, [slice(None)])
    return y.flatten(0, 1)


def reduce_norm_gather(x: Tensor, room: Room, norm: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """All rows of ``norm(sum, rows)``, which is called for one piece after the other of this rank's
    rows, with their sum over the ranks. The copies of one piece run beside the norm of another."""
    whole = _by_rank(x, room)
    y = torch.empty_like(whole)
    cuts = _cuts(whole)
    with room.turn():
        giving, taking = lanes = _lanes()
        with torch.cuda.stream(giving):
            _give_summands(room, whole, cuts)
        for channel, rows in enumerate(cuts, 1):
            made = norm(_sum(room, whole, rows, channel), rows)
            _hand_around(room, whole, made, rows, channel + len(cuts))
            y[room.rank, rows].copy_(made)
        with torch.cuda.stream(taking):
            _take_results(room, y, cuts)
        _joined(lanes)
    return y.flatten(0, 1)
