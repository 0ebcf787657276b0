"""Which tables the documents show, and of which committed results each is made. A new measurement
replaces a file name here and the file in bench/results; `python bench/tables.py` does the rest."""

from __future__ import annotations

from collections.abc import Callable

from .classic import batch_table, profile, steps_table, text_table, ways_table
from .cpu import accuracy, calls, cpu_groups, cpu_sweep, instructions, switch
from .fused import by_turns, fused, trained, trained_short
from .gpu import gpu_decode, gpu_images, gpu_other_rows, gpu_rows, gpu_silu
from .models import HOST, MODELS, model_table, models_short
from .ort import ort

GPU_FORWARD = (
    "gpu-24/table-forward.csv",
    "gpu-17/table-forward.csv",
    "gpu-14/table-forward.csv",
)
GPU_BACKWARD = ("gpu-17/table-backward.csv", "gpu-14/table-backward.csv")
CPU = ("copy", "add", "torch", "torch-kept", "onnxruntime", "onednn", "planish", "planish-torch")
KEPT = ("copy", "add", "torch-kept", "onnxruntime", "onednn", "unfused", "planish")
GRAPH = {
    "torch-graph": "torch",
    "planish-torch-graph": "enable()",
    "planish-modules-graph": "replace()",
}
EAGER = {"torch": "torch", "planish-torch": "enable()", "planish-modules": "replace()"}
KEEP = {**EAGER, "planish-keep": 'enable(autocast="keep")'}
ITEMS, SPENT = "items per second", "milliseconds on the GPU"

TABLES: dict[str, Callable[[], str]] = {
    "gpu-rows-forward": lambda: gpu_rows("forward", GPU_FORWARD),
    "gpu-rows-rms": lambda: gpu_rows(
        "forward", ("gpu-24/table-rms-forward.csv",), ("torch", "torch-compile")
    ),
    "gpu-rows-backward": lambda: gpu_rows("backward", GPU_BACKWARD),
    "gpu-short-forward": lambda: gpu_rows(
        "forward", ("gpu-15/small-forward.csv", "gpu-14/small-forward.csv")
    ),
    "gpu-short-rms": lambda: gpu_rows(
        "forward",
        ("gpu-15/small-rms-forward.csv", "gpu-14/small-rms-forward.csv"),
        ("torch", "torch-compile", "liger", "quack"),
    ),
    "gpu-short-backward": lambda: gpu_rows(
        "backward", ("gpu-14/small-backward.csv", "gpu-10/small-backward.csv")
    ),
    "gpu-other-rows": gpu_other_rows,
    "gpu-images": gpu_images,
    "gpu-silu": gpu_silu,
    "gpu-decode": gpu_decode,
    "fused-gpu": lambda: fused("gpu-24/qk.csv", "gpu-24/fused.csv"),
    "fused-heads": lambda: by_turns("gpu-23/heads.csv"),
    "fused-decode": lambda: fused("gpu-24/fused.csv", decode=True),
    "fused-cpu": lambda: fused("zen4-5/fused.csv"),
    "fused-cpu-decode": lambda: fused("zen4-5/fused.csv", decode=True),
    "fused-models": lambda: trained("gpu-25/fuse-models.csv"),
    "fused-models-short": lambda: trained_short("gpu-25/fuse-models.csv"),
    "models-short": models_short,
    "models-graph": lambda: model_table(MODELS, "items_per_s", GRAPH, ITEMS, "{:.0f}", skip="BERT"),
    "models-eager": lambda: model_table(MODELS, "items_per_s", EAGER, ITEMS, "{:.0f}"),
    "models-gpu": lambda: model_table(HOST, "gpu_milliseconds", EAGER, SPENT, "{:.1f}"),
    "models-host": lambda: model_table(HOST, "items_per_s", EAGER, ITEMS, "{:.0f}"),
    "models-autocast": lambda: model_table(
        ("gpu-13/models-autocast.csv",), "gpu_milliseconds", KEEP, SPENT, "{:.1f}"
    ),
    "apex": lambda: ways_table("gpu-20/apex.csv"),
    "unfused": lambda: ways_table("gpu-20/unfused.csv"),
    "unfused-profile": profile,
    "norms": lambda: text_table("gpu-20/norms.txt"),
    "norms-replace": lambda: steps_table("gpu-21/norms-nchw.csv", "gpu-21/norms-nhwc.csv"),
    "bert": lambda: steps_table("gpu-21/bert.csv"),
    "cpu-rows-f32": lambda: cpu_sweep("zen5-2/rows-f32/rows.csv", CPU),
    "cpu-rows-bf16": lambda: cpu_sweep("zen5-2/rows-bf16/rows.csv", CPU),
    "cpu-small-f32": lambda: cpu_sweep("zen5-2/small-f32/small.csv", KEPT),
    "cpu-small-bf16": lambda: cpu_sweep("zen5-2/small-bf16/small.csv", KEPT),
    "cpu-decode": lambda: cpu_sweep("zen5-2/decode/decode.csv", KEPT),
    "cpu-table": lambda: cpu_sweep("zen4-2/table/table.csv", KEPT),
    "cpu-channels": lambda: cpu_sweep("zen4-2/channels/channels.csv", KEPT),
    "cpu-groups": lambda: cpu_groups(
        "zen5-2/groups.csv",
        "planish GB/s",
        "AMD EPYC (Zen 5), one thread, torch 2.13",
        "python bench/groups.py OUT.csv --threads 1",
    ),
    "cpu-groups-silu": lambda: cpu_groups(
        "xeon-avx512-4/groups-silu.csv",
        "fused GB/s",
        "Intel Xeon (AVX-512), one thread, torch 2.13",
        "python bench/groups.py OUT.csv --activation silu",
    ),
    "instructions": lambda: instructions("aarch64-1/instructions.csv"),
    "cpu-batch": lambda: batch_table("zen4-7/batch.csv"),
    "accuracy": accuracy,
    "switch": switch,
    "calls-cpu": lambda: calls(
        "zen4-15/calls.csv", "AMD EPYC (Zen 4), one thread, torch 2.13, thread time"
    ),
    "ort-models": lambda: ort("zen4-7/ort.csv", models=True),
    "ort-norms": lambda: ort("zen4-7/ort.csv", models=False),
    "calls-gpu": lambda: calls("gpu-45/calls.csv", "NVIDIA H200, torch 2.11, the clock's time"),
    "calls-gpu-batch": lambda: calls(
        "gpu-47/batch_calls.csv", "NVIDIA H200, torch 2.11, the clock's time"
    ),
}
