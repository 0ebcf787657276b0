"""flax.nnx's norms on planish's kernels: the same constructors, parameters and results.

    from planish.jax import nnx as planish_nnx

    norm = planish_nnx.LayerNorm(768, rngs=rngs)     # flax.nnx.LayerNorm, run by planish

A call with a mask, with a named axis (but BatchNorm's), or of a dtype that planish does not have
runs flax's text.
Statistics are as good as the arithmetic everywhere: ``use_fast_variance`` changes nothing.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from planish.jax import _layers

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm"]

#: flax's own text, also while planish.jax.patch() has put this one in its place.
_FLAX = {name: getattr(nnx, name).__call__ for name in __all__}


def _value(parameter: Any) -> Any:
    return parameter[...] if parameter else None


class LayerNorm(nnx.LayerNorm):
    """flax.nnx.LayerNorm by planish.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from planish.jax import nnx as planish_nnx
    >>> planish_nnx.LayerNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
    (2, 8)
    """

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """As flax.nnx.LayerNorm's."""
        if not _layers.runs(self, x, mask):
            return _FLAX["LayerNorm"](self, x, mask=mask)
        x, scale, bias = self.promote_dtype(
            (x, _value(self.scale), _value(self.bias)), dtype=self.dtype
        )
        axes = self.reduction_axes, self.feature_axes
        return _layers.normalize("LayerNorm", False, x, scale, bias, self.epsilon, *axes, x.dtype)


class RMSNorm(nnx.RMSNorm):
    """flax.nnx.RMSNorm by planish.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from planish.jax import nnx as planish_nnx
    >>> planish_nnx.RMSNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
    (2, 8)
    """

    def __call__(self, x: Any, mask: Any = None) -> Any:
        """As flax.nnx.RMSNorm's."""
        if not _layers.runs(self, x, mask):
            return _FLAX["RMSNorm"](self, x, mask=mask)
        x, scale = self.promote_dtype((x, _value(self.scale)), dtype=self.dtype)
        axes = self.reduction_axes, self.feature_axes
        return _layers.normalize("RMSNorm", True, x, scale, None, self.epsilon, *axes, x.dtype)


class GroupNorm(nnx.GroupNorm):
    """flax.nnx.GroupNorm by planish, where its reduction axes are the default ones.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from planish.jax import nnx as planish_nnx
    >>> planish_nnx.GroupNorm(8, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """As flax.nnx.GroupNorm's."""
        if self.reduction_axes is not None or x.ndim < 2 or not _layers.runs(self, x, mask):
            return _FLAX["GroupNorm"](self, x, mask=mask)
        x, scale, bias = self.promote_dtype(
            (x, _value(self.scale), _value(self.bias)), dtype=self.dtype
        )
        return _layers.normalize_groups(self, x, self.num_groups, scale, bias, x.dtype)


class BatchNorm(nnx.BatchNorm):
    """flax.nnx.BatchNorm by planish, by the statistics of a named axis, too.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from planish.jax import nnx as planish_nnx
    >>> layer = planish_nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 5, 8))).shape, round(float(layer.mean[0]), 3)
    ((2, 5, 8), 0.01)
    """

    def __call__(self, x: Any, use_running_average: bool | None = None, *, mask: Any = None) -> Any:
        """As flax.nnx.BatchNorm's."""
        by_running = self.use_running_average
        if use_running_average is not None:
            by_running = use_running_average
        if by_running is None or not _layers.runs_batch(self, x, mask):
            return _FLAX["BatchNorm"](self, x, use_running_average, mask=mask)
        x, mean, var, scale, bias = self.promote_dtype(
            (x, self.mean[...], self.var[...], _value(self.scale), _value(self.bias)),
            dtype=self.dtype,
        )
        running = (mean, var) if by_running else None
        y, mean, var = _layers.normalize_batch(self, x, scale, bias, running, x.dtype)
        if not by_running:
            for kept, new in ((self.mean, mean), (self.var, var)):
                kept[...] = jax.lax.stop_gradient(
                    self.momentum * kept[...] + (1 - self.momentum) * new
                )
        return y
