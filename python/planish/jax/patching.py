"""planish under flax's own classes, for a block."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

__all__ = ["patch"]

_CLASSES = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm")


@contextlib.contextmanager
def patch() -> Iterator[list[str]]:
    """In this block ``flax.nnx``'s and ``flax.linen``'s LayerNorm, RMSNorm, GroupNorm and BatchNorm
    run on planish: layers that are there already, and those made later. The names of the classes
    taken are the value.

    What it replaces is those classes' ``__call__``, and nothing else: not jax.nn's functions, not
    norms that a model writes itself. A function that jit has traced keeps what it was traced with,
    in and after the block. Blocks may lie in each other; threads share the classes.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import planish.jax
    >>> layer = nnx.LayerNorm(8, rngs=nnx.Rngs(0))
    >>> with planish.jax.patch() as taken:
    ...     y = layer(jnp.ones((2, 8)))
    >>> taken[0]
    'flax.nnx.LayerNorm'
    """
    kept = []
    for kind in ("nnx", "linen"):
        theirs = importlib.import_module(f"flax.{kind}")
        ours = importlib.import_module(f"planish.jax.{kind}")
        kept += [(f"flax.{kind}", getattr(theirs, name), getattr(ours, name)) for name in _CLASSES]
    before = [(theirs, theirs.__call__) for _, theirs, _ in kept]
    try:
        for _, theirs, ours in kept:
            theirs.__call__ = ours.__call__
        yield [f"{module}.{theirs.__name__}" for module, theirs, _ in kept]
    finally:
        for theirs, call in before:
            theirs.__call__ = call
