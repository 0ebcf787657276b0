"""The norms of queries and keys, by one call where that can be (pairs.py)."""

from __future__ import annotations

from planish.functions import functional, stages
from planish.operators import kept, pairs, steps
from planish.operators.arguments import check_cast, eps_of, number_of
from planish.operators.stage_calls import last_axes
from torch import Tensor

__all__ = ["qk_norm"]


def qk_norm(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float | None,
    *,
    kind: str = "rms",
    weight_offset: float = 0.0,
    cast: str = "once",
) -> tuple[Tensor, Tensor]:
    """Norms of queries and keys over the last axis, each with a weight of its own: ``(q, k)``.

    ``q`` (..., heads, D) and ``k`` (..., kv_heads, D) may be slices of a packed qkv, in any
    strides; the results are dense. ``q_weight`` and ``k_weight`` have D elements, or (heads, D): a
    weight for each head; or are None. ``kind``: "rms" or "layer". Dtypes, ``eps``, ``cast`` and
    derivatives as :func:`planish.rms_norm`.

    Raises TypeError for what is no tensor or no number, ValueError for another kind or cast,
    RuntimeError for shapes that do not fit, NotImplementedError for another dtype or device.

    Example:

    >>> q, k, v = torch.randn(2, 5, 3, 4, 16).unbind(2)  # slices of a packed qkv
    >>> q, k = planish.qk_norm(q, k, torch.ones(16), torch.ones(16), 1e-6)
    >>> q.shape, q.is_contiguous()
    (torch.Size([2, 5, 4, 16]), True)
    """
    number = pairs.eps_of_both(q, k) if eps is None and kind == "rms" else eps
    plain = cast == "once" and kind in ("rms", "layer") and steps.is_zero(weight_offset)
    if plain:
        both = steps.pair(kind == "rms", q, k, q_weight, k_weight, eps)
        if both is not None:
            return both
    tensors, key = (q, k, q_weight, k_weight), None
    if cast == "once" and number is not None:
        key = kept.key_of(("qk_norm", kind, number, weight_offset), tensors)
        both = pairs.known(key, tensors)
        if both is not None:
            return both
    check_cast("qk_norm", cast)
    if kind not in ("rms", "layer"):
        raise ValueError(f"qk_norm: kind is {kind!r}; known are 'rms' and 'layer'")
    for name, tensor in (("q", q), ("k", k)):
        stages.check_x("qk_norm", tensor, name)
    stages.check_parameter("qk_norm", "q_weight", q_weight, q, "q")
    stages.check_parameter("qk_norm", "k_weight", k_weight, k, "k")
    rms = kind == "rms"
    q_eps, k_eps = (eps_of("qk_norm", eps, rms, tensor.dtype) for tensor in (q, k))
    weight_offset = number_of("qk_norm", "weight_offset", weight_offset)
    if cast == "once":
        both = pairs.norms(key, tensors, q_eps, rms, weight_offset) if q_eps == k_eps else None
        return both or (
            stages.norm_last(rms, q, q_weight, None, q_eps, weight_offset, q.dtype),
            stages.norm_last(rms, k, k_weight, None, k_eps, weight_offset, k.dtype),
        )
    norm = functional.rms_norm if rms else functional.layer_norm
    q_axes, k_axes = last_axes(q.dim(), q_weight), last_axes(k.dim(), k_weight)
    return (
        norm(q, -1, q_weight, None, q_eps, q_axes, weight_offset=weight_offset, cast=cast),
        norm(k, -1, k_weight, None, k_eps, k_axes, weight_offset=weight_offset, cast=cast),
    )
