"""flax.linen's norms on planish's kernels: the same fields, parameters and results.

    from planish.jax import linen as planish_linen

    norm = planish_linen.LayerNorm()                 # flax.linen.LayerNorm, run by planish

What runs flax's own text is told in nnx.py.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen
from flax.linen import dtypes

from planish.jax import _layers

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm"]

#: flax's own text, also while planish.jax.patch() has put this one in its place.
_FLAX = {name: getattr(linen, name).__call__ for name in __all__}


def _parameters(layer: Any, x: Any, axes: Any, use_bias: bool) -> tuple[Any, Any, Any]:
    """scale, bias and the result's dtype, as flax makes them."""
    shape = [x.shape[axis] for axis in (axes if isinstance(axes, (tuple, list)) else (axes,))]
    scale = bias = None
    if layer.use_scale:
        scale = layer.param("scale", layer.scale_init, shape, layer.param_dtype)
    if use_bias:
        bias = layer.param("bias", layer.bias_init, shape, layer.param_dtype)
    present = [array for array in (x, scale, bias) if array is not None]
    return scale, bias, dtypes.canonicalize_dtype(*present, dtype=layer.dtype)


class LayerNorm(linen.LayerNorm):
    """flax.linen.LayerNorm by planish.

    >>> import jax, jax.numpy as jnp
    >>> from planish.jax import linen as planish_linen
    >>> planish_linen.LayerNorm().init_with_output(jax.random.key(0), jnp.ones((2, 8)))[0].shape
    (2, 8)
    """

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """As flax.linen.LayerNorm's."""
        if not _layers.runs(self, x, mask):
            return _FLAX["LayerNorm"](self, x, mask=mask)
        scale, bias, dtype = _parameters(self, x, self.feature_axes, self.use_bias)
        axes = self.reduction_axes, self.feature_axes
        return _layers.normalize("LayerNorm", False, x, scale, bias, self.epsilon, *axes, dtype)


class RMSNorm(linen.RMSNorm):
    """flax.linen.RMSNorm by planish.

    >>> import jax, jax.numpy as jnp
    >>> from planish.jax import linen as planish_linen
    >>> planish_linen.RMSNorm().init_with_output(jax.random.key(0), jnp.ones((2, 8)))[0].shape
    (2, 8)
    """

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """As flax.linen.RMSNorm's."""
        if not _layers.runs(self, x, mask):
            return _FLAX["RMSNorm"](self, x, mask=mask)
        scale, _, dtype = _parameters(self, x, self.feature_axes, False)
        axes = self.reduction_axes, self.feature_axes
        return _layers.normalize("RMSNorm", True, x, scale, None, self.epsilon, *axes, dtype)


class GroupNorm(linen.GroupNorm):
    """flax.linen.GroupNorm by planish, where its reduction axes are the default ones.

    >>> import jax, jax.numpy as jnp
    >>> from planish.jax import linen as planish_linen
    >>> layer = planish_linen.GroupNorm(4)
    >>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 5, 8)))[0].shape
    (2, 5, 8)
    """

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """As flax.linen.GroupNorm's."""
        groups, size = self.num_groups, self.group_size
        one = (groups is None) != (size is None) and self.reduction_axes is None and x.ndim > 1
        if one and groups is None:
            groups = x.shape[-1] // size if x.shape[-1] % size == 0 else 0
        divides = one and groups > 0 and x.shape[-1] % groups == 0
        if not divides or not _layers.runs(self, x, mask):
            return _FLAX["GroupNorm"](self, x, mask=mask)
        scale, bias, dtype = _parameters(self, x, -1, self.use_bias)
        return _layers.normalize_groups(self, x, groups, scale, bias, dtype)


class BatchNorm(linen.BatchNorm):
    """flax.linen.BatchNorm by planish, by the statistics of a named axis, too.

    >>> import jax, jax.numpy as jnp
    >>> from planish.jax import linen as planish_linen
    >>> layer, x = planish_linen.BatchNorm(use_running_average=False), jnp.ones((2, 5, 8))
    >>> variables = layer.init(jax.random.key(0), x)
    >>> y, new = layer.apply(variables, x, mutable=["batch_stats"])
    >>> y.shape, round(float(new["batch_stats"]["mean"][0]), 3)
    ((2, 5, 8), 0.01)
    """

    @linen.compact
    def __call__(self, x: Any, use_running_average: bool | None = None, *, mask: Any = None) -> Any:
        """As flax.linen.BatchNorm's."""
        if not _layers.runs_batch(self, x, mask):
            return _FLAX["BatchNorm"](self, x, use_running_average, mask=mask)
        by_running = linen.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        axes = sorted(axis % x.ndim for axis in np.atleast_1d(self.axis))
        shape = [x.shape[axis] for axis in axes]
        kept = [
            self.variable("batch_stats", name, make, shape, jnp.float32)
            for name, make in (("mean", jnp.zeros), ("var", jnp.ones))
        ]
        scale, bias, dtype = _parameters(self, x, axes, self.use_bias)
        running = (kept[0].value, kept[1].value) if by_running else None
        named = not self.is_initializing()
        y, *found = _layers.normalize_batch(self, x, scale, bias, running, dtype, named)
        if not by_running and named:
            for each, new in zip(kept, found, strict=True):
                each.value = self.momentum * each.value + (1 - self.momentum) * new
        return y
