"""Derivatives of the operators for a norm with stages: what a call saves, and the formulas.

The first derivative is planish's own backward; that of the backward is its formula in torch's own
operators (_staged_composite.py), differentiated by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from planish import _staged_composite
from planish._staged_composite import Stages
from planish._ways import below_autograd, is_plain
from torch import Tensor

__all__ = [
    "Form",
    "Saved",
    "apart",
    "differentiate_backward",
    "differentiate_forward",
    "differentiate_quantized",
    "forms_of",
    "gradients",
    "is_unavailable",
    "kept",
    "save_backward",
    "save_forward",
    "save_quantized",
]


def is_unavailable(error: RuntimeError) -> bool:
    """Whether it says that the library cannot run such a norm here."""
    return "(PLANISH_ERROR_UNAVAILABLE)" in str(error)


# ---- The forward --------------------------------------------------------------------------------


def apart(
    x: Tensor,
    residual: Tensor | None,
    column: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    stages: Stages,
) -> tuple[Any, ...]:
    """The tensors of a call that is recorded, with copies of those that autograd would keep,
    where torch's operators one after the other would keep what they make of them: that one of these
    is written to before the backward must not matter. All but gate and x are small."""
    frozen = gate is not None and not gate.requires_grad
    gate_before = stages.gate_before
    behind = bool(stages.activation) or (gate is not None and not gate_before)
    reaches = x, residual, column, weight, bias, gate if gate_before else None
    if not any(t is not None and t.requires_grad for t in reaches):
        if weight is not None and (scale is not None or behind):  # as kept() does with s
            weight = weight.clone()
    elif weight is not None and stages.weight_offset:
        weight = weight.clone()
    if gate_before and frozen:
        x = x.clone()
    if gate is not None and frozen:
        gate = gate.clone()
    if bias is not None and (behind or scale is not None):
        bias = bias.clone()
    if scale is not None:
        scale = scale.clone()
    if shift is not None and behind:
        shift = shift.clone()
    return x, residual, column, weight, bias, scale, shift, gate


def kept(saved: Saved, stages: Stages, needed: Sequence[bool]) -> Saved:
    """What the gradients that are ``needed`` are made of, in the order of :func:`gradients`."""
    x, residual, _, columns, _, weighs, adds, scales, _, gates = needed
    has_z = _has_z(saved, stages)
    if not (x or columns):  # the residual gets the norm's gradient as it is
        saved = saved._replace(row_scale=None)
    if not x and not stages.gate_before:
        saved = saved._replace(column_scale=None)
    if not has_z:
        saved = saved._replace(bias=None)
    if not stages.activation and (saved.gate is None or stages.gate_before):
        saved = saved._replace(shift=None)
    if not (x or residual or columns or weighs or adds or (gates and stages.gate_before)):
        # Torch would record what stands behind the norm alone, which is of no use to a shift.
        s = saved.s.clone() if saved.s is not None and (scales or gates) else None
        saved = saved._replace(s=s, weight=None if s is None else saved.weight)
    return saved


def _has_z(saved: Saved, stages: Stages) -> bool:
    """Whether the derivative needs what the norm itself comes to."""
    behind = saved.gate is not None and not stages.gate_before
    return bool(stages.activation) or saved.scale is not None or behind


class Form(NamedTuple):
    """What a parameter's gradient has to have."""

    shape: torch.Size
    dtype: torch.dtype


def forms_of(*parameters: Tensor | None) -> tuple[Form | None, ...]:
    return tuple([None if t is None else Form(t.shape, t.dtype) for t in parameters])


def save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual, row_scale, column, rng, weight, bias, scale, shift, gate, *options = inputs
    reduce, affine, column_axes, modulation, _, rms, offset, activation, before, _, p, *_ = options
    _, total, mean, rstd = output
    assert mean is not None and rstd is not None
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    s = x if total is None else total
    branch = x if ctx.needs_input_grad[4] and not before else None
    saved = Saved(s, mean, rstd, branch, row_scale, column, rng, weight, bias, scale, shift, gate)
    ctx.stages = Stages(reduce, affine, column_axes, modulation, rms, offset, activation, before, p)
    # the first argument is the dispatch keys
    ctx.save_for_backward(*kept(saved, ctx.stages, ctx.needs_input_grad[1:11]))
    ctx.forms = forms_of(column, weight, bias, scale, shift)
    ctx.dtypes = x.dtype, x.dtype if residual is None else residual.dtype
    ctx.y_dtype = options[-2]


def _shaped(gradient: Tensor | None, form: Form | None) -> Tensor | None:
    """Of the parameter's shape and dtype."""
    if gradient is None or form is None:
        return gradient
    if gradient.shape != form.shape:
        gradient = gradient.reshape(form.shape)
    return gradient if gradient.dtype == form.dtype else gradient.to(form.dtype)


def _stands_in(like: Tensor, form: Form | None) -> Tensor | None:
    """For a parameter whose gradient does not depend on it: the dtype and axes are asked for."""
    return None if form is None else like.new_zeros(form.shape, dtype=form.dtype)


class Saved(NamedTuple):
    """What the forward kept."""

    s: Tensor | None
    mean: Tensor
    rstd: Tensor
    branch: Tensor | None
    row_scale: Tensor | None
    column_scale: Tensor | None
    rng: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    gate: Tensor | None


def differentiate_forward(ctx: Any, dy: Tensor | None, dsum: Tensor | None, *_: Any) -> Any:
    if dy is None and dsum is None:
        return (None,) * 23
    saved = Saved(*ctx.saved_tensors)
    needed = ctx.needs_input_grad[1:11]
    found = gradients(saved, ctx.forms, ctx.stages, ctx.dtypes, ctx.y_dtype, needed, dy, dsum)
    return *found, *(None,) * 13


def gradients(
    saved: Saved,
    forms: tuple[Form | None, ...],
    stages: Stages,
    dtypes: tuple[torch.dtype, torch.dtype],
    y_dtype: torch.dtype,
    needed: Sequence[bool],
    dy: Tensor | None,
    dsum: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Of x, residual, row_scale, column_scale, rng, weight, bias, scale, shift and gate, where they
    are ``needed``; ``forms``: of column_scale, weight, bias, scale and shift; ``dtypes``: of x and
    residual."""
    s, mean, rstd, branch, row_scale, column, rng, weight, bias, scale, shift, gate = saved
    if needed[2]:
        raise NotImplementedError("planish::staged_norm: row_scale has no gradient")
    if s is None:  # the shift's alone is wanted
        assert dy is not None or dsum is not None
        s = dy if dy is not None else dsum
    assert s is not None
    if dy is None:
        dy = torch.zeros_like(s, dtype=y_dtype)
    column_form, weight_form, bias_form, scale_form, shift_form = forms
    scaled = row_scale is not None or column_form is not None or stages.dropout_p > 0
    # The same numbers are written once.
    shared = needed[0] and needed[1] and not scaled and dtypes[0] == dtypes[1]
    has_z = _has_z(saved, stages)
    dshift = None
    wants_shift = needed[8]
    if shift_form is not None and not has_z and (not wants_shift or shift_form.shape == dy.shape):
        # y is its sum with the norm's result
        dshift = _shaped(dy, shift_form) if wants_shift else None
        shift, wants_shift, stages = None, False, stages._replace(modulation=[])
    elif shift is None and wants_shift:
        shift = _stands_in(dy, shift_form)
    if column is None and needed[3]:
        column = _stands_in(dy, column_form)
    wanted = [
        needed[0],
        needed[1] and not shared,
        needed[5],
        needed[6],
        needed[3],
        needed[7],
        wants_shift,
        needed[9],
    ]
    arguments = (
        dy,
        s,
        mean,
        rstd,
        dsum,
        branch,
        row_scale,
        column,
        rng,
        weight,
        bias,
        scale,
        shift,
        gate,
        *stages,
        *dtypes,
        wanted,
    )
    dx, dresidual, dweight, dbias, dcolumn, dscale, summed, dgate = _run_backward(arguments)
    return (
        dx,
        dx if shared else dresidual,
        None,
        _shaped(dcolumn, column_form),
        None,
        _shaped(dweight, weight_form),
        _shaped(dbias, bias_form),
        _shaped(dscale, scale_form),
        dshift if summed is None else _shaped(summed, shift_form),
        dgate,
    )


def _run_backward(arguments: tuple[Any, ...]) -> Any:
    overload = torch.ops.planish.staged_norm_backward.default
    if torch.is_grad_enabled() or not is_plain(*arguments[:14]):
        return overload(*arguments)
    try:
        with below_autograd():
            return overload._op(*arguments)
    except RuntimeError as error:
        if not is_unavailable(error):
            raise
    return _composed_backward(arguments)


def _composed_backward(arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """The same in torch's operators, each result in its own dtype."""
    tensors: list[Any]
    dy, s, _, rstd, *tensors = arguments[:14]
    stages, (dx_dtype, dresidual_dtype, wanted) = Stages(*arguments[14:23]), arguments[23:]
    with torch.enable_grad():
        results = _staged_composite.backward(dy, s, rstd, tensors, stages, wanted, [])
    _, _, _, column, _, weight, bias, scale, shift, gate = tensors
    givers = weight, bias, column, scale, shift, gate
    dtypes = dx_dtype, dresidual_dtype, *(s.dtype if t is None else t.dtype for t in givers)
    return [
        None if result is None else result.detach().to(dtype)
        for result, dtype in zip(results, dtypes, strict=True)
    ]


# ---- The backward -------------------------------------------------------------------------------


def save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    ctx.set_materialize_grads(False)
    dy, s, _, rstd, *tensors = inputs[:14]
    ctx.save_for_backward(dy, s, rstd, *tensors)
    ctx.stages, ctx.wanted = Stages(*inputs[14:23]), list(inputs[25])


def _as_input(saved: Tensor | None) -> Tensor | None:
    """The tensor as one that a derivative is taken by, of which another can be taken where autograd
    records: none of what made it is between it and the other inputs."""
    if saved is None:
        return None
    if torch.is_grad_enabled() and saved.requires_grad:
        return saved.view_as(saved)
    return saved.detach().requires_grad_()


def differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """Double backward: the backward's formula in torch's own operators, differentiated by torch."""
    nothing = (None,) * 26
    if all(gradient is None for gradient in gradients):
        return nothing
    dy: Any
    s: Any
    parameters: list[Any]
    dy, s, rstd, dsum, branch, row_scale, column, rng, *parameters = ctx.saved_tensors
    goes_on = torch.is_grad_enabled()
    with torch.set_grad_enabled(goes_on):
        others = [_as_input(t) for t in (dy, s, dsum, branch, column, *parameters)]
        dy, s, dsum, branch, column, *parameters = others
    inputs = [t for t in (dy, s, dsum, branch, column, *parameters) if t is not None]
    with torch.enable_grad():
        tensors = [dsum, branch, row_scale, column, rng, *parameters]
        results = _staged_composite.backward(dy, s, rstd, tensors, ctx.stages, ctx.wanted, inputs)
        pairs = [
            (result, gradient.to(result.dtype).reshape(result.shape))
            for result, gradient in zip(results, gradients, strict=True)
            if result is not None and gradient is not None and result.requires_grad
        ]
        if not pairs:
            return nothing
        found = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                inputs,
                [gradient for _, gradient in pairs],
                allow_unused=True,
                create_graph=goes_on,
            )
        )
    ddy, ds, ddsum, dbranch, dcolumn, *rest = (
        None if t is None else next(found) for t in (dy, s, dsum, branch, column, *parameters)
    )
    return (ddy, ds, None, None, ddsum, dbranch, None, dcolumn, None, *rest, *(None,) * 12)


# ---- Quantised results --------------------------------------------------------------------------


def refuse(function: str) -> NoReturn:
    raise RuntimeError(
        f"{function}: it is forward only: a quantised result and its scale have no gradient, but a "
        "backward asked for one; detach the result, or call it under torch.no_grad()"
    )


def save_quantized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual = inputs[:2]
    q, scales, _ = output
    ctx.mark_non_differentiable(
        *(t for t in (q, scales) if t is not None and not t.is_floating_point())
    )
    ctx.set_materialize_grads(False)
    ctx.function = "quantized_rms_norm" if inputs[8] else "quantized_layer_norm"
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype


def differentiate_quantized(
    ctx: Any, dq: Tensor | None, dscales: Tensor | None, dsum: Tensor | None
) -> tuple[Any, ...]:
    if dq is not None or dscales is not None:
        refuse(ctx.function)
    if dsum is None:
        return (None,) * 18
    dx_dtype, dresidual_dtype = ctx.dtypes
    dresidual = None if dresidual_dtype is None else dsum.to(dresidual_dtype)
    return dsum.to(dx_dtype), dresidual, *(None,) * 16
