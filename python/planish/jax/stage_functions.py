"""Norms for JAX with what stands around them in a model: one pass of planish's kernels each way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from planish.jax.calls import Call
from planish.jax.checks import check_array, check_like, check_parameter, number_of
from planish.jax.derivatives import norm
from planish.jax.functions import offset_of, plain, present, rounds

__all__ = [
    *("add_layer_norm", "add_rms_norm", "gated_rms_norm", "modulated_layer_norm"),
    *("modulated_rms_norm", "qk_norm", "quantized_rms_norm"),
]


def _added(
    function: str,
    rms: bool,
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    eps: float,
    row_scale: Any,
    column_scale: Any,
    sum_dtype: Any,
    weight_offset: float,
    out_dtype: Any,
    cast: str,
) -> tuple[Any, Any]:
    check_array(function, "x", x)
    check_like(function, "residual", residual, x.shape)
    columns = [x.shape[-1]]
    for name, array in (("weight", weight), ("bias", bias), ("column_scale", column_scale)):
        check_parameter(function, name, array, columns)
    if row_scale is not None:
        check_like(function, "row_scale", row_scale, x.shape[:-1])
        row_scale = jax.lax.stop_gradient(row_scale)
    total = jnp.dtype(sum_dtype or residual.dtype)
    call = Call(
        (-1,),
        (-1,),
        rms,
        number_of(function, "eps", eps),
        offset_of(function, weight_offset),
        column=() if column_scale is None else (-1,),
        round_xhat=rounds(function, cast, x),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
        sum_dtype=total,
    )
    given = present(
        x=x,
        residual=residual,
        weight=weight,
        bias=bias,
        row_scale=row_scale,
        column_scale=column_scale,
    )
    found = norm(call, given)
    return found["y"], found["sum"]


def add_layer_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    row_scale: Any = None,
    column_scale: Any = None,
    sum_dtype: Any = None,
    weight_offset: float = 0.0,
    out_dtype: Any = None,
) -> tuple[Any, Any]:
    """Sum with a residual, then layer normalization of it over the last axis: ``(y, sum)``.

        sum = x * column_scale * row_scale + residual

    ``residual`` has x's shape, ``column_scale`` (LayerScale) the size of the last axis,
    ``row_scale`` (stochastic depth) x's shape without the last axis; no gradient reaches
    ``row_scale``. ``sum`` has the residual's dtype unless ``sum_dtype`` says otherwise, and is
    rounded to it once; the norm is of the rounded sum. Everything else as :func:`layer_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> y, total = planish.jax.add_layer_norm(jnp.ones((2, 8)), jnp.ones((2, 8)))
    >>> float(total[0, 0])
    2.0
    """
    return _added("add_layer_norm", False, x, residual, weight, bias, eps, row_scale, column_scale,
                  sum_dtype, weight_offset, out_dtype, "once")  # fmt: skip


def add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    row_scale: Any = None,
    column_scale: Any = None,
    sum_dtype: Any = None,
    weight_offset: float = 0.0,
    out_dtype: Any = None,
    cast: str = "once",
) -> tuple[Any, Any]:
    """Sum with a residual, then RMS normalization of it: ``(y, sum)``; see :func:`add_layer_norm`
    and :func:`rms_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> y, total = planish.jax.add_rms_norm(jnp.ones((2, 8)), jnp.ones((2, 8)), jnp.ones(8))
    >>> y.shape
    (2, 8)
    """
    return _added("add_rms_norm", True, x, residual, weight, None, eps, row_scale, column_scale,
                  sum_dtype, weight_offset, out_dtype, cast)  # fmt: skip


def _modulated(
    function: str, rms: bool, x: Any, scale: Any, shift: Any, weight: Any, bias: Any, eps: float,
    out_dtype: Any,
) -> Any:  # fmt: skip
    check_array(function, "x", x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        check_parameter(function, name, parameter, [x.shape[-1]])
    shapes = {array.shape for array in (scale, shift) if array is not None}
    if len(shapes) != 1:
        raise ValueError(
            f"{function}: scale and shift have shapes {sorted(shapes)}; wanted one or both, of one "
            "shape"
        )
    shape = shapes.pop()
    # Sizes of 1 in front are those that x does not have.
    padded = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(i - x.ndim for i in range(x.ndim) if padded[i] == x.shape[i] and (padded[i] != 1))
    if len(padded) != x.ndim or any(
        size not in (1, x.shape[i]) for i, size in enumerate(padded)
    ) or padded[-1] != x.shape[-1]:  # fmt: skip
        raise ValueError(
            f"{function}: scale and shift have shape {tuple(shape)}; wanted one that is broadcast "
            f"to x's, {x.shape}, with its last axis"
        )
    sizes = [x.shape[axis] for axis in axes] or [x.shape[-1]]
    call = Call(
        (-1,),
        (-1,),
        rms,
        number_of(function, "eps", eps),
        modulation=axes or (-1,),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
    )
    given = present(x=x, weight=weight, bias=bias)
    given |= {
        name: array.reshape(sizes) for name, array in present(scale=scale, shift=shift).items()
    }
    return norm(call, given)["y"]


def modulated_layer_norm(
    x: Any,
    scale: Any,
    shift: Any = None,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-6,
    *,
    out_dtype: Any = None,
) -> Any:
    """Layer normalization over the last axis, then a modulation: y = z * (1 + scale) + shift, where
    z is the norm with its weight and bias.

    ``scale`` and ``shift`` have one shape, which is broadcast to x's, such as (N, 1, C) for an x
    (N, L, C); one of them may be None. Everything else as :func:`layer_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> x, scale = jnp.ones((2, 5, 8)), jnp.ones((2, 1, 8))
    >>> planish.jax.modulated_layer_norm(x, scale, scale).shape
    (2, 5, 8)
    """
    return _modulated("modulated_layer_norm", False, x, scale, shift, weight, bias, eps, out_dtype)


def modulated_rms_norm(
    x: Any,
    scale: Any,
    shift: Any = None,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    out_dtype: Any = None,
) -> Any:
    """RMS normalization, then a modulation; see :func:`modulated_layer_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> planish.jax.modulated_rms_norm(jnp.ones((2, 8)), jnp.ones(8)).shape
    (2, 8)
    """
    return _modulated("modulated_rms_norm", True, x, scale, shift, weight, None, eps, out_dtype)


def gated_rms_norm(
    x: Any,
    gate: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    norm_before_gate: bool = True,
    weight_offset: float = 0.0,
    cast: str = "once",
    out_dtype: Any = None,
) -> Any:
    """RMS normalization over the last axis with a gate of x's shape: the norm of x times
    silu(gate), or, with ``norm_before_gate=False``, the norm of x * silu(gate). Everything else as
    :func:`rms_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> planish.jax.gated_rms_norm(jnp.ones((2, 8)), jnp.zeros((2, 8)), jnp.ones(8)).tolist()[0][0]
    0.0
    """
    function = "gated_rms_norm"
    check_array(function, "x", x)
    check_like(function, "gate", gate, x.shape)
    check_parameter(function, "weight", weight, [x.shape[-1]])
    call = Call(
        (-1,),
        (-1,),
        True,
        number_of(function, "eps", eps),
        offset_of(function, weight_offset),
        gate_before=not norm_before_gate,
        round_xhat=rounds(function, cast, x),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
    )
    return norm(call, present(x=x, gate=gate, weight=weight))["y"]


def qk_norm(
    q: Any, k: Any, q_weight: Any, k_weight: Any, eps: float = 1e-6, *, kind: str = "rms",
    weight_offset: float = 0.0, cast: str = "once",
) -> tuple[Any, Any]:  # fmt: skip
    """Norms of queries and keys over the last axis, each with a weight of its own: ``(q, k)``.
    ``kind``: "rms" or "layer". Everything else as :func:`rms_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> q, k = planish.jax.qk_norm(jnp.ones((5, 3, 16)), jnp.ones((5, 1, 16)), None, None)
    >>> q.shape, k.shape
    ((5, 3, 16), (5, 1, 16))
    """
    if kind not in ("rms", "layer"):
        raise ValueError(f"qk_norm: kind is {kind!r}; known are 'rms' and 'layer'")
    q, k = (
        plain("qk_norm", kind == "rms", x, weight, None, eps, -1, weight_offset, None, None, cast)
        for x, weight in ((q, q_weight), (k, k_weight))
    )
    return q, k


def quantized_rms_norm(
    x: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    y_scale: Any = None,
    dtype: Any = jnp.float8_e4m3fn,
    scale_block: int = 0,
    weight_offset: float = 0.0,
) -> tuple[Any, Any]:
    """RMS normalization with a quantised result: ``(q, scales)``, y being near q * scales.

    Without ``y_scale`` each row, or each block of ``scale_block`` elements of a row, has a scale
    made for it, the largest magnitude over the largest number of ``dtype``; with it (one f32) all
    have that one, and it is returned. ``dtype``: float8_e4m3fn, float8_e5m2 or int8. There is no
    derivative (TypeError).

    >>> import jax.numpy as jnp, planish.jax
    >>> q, scales = planish.jax.quantized_rms_norm(jnp.ones((2, 8)))
    >>> q.dtype, scales.shape
    (dtype(float8_e4m3fn), (2,))
    """
    function = "quantized_rms_norm"
    check_array(function, "x", x)
    check_parameter(function, "weight", weight, [x.shape[-1]])
    if y_scale is not None:
        y_scale = jnp.asarray(y_scale, jnp.float32).reshape(1)
    wanted = jnp.dtype(dtype)
    if wanted.name not in ("float8_e4m3fn", "float8_e5m2", "int8"):
        raise TypeError(
            f"{function}: dtype is {wanted.name}; wanted float8_e4m3fn, float8_e5m2 or int8"
        )
    call = Call(
        (-1,),
        (-1,),
        True,
        number_of(function, "eps", eps),
        offset_of(function, weight_offset),
        scale_block=0 if y_scale is not None else scale_block,
        q_dtype=wanted,
    )
    found = _without_derivative(call, present(x=x, weight=weight, y_scale=y_scale))
    return found["q"], found.get("y_scales", y_scale)


def _without_derivative(call: Call, given: dict[str, Any]) -> dict[str, Any]:
    stopped = {name: _no_gradient(array) for name, array in given.items()}
    return norm(call, stopped)


@jax.custom_jvp
def _no_gradient(array: Any) -> Any:
    return array


@_no_gradient.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise TypeError("planish.jax: a quantised norm has no derivative")
