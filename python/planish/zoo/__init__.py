"""Tiny models of Transformers, diffusers, timm and torchvision, to see which norms planish reaches.

Each is built from its configuration, with few layers and channels and seeded weights: nothing is
downloaded. What counts is which classes of norms they have and how they call them; for speed take
real sizes (``planish model``, ``planish try``).
"""

from __future__ import annotations

from planish.zoo import batch, diffusion, images, language, vision
from planish.zoo.entry import FAMILIES as FAMILIES
from planish.zoo.entry import Built as Built
from planish.zoo.entry import Entry as Entry
from planish.zoo.entry import build as build
from planish.zoo.entry import loss_of as loss_of
from planish.zoo.entry import mapped as mapped
from planish.zoo.entry import missing_packages as missing_packages
from planish.zoo.entry import prepare as prepare
from planish.zoo.entry import tensors_of as tensors_of

__all__ = [
    "FAMILIES",
    "Built",
    "Entry",
    "build",
    "entries",
    "loss_of",
    "mapped",
    "missing_packages",
    "tensors_of",
]


def entries() -> dict[str, Entry]:
    """Every model by its name."""
    return {
        entry.name: entry
        for m in (language, vision, diffusion, images, batch)
        for entry in m.MODELS
    }
