"""`planish bench bert`: inference and training steps of BERT with each LayerNorm of variants.py.

Transformers' BERT from a configuration, seeded weights and input, nothing downloaded. Every way
starts from the same weights, so their losses can be compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from planish.commands.models import bert_base
from planish.library.dtypes import BY_NAME

from .program import launch, parser
from .steps import StepRow, WayOfModel, steps_by_turns
from .timing import Effort
from .variants import put_in, usable


def run(arguments: argparse.Namespace) -> list[StepRow]:
    """All ways by turns."""
    gpu = arguments.device == "cuda"
    batch, tokens = (1, 32) if arguments.quick else ((32, 512) if gpu else (2, 128))
    dtype = BY_NAME[arguments.dtype or ("bf16" if gpu else "f32")]
    layers = 2 if arguments.quick else (None if gpu else 4)
    ways: dict[str, WayOfModel] = {}
    try:
        for name, (way, make) in usable(arguments.device).items():
            load = bert_base(batch, tokens, arguments.device, dtype, large=gpu, layers=layers)
            put_in(load.model, make)
            ways[name] = WayOfModel(load, way.context)
    except ImportError as error:
        print(f"missing: transformers: {error}")
        return []
    first = next(iter(ways.values())).workload
    effort = Effort(7, 0.3, 15.0 if arguments.quick else 90.0, patience=2.0)
    shown = "" if layers is None else f", {layers} layers"
    return steps_by_turns(f"{first.name}{shown}, {first.shape}", ways, effort)


def main(words: Sequence[str]) -> int:
    """Runs the bench."""
    p = parser("bert", __doc__)
    p.add_argument("--dtype", choices=BY_NAME, help="by default f32, on a GPU bf16")
    return launch("bert", words, p.parse_args(words), run)
