"""L2 normalization over any axes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from planish.functions.functional import _check_x, _node, axes_of_both
from planish.operators import norms
from planish.operators.arguments import (
    affine_of,
    check_optional,
    check_parameter,
    check_tensor,
    given_axes,
    number_of,
)
from planish.operators.call import Norm
from planish.operators.ways import Way, way_of
from torch import Tensor, fx

__all__ = ["normalize"]


def normalize(
    x: Tensor,
    p: float = 2.0,
    dim: int | Iterable[int] = 1,
    eps: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    affine_dims: int | Iterable[int] | None = None,
) -> Tensor:
    """L2 normalization over any axis or axes: torch.nn.functional.normalize in one read and one
    write, with a weight and a bias.

    ``y = x / max(length, eps) * weight + bias``, with the length the root of the sum of x^2 over
    ``dim``. ``weight`` and ``bias`` vary along ``affine_dims`` (by default ``dim``): they have the
    sizes of those axes in x's order, or x's rank with 1 everywhere else. Dtypes: f16, bf16, f32 and
    f64, each tensor its own; the result has x's and is laid out as x. The arithmetic is f32, f64
    where a tensor is, and its squares neither overflow nor vanish.

    Differentiable any number of times, forward mode included. Where the length is less than ``eps``
    it has no gradient, as in torch; so it is, too, where it is more by a few ULP.

    With ``eps=0`` and a weight along the other axes it is weight normalization (Salimans, Kingma
    2016): ``normalize(v, dim=[1, 2], eps=0, weight=g, affine_dims=0)``.

    ``p`` other than 2: torch's own function runs, and its operators on what it returns.

    Raises what torch raises: TypeError for what is no tensor, no axis or no number, IndexError for
    an axis out of range, RuntimeError for shapes that do not fit, NotImplementedError for another
    dtype, layout or device.

    Example:

    >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> planish.normalize(x)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    >>> planish.normalize(x, dim=-1, weight=torch.tensor([10.0, 100.0]))[0]
    tensor([ 6., 80.])
    >>> image = torch.randn(2, 96, 14, 14)
    >>> y = planish.normalize(image, dim=1, weight=torch.ones(96))
    >>> torch.allclose(y, torch.nn.functional.normalize(image, dim=1), atol=1e-6)
    True
    """
    if isinstance(x, fx.Proxy):
        rest = {"weight": weight, "bias": bias, "affine_dims": affine_dims}
        return _node(normalize, x, p=p, dim=dim, eps=eps, **rest)
    if type(dim) is not int:
        dim = given_axes("normalize", "dim", dim)
    if affine_dims is not None:
        affine_dims = given_axes("normalize", "affine_dims", affine_dims)
    known, key = norms.known(("normalize", p, dim, affine_dims, eps), x, weight, bias)
    if known is not None:
        return known
    way = way_of(x, weight, bias)
    if way is not Way.PLAIN or x is None:
        check_tensor("normalize", "x", x)
        check_optional("normalize", weight=weight, bias=bias)
    _check_x("normalize", x)
    p, eps = number_of("normalize", "p", p), number_of("normalize", "eps", eps)
    reduce, affine = axes_of_both("normalize", x, dim, affine_dims, "dim")
    check_parameter(x, weight, affine, "normalize", "weight")
    check_parameter(x, bias, affine, "normalize", "bias")
    if p != 2:
        y = torch.nn.functional.normalize(x, p, reduce, eps)  # type: ignore[arg-type]
        return affine_of(y, weight, bias, affine)
    norm = Norm(reduce, affine, eps, True, True, l2=True)
    return norms.norm(way, x, weight, bias, norm, key=key)
