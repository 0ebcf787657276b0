"""What runs at the places that reading.py finds: a norm and what stands around it as one function,
where nobody can tell, and else as the block's own source has it.

Every helper is made for the classes and forms of the norms that were proven at a place
(replacing/places.py) and asks at each call whether these are still there: the class of the norm,
no hooks on it, dtypes that were proven, shapes that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn.modules import module as torch_module

import torch
from planish.functions import heads, stage_norms
from planish.library.seen import is_plain
from planish.modules import norm_modules
from planish.operators import norms, steps
from planish.operators.arguments import DEVICES, HALF
from planish.operators.ways import Way, way_of
from planish.replacing import swapped
from planish.replacing.forms import Form, parameter_of, weight_of
from torch import Tensor, nn

__all__ = [
    "chain_kind",
    "modulated",
    "modulated_apart",
    "norm_form",
    "queries_and_keys",
    "queries_and_keys_apart",
    "rate_name",
    "sum_norm",
    "sum_norm_apart",
    "watched",
]

Pairs = frozenset[tuple[torch.dtype, "torch.dtype | None"]]


def watched(module: nn.Module) -> bool:
    """Whether somebody wants to see what goes into it or comes out."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


# ---- Norms --------------------------------------------------------------------------------------


def norm_form(module: Any) -> Form | None:
    """The form of a norm over the last axis that is on planish, or None."""
    if isinstance(module, swapped.Swapped):
        form = module._planish_proof.form
        plain = form.kind in ("rms", "layer") and form.axis == -1 and form.count == 1
        parts = form.gate or form.groups or form.group_size or form.then or form.activation
        return form if plain and not parts else None
    kind = {norm_modules.LayerNorm: "layer", norm_modules.RMSNorm: "rms"}.get(type(module))
    if kind is None or len(module.normalized_shape) != 1:
        return None
    bias = "bias" if kind == "layer" else None
    return Form(kind, weight="weight", bias=bias, eps="eps")


def _eps(form: Form, norm: Any, x: Tensor) -> float:
    eps = getattr(norm, form.eps) if isinstance(form.eps, str) else form.eps
    return norms.rms_eps(eps, x)


def _offset(form: Form) -> float:
    return 0.0 if form.offset_in_weight else form.offset


def _rounding(
    form: Form, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None
) -> tuple[bool, torch.dtype] | None:
    """Whether xhat is rounded before the weight, and the result's dtype."""
    wide = dtype
    for parameter in (weight, bias):
        if parameter is not None:
            wide = torch.promote_types(wide, parameter.dtype)
    if form.order == "xhat":
        return weight is not None and (dtype in HALF or wide != dtype), dtype
    if form.order == "wide":
        return False, wide
    if form.order == "weight" and weight is not None:
        if weight.dtype not in HALF:
            return False, wide
        return (True, dtype) if weight.dtype == dtype else None
    return False, dtype


def _casts(device: torch.device) -> bool:
    """Whether autocast is on. Of meta, which has none, torch raises."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _fits(
    cls: type[nn.Module],
    pairs: Pairs,
    norm: Any,
    dtype: torch.dtype,
    form: Form,
    *tensors: Any,
) -> bool:
    """Whether the norm is what it was, and the call one of those that were proven."""
    if type(norm) is not cls or watched(norm):
        return False
    weight, bias = parameter_of(norm, form.weight), parameter_of(norm, form.bias)
    first = weight if weight is not None else bias
    x = tensors[0]
    if not isinstance(x, Tensor) or (dtype, None if first is None else first.dtype) not in pairs:
        return False
    device, last = x.device, x.shape[-1:]
    for tensor in tensors[1:]:
        if not isinstance(tensor, Tensor) or tensor.device != device:
            return False
    for p in (weight, bias):
        if p is not None and (p.device != device or p.dtype != first.dtype or p.shape != last):  # type: ignore[union-attr]
            return False
    return (
        device.type in DEVICES
        and x.numel() > 0
        and last[0] > 0
        and (dtype == torch.float32 or not _casts(device))
        and way_of(*tensors, weight, bias) in (Way.PLAIN, Way.OPERATOR)
    )


# ---- Sums ---------------------------------------------------------------------------------------


def _rate_name(cls: type[nn.Module]) -> str:
    name = cls.__name__.lower()
    known = (("droppath", "drop_prob"), ("stochasticdepth", "p"))
    return next((attribute for part, attribute in known if part in name), "")


def rate_name(module: Any) -> str:
    """The attribute with the probability of what looks like stochastic depth: of DropPath, as timm
    and Transformers have it, or of torchvision's StochasticDepth; or empty."""
    name = _rate_name(type(module))
    return name if name and hasattr(module, name) else ""


def chain_kind(module: Any) -> str:
    """``scale``: x times its one parameter along the last axis; ``drop``: stochastic depth;
    ``none``: nothing; or empty. A guess by attributes, for replacing/places.py to prove."""
    if type(module) is nn.Identity:
        return "none"
    held = [p for p in module._parameters.values() if p is not None]
    if not any(True for _ in module.children()) and not any(True for _ in module.buffers()):
        if len(held) == 1 and held[0].dim() == 1 and "scale" in type(module).__name__.lower():
            return "scale"
        if not held and rate_name(module):
            return "drop"
    return ""


def _folded(
    classes: Sequence[tuple[type[nn.Module], str, str]], chain: tuple[Any, ...], x: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x behind the modules that are left to themselves, LayerScale's factors, and those of
    stochastic depth: one for each row, drawn by the module itself as it would for x."""
    count, scales = 0, 0
    for module, (cls, kind, _) in zip(chain, classes, strict=True):
        scales += kind == "scale"
        if type(module) is not cls or not kind or watched(module) or scales > 1:
            break
        count += 1
    for module in reversed(chain[count:]):
        x = module(x)
    column = row = None
    for at in range(count - 1, -1, -1):
        module, (_, kind, rate) = chain[at], classes[at]
        if kind == "scale":
            (column,) = (p for p in module._parameters.values() if p is not None)
        elif kind == "drop" and module.training and getattr(module, rate):
            drawn = module(x.new_ones((x.shape[0], *[1] * (x.dim() - 1))))
            row = drawn if row is None else row * drawn
    if row is not None:
        row = row.expand(*x.shape[:-1], 1)
    return x, column, row


def sum_norm_apart(norm: Any, a: Any, b: Any, chain: tuple[Any, ...] = ()) -> tuple[Any, Any]:
    """As the source has it."""
    for module in reversed(chain):
        b = module(b)
    s = a + b
    return s, norm(s)


def _is_better_apart(a: Any, b: Any) -> bool:
    """Of small tensors, where torch's operators cost the host less."""
    if a is None or not is_plain(a, b):
        return False
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return steps.are_better(a, recorded)


def _add_norm(
    form: Form, norm: Any, x: Tensor, residual: Tensor, given: dict[str, Any], **stages: Any
) -> tuple[Tensor, Tensor]:
    weight, eps = weight_of(form, norm), _eps(form, norm, x)
    if form.kind == "rms":
        y, s = stage_norms.add_rms_norm(x, residual, weight, eps, **given, **stages)
    else:
        bias = parameter_of(norm, form.bias)
        y, s = stage_norms.add_layer_norm(x, residual, weight, bias, eps, **given, **stages)
    return s, y


def _given(form: Form, norm: Any, x: Tensor, residual: Tensor) -> dict[str, Any] | None:
    """What the function is called with for their sum; None: apart. What is its default is not
    said, for a call that says nothing may be a shorter one."""
    weight, bias = weight_of(form, norm), parameter_of(norm, form.bias)
    dtype = torch.promote_types(x.dtype, residual.dtype)
    rounding = _rounding(form, dtype, weight, bias)
    if rounding is None or (form.kind == "rms" and bias is not None):
        return None
    xhat, out = rounding
    given: dict[str, Any] = {"weight_offset": _offset(form)}
    if residual.dtype != dtype:
        given["sum_dtype"] = dtype
    if xhat:
        given["cast"] = "xhat"
    elif out != x.dtype:
        given["out_dtype"] = out
    return given


#: So many combinations of dtypes and sizes are known to one helper.
_ROOM = 4096


def _key(form: Form, norm: Any, a: Tensor, b: Tensor) -> Any:
    """What decides whether a call fits, but for b's shape, hooks and the way of the call. Of plain
    calls alone: in a graph that torch.compile traces the sizes would become constants."""
    weight = parameter_of(norm, form.weight)
    held = None if weight is None else weight.dtype
    return a.shape, a.dtype, b.dtype, a.device, held, _casts(a.device)


def sum_norm(
    cls: type[nn.Module],
    form: Form,
    pairs: Pairs,
    classes: tuple[tuple[type[nn.Module], str], ...] = (),
) -> Callable[..., tuple[Any, Any]]:
    """(a + chain(b), norm of it)."""
    known: dict[Any, dict[str, Any]] = {}  # calls that fitted: these are asked the least
    named = tuple((one, kind, _rate_name(one)) for one, kind in classes)

    def asked(norm: Any, a: Any, b: Any) -> dict[str, Any] | None:
        """What such a call is made with; None: apart."""
        plain = type(norm) is cls and is_plain(a, b) and not watched(norm)
        given = known.get(_key(form, norm, a, b)) if plain else None
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape):
            return None
        if given is None and _fits(
            cls, pairs, norm, torch.promote_types(a.dtype, b.dtype), form, b, a
        ):
            given = _given(form, norm, b, a)
            if given is not None and plain and len(known) < _ROOM:
                known[_key(form, norm, a, b)] = given
        return given

    def helper(norm: Any, a: Any, b: Any, chain: tuple[Any, ...] = ()) -> tuple[Any, Any]:
        given = None if _is_better_apart(a, b) else asked(norm, a, b)
        if given is None:
            return sum_norm_apart(norm, a, b, chain)
        if not chain:
            return _add_norm(form, norm, b, a, given)
        x, column, row = _folded(named, chain, b)
        if (x.shape == a.shape and x.dtype == b.dtype) and (
            column is None or (column.dtype == x.dtype and column.device == x.device)
        ):
            return _add_norm(form, norm, x, a, given, column_scale=column, row_scale=row)
        x = x if column is None else x * column
        s = a + (x if row is None else x * row)
        return s, norm(s)

    return helper


# ---- Modulation ---------------------------------------------------------------------------------


def modulated_apart(
    norm: Any, x: Any, scale: Any, shift: Any, residual: Any = None, gate: Any = None
) -> Any:
    """As the source has it."""
    if shift is None:
        return norm(x) * (1 + scale)
    if residual is None:
        return norm(x) * (1 + scale) + shift
    s = residual + (x if gate is None else gate * x)
    return s, norm(s) * (1 + scale) + shift


def _is_along(tensor: Tensor, x: Tensor) -> bool:
    """As planish.modulated_layer_norm wants scale, shift and gate."""
    if tensor.dim() not in (1, x.dim()) or tensor.dtype != x.dtype:
        return False
    sizes = zip(tensor.shape, x.shape[x.dim() - tensor.dim() :], strict=True)
    return all(size in (1, whole) for size, whole in sizes)


def modulated(cls: type[nn.Module], form: Form, pairs: Pairs) -> Callable[..., Any]:
    """norm(x) * (1 + scale) + shift, or (s, the same of s) with s = residual + gate * x."""
    rms = form.kind == "rms"

    def helper(
        norm: Any, x: Any, scale: Any, shift: Any, residual: Any = None, gate: Any = None
    ) -> Any:
        stages = [one for one in (scale, shift, gate) if one is not None]
        others = stages if residual is None else [*stages, residual]
        if (
            isinstance(x, Tensor)
            and _fits(cls, pairs, norm, x.dtype, form, x, *others)
            and all(_is_along(one, x) for one in stages)
            and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype))
        ):
            weight, bias = weight_of(form, norm), parameter_of(norm, form.bias)
            rounding = _rounding(form, x.dtype, weight, bias)
            if rounding is not None and rounding[1] == x.dtype:
                eps, offset = _eps(form, norm, x), _offset(form)
                given = {"residual": residual, "gate": gate, "weight_offset": offset}
                function = (
                    stage_norms.modulated_rms_norm if rms else stage_norms.modulated_layer_norm
                )
                both = function(x, scale, shift, weight, bias, eps, **given)
                return both if residual is None else (both[1], both[0])
        return modulated_apart(norm, x, scale, shift, residual, gate)

    return helper


# ---- Queries and keys ---------------------------------------------------------------------------


def queries_and_keys_apart(q_norm: Any, k_norm: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """As the source has it."""
    return q_norm(q), k_norm(k)


def queries_and_keys(cls: type[nn.Module], form: Form, pairs: Pairs) -> Callable[..., Any]:
    """(q_norm(q), k_norm(k)), both of this class and form."""

    def helper(q_norm: Any, k_norm: Any, q: Any, k: Any) -> tuple[Any, Any]:
        if (
            isinstance(q, Tensor)
            and isinstance(k, Tensor)
            and q.dtype == k.dtype
            and q.dim() == k.dim()
            and q.shape[-1] == k.shape[-1]
            and _fits(cls, pairs, q_norm, q.dtype, form, q, k)
            and _fits(cls, pairs, k_norm, k.dtype, form, k, q)
            and _eps(form, q_norm, q) == _eps(form, k_norm, k)
        ):
            weights = weight_of(form, q_norm), weight_of(form, k_norm)
            rounding = _rounding(form, q.dtype, weights[0], None)
            if rounding is not None and rounding[1] == q.dtype:
                xhat, eps = rounding[0], _eps(form, q_norm, q)
                given: dict[str, Any] = {"kind": form.kind, "weight_offset": _offset(form)}
                return heads.qk_norm(q, k, *weights, eps, cast="xhat" if xhat else "once", **given)
        return queries_and_keys_apart(q_norm, k_norm, q, k)

    return helper
