"""planish for JAX: norms on planish's kernels, on CPUs and NVIDIA GPUs, through XLA's FFI.

    import planish.jax as pj

    y = pj.layer_norm(x, weight, bias)                    # any axes: axis=(1, 2)
    y, total = pj.add_rms_norm(x, residual, weight)       # the sum with a residual, too
    y = pj.group_norm(images, 32, weight, bias, activation="silu")

The functions work under jit, grad to any order, vmap, scan, remat and shard_map. docs/guide/jax.md
has the whole story.
"""

from __future__ import annotations

from planish.jax.batch_functions import BatchNormResult as BatchNormResult
from planish.jax.batch_functions import batch_norm as batch_norm
from planish.jax.functions import group_norm as group_norm
from planish.jax.functions import layer_norm as layer_norm
from planish.jax.functions import rms_norm as rms_norm
from planish.jax.patching import patch as patch
from planish.jax.stage_functions import add_layer_norm as add_layer_norm
from planish.jax.stage_functions import add_rms_norm as add_rms_norm
from planish.jax.stage_functions import gated_rms_norm as gated_rms_norm
from planish.jax.stage_functions import modulated_layer_norm as modulated_layer_norm
from planish.jax.stage_functions import modulated_rms_norm as modulated_rms_norm
from planish.jax.stage_functions import qk_norm as qk_norm
from planish.jax.stage_functions import quantized_rms_norm as quantized_rms_norm
