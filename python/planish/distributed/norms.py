"""The norms of planish.distributed: arguments are checked, then one call of operators/parts.py."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from planish.distributed.agreement import agree, group_of, is_asked
from planish.distributed.checks import check_part, pieces_of
from planish.functions import stages
from planish.operators import call, kept, parts
from planish.operators.arguments import (
    axes_of,
    check_optional,
    check_parameter,
    eps_of,
    given_axes,
    number_of,
    whole_of,
    with_offset,
)
from torch import Tensor

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "group_norm",
    "layer_norm",
    "qk_norm",
    "rms_norm",
]

_Dims = int | Iterable[int]


def _described(
    reduce: tuple[int, ...],
    affine: tuple[int, ...],
    rms: bool,
    offset: int,
    dtype: torch.dtype | None,
    eps: float,
    cut: int,
    pieces: int,
) -> parts.Norm:
    options = call.pack_options(rms=rms, weight_offset=offset, dtype=dtype)
    return parts.Norm(call.pack_axes(reduce, affine), options, eps, cut, pieces)


_known = functools.lru_cache(1024)(_described)


def _norm_of(
    x: Tensor,
    weight: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    weight_offset: float,
    dtype: torch.dtype | None,
    cut: int,
    pieces: int,
) -> tuple[parts.Norm, Tensor | None]:
    """What parts.py takes for it, and the weight."""
    offset = 0
    if weight is not None and weight_offset:
        offset = 1 if weight_offset == 1 else 0
        weight = weight if offset else with_offset(weight, weight_offset)
    describe = _described if torch.compiler.is_compiling() else _known
    norm = describe(tuple(reduce), tuple(affine), rms, offset, dtype, eps, cut, pieces)
    return norm, weight


def _norm(
    function: str,
    rms: bool,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    group: Any,
    dims: _Dims,
    weight_offset: float,
    reproducible_shards: int | None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    key = None
    if reproducible_shards is None and not is_asked():
        key = kept.key_of((function, eps, dims, weight_offset, out_dtype), (x, weight, bias))
    known = kept.find(key)
    if known is not None:
        return parts.norm(known, group_of(function, group), x, weight, bias, plain=True)
    check_part(function, "x", x)
    check_optional(function, weight=weight, bias=bias)
    group = group_of(function, group)
    eps = eps_of(function, eps, rms, x.dtype)
    weight_offset = number_of(function, "weight_offset", weight_offset)
    reduce = axes_of(given_axes(function, "dims", dims), x.dim(), f"{function}, dims")
    if not reduce:
        raise RuntimeError(f"{function}: Expected dims to have at least one element, but got none")
    check_parameter(x, weight, reduce, function, "weight")
    check_parameter(x, bias, reduce, function, "bias")
    cut = reduce[0]
    pieces = pieces_of(function, reproducible_shards, group, x.shape[cut])
    agree(
        function,
        group,
        {"x": (x, reduce), "weight": _parameter(weight), "bias": _parameter(bias)},
        dims=reduce,
        eps=eps,
        weight_offset=weight_offset,
        reproducible_shards=reproducible_shards,
    )
    norm, shifted = _norm_of(
        x, weight, reduce, reduce, eps, rms, weight_offset, out_dtype, cut, pieces
    )
    if shifted is weight:
        kept.keep(key, norm)
    return parts.norm(norm, group, x, shifted, bias)


def _parameter(tensor: Tensor | None) -> tuple[Tensor | None, Any]:
    """As agree() takes it: its sizes are those of the part."""
    return tensor, () if tensor is None else range(tensor.dim())


# ---- The functions -------------------------------------------------------------------------------


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    group: Any = None,
    dims: _Dims = -1,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> Tensor:
    """Layer normalization of rows of which each rank of ``group`` has a part: x is this rank's part
    of the axes ``dims``, ``weight`` and ``bias`` are its part of the parameters; so are the result
    and all gradients. The parts may be of any sizes, none included; all other axes of x are the
    same on every rank.

        y = (x - mean) / sqrt(var + eps) * (weight_offset + weight) + bias

    with the mean and the variance of the whole row. ``group``: a process group, a mesh of one axis,
    or None for all processes. One exchange of 16 bytes a row and rank in the forward and one in the
    backward, gathered and put together in the order of the ranks by the formula of Chan, Golub and
    LeVeque: all ranks compute with the same bits, and the same again in each run of the same
    division. The result is within the bounds of the norm of the whole row.

    ``reproducible_shards=k``: each rank's part is seen as k / ranks pieces of the same size, each
    with statistics and sums of its own. The result and all gradients then have the same bits for
    every number of ranks that divides k, where all parts have the same size.

    Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable once. Every rank has to make
    the same calls in the same order, and to want the same gradients; see :func:`checked`.

    Raises TypeError for what is no tensor, number or group, RuntimeError for shapes that do not fit
    and where torch.distributed was not initialized, ValueError for ``reproducible_shards`` that the
    ranks or the size do not divide, NotImplementedError for another dtype or device.

    Example:

    >>> x, weight = torch.randn(4, 32), torch.ones(32)  # on two ranks: the halves of rows of 64
    >>> y = planish.distributed.layer_norm(x, weight, group=torch.distributed.group.WORLD)
    """
    return _norm(
        "layer_norm", False, x, weight, bias, eps, group, dims, weight_offset, reproducible_shards
    )


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    group: Any = None,
    dims: _Dims = -1,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> Tensor:
    """Root-mean-square normalization of rows of which each rank of ``group`` has a part.

        y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight)

    The exchanges are of 8 bytes a row and rank. Everything else as :func:`layer_norm`, but there is
    no bias, and ``eps`` may be None.

    Example:

    >>> q = torch.randn(2, 16, 4, 64)  # 4 of the heads, all of which are normalised together
    >>> weight = torch.ones(4, 64)
    >>> y = planish.distributed.rms_norm(q, weight, dims=(-2, -1))
    """
    return _norm(
        "rms_norm", True, x, weight, None, eps, group, dims, weight_offset, reproducible_shards
    )


def _add_norm(
    rms: bool,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    group: Any,
    weight_offset: float,
    reproducible_shards: int | None,
) -> tuple[Tensor, Tensor]:
    function = "add_rms_norm" if rms else "add_layer_norm"
    check_part(function, "x", x)
    check_part(function, "residual", residual)
    stages.check_like_x(function, "residual", residual, x)
    total = stages.sum_of(x, residual, residual.dtype, None, None)
    y = _norm(
        function, rms, total, weight, bias, eps, group, -1, weight_offset, reproducible_shards,
        x.dtype,
    )  # fmt: skip
    return y, total


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    group: Any = None,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum with a residual, then :func:`layer_norm` of it over the last axis, of which each rank has
    a part: ``(y, sum)``. The sum has the residual's dtype and is rounded to it once, y has x's
    dtype.

    Example:

    >>> x, residual = torch.randn(2, 8, 32), torch.randn(2, 8, 32)
    >>> y, total = planish.distributed.add_layer_norm(x, residual)
    """
    return _add_norm(
        False, x, residual, weight, bias, eps, group, weight_offset, reproducible_shards
    )


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    group: Any = None,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum with a residual, then :func:`rms_norm` of it over the last axis, of which each rank has a
    part: ``(y, sum)``. Otherwise as :func:`add_layer_norm`.

    Example:

    >>> x, residual = torch.randn(2, 8, 32), torch.randn(2, 8, 32)
    >>> y, total = planish.distributed.add_rms_norm(x, residual)
    """
    return _add_norm(
        True, x, residual, weight, None, eps, group, weight_offset, reproducible_shards
    )


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    group: Any = None,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> Tensor:
    """Group normalization of x (N, C, ...) of which each rank of ``group`` has a part of each of
    ``num_groups`` groups: of its pixels, or of its channels. Where groups lie on ranks as a whole,
    ``planish.group_norm`` needs no exchange.

    ``num_groups`` counts the groups that this rank has a part of; ``weight`` and ``bias`` have the
    elements of its C channels. Where pixels are sharded every rank has all parameters, and their
    gradients are this rank's share: to be added up over the ranks, as those of every replicated
    parameter. Everything else as :func:`layer_norm`.

    Example:

    >>> x = torch.randn(2, 64, 16, 32)  # one half of the rows of an image, on each of two ranks
    >>> y = planish.distributed.group_norm(x, 32, torch.ones(64), torch.zeros(64))
    """
    check_part("group_norm", "x", x)
    check_optional("group_norm", weight=weight, bias=bias)
    group = group_of("group_norm", group)
    num_groups = whole_of("group_norm", "num_groups", num_groups)
    eps = number_of("group_norm", "eps", eps)
    weight_offset = number_of("group_norm", "weight_offset", weight_offset)
    if x.dim() < 2 or num_groups <= 0 or x.shape[1] % num_groups:
        raise RuntimeError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, but "
            f"got input of shape {list(x.shape)} and num_groups={num_groups}"
        )
    check_parameter(x, weight, [1], "group_norm", "weight")
    check_parameter(x, bias, [1], "group_norm", "bias")
    batch, channels, *pixels = x.shape
    rows = x.reshape(batch, num_groups, channels // num_groups, *pixels)
    reduce = list(range(2, rows.dim()))
    cut = 3 if pixels else 2
    pieces = pieces_of("group_norm", reproducible_shards, group, rows.shape[cut])
    agree(
        "group_norm",
        group,
        {"x": (x, range(1, x.dim())), "weight": _parameter(weight), "bias": _parameter(bias)},
        num_groups=num_groups,
        eps=eps,
        weight_offset=weight_offset,
        reproducible_shards=reproducible_shards,
    )
    weight, bias = (None if t is None else t.reshape(num_groups, -1) for t in (weight, bias))
    norm, weight = _norm_of(
        rows, weight, reduce, [1, 2], eps, False, weight_offset, None, cut, pieces
    )
    return parts.norm(norm, group, rows, weight, bias).view(x.shape)


def qk_norm(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float | None,
    *,
    group: Any = None,
    kind: str = "rms",
    dims: _Dims = -1,
    weight_offset: float = 0.0,
    reproducible_shards: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Norms of queries and keys across all heads, which lie on the ranks of ``group``: ``(q, k)``,
    by one exchange for both.

    q is this rank's heads: (..., heads * D), or (..., heads, D) with ``dims=(-2, -1)``; k likewise
    with its own number of heads. ``q_weight`` and ``k_weight`` have the sizes of ``dims``. The
    ranks may have different numbers of heads. Everything else as :func:`rms_norm`, or with
    ``kind="layer"`` :func:`layer_norm`. Norms of each head by itself need no exchange:
    ``planish.qk_norm``.

    Example:

    >>> q, k = torch.randn(2, 16, 8 * 64), torch.randn(2, 16, 2 * 64)
    >>> q, k = planish.distributed.qk_norm(q, k, None, None, 1e-6)
    """
    if kind not in ("rms", "layer"):
        raise ValueError(f"qk_norm: kind is {kind!r}; known are 'rms' and 'layer'")
    group = group_of("qk_norm", group)
    rms = kind == "rms"
    weight_offset = number_of("qk_norm", "weight_offset", weight_offset)
    dims = given_axes("qk_norm", "dims", dims)
    named: dict[str, tuple[Tensor | None, Any]] = {}
    found: list[parts.Norm] = []
    tensors: list[Tensor | None] = []
    for name, x, weight in (("q", q, q_weight), ("k", k, k_weight)):
        check_part("qk_norm", name, x)
        check_optional("qk_norm", **{f"{name}_weight": weight})
        reduce = axes_of(dims, x.dim(), "qk_norm, dims")
        check_parameter(x, weight, reduce, "qk_norm", f"{name}_weight")
        number = eps_of("qk_norm", eps, rms, x.dtype)
        pieces = pieces_of("qk_norm", reproducible_shards, group, x.shape[reduce[0]])
        norm, weight = _norm_of(
            x, weight, reduce, reduce, number, rms, weight_offset, None, reduce[0], pieces
        )
        named |= {name: (x, reduce), f"{name}_weight": _parameter(weight)}
        found.append(norm)
        tensors += [x, weight, None]
    agree("qk_norm", group, named, dims=dims, eps=eps, kind=kind)
    normed_q, normed_k = parts.norms(tuple(found), group, *tensors)
    return normed_q, normed_k
