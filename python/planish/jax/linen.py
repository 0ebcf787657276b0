"""flax.linen's norms on planish's kernels: the same fields, parameters and results.

    from planish.jax import linen as planish_linen

    norm = planish_linen.LayerNorm()                 # flax.linen.LayerNorm, run by planish

What runs flax's own text is told in nnx.py.
"""

from __future__ import annotations

from typing import Any

from flax import linen
from flax.linen import dtypes

from planish.jax import _layers

__all__ = ["GroupNorm", "LayerNorm", "RMSNorm"]

#: flax's own text, also while planish.jax.patch() has put this one in its place.
_FLAX = {name: getattr(linen, name).__call__ for name in ("LayerNorm", "RMSNorm", "GroupNorm")}


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
