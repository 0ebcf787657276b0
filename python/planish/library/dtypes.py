"""The dtypes of x, y and the parameters: the list that all others are made of."""

from __future__ import annotations

import torch
from planish.library import structs

__all__ = ["BY_NAME", "DTYPES", "HALF"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: Those of 16 bits.
HALF = (torch.float16, torch.bfloat16)
#: By the names that the library, the commands and the results have for them.
BY_NAME = dict(zip(structs.DTYPES, DTYPES, strict=True))
