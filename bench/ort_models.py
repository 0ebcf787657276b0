"""Models exported from torch, and single norms, in ONNX Runtime: its own kernels, and with
planish's execution provider. On the CPU in f32, two threads, by turns.

    python bench/ort_models.py --csv FILE              # models and norms
    python bench/ort_models.py bert norms              # some of them
    python bench/ort_models.py --opset 20 23           # 20 is torch.onnx.export's by default

A turn is one run of each session, one after the other. The columns with `ms` are the fastest turn
by the clock, those with `cpu` the median of the process' CPU time, both in milliseconds; threads do
not spin, since those of the one session would take the cores from the other. `off` is the largest
difference of the two results, of the largest magnitude. Weights are random; nothing is downloaded.
Needs torch, onnx, onnxscript, onnxruntime, transformers, timm and diffusers.
"""

from __future__ import annotations

import argparse
import collections
import csv
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import planish.ort
import torch
from torch import nn

COLUMNS = (
    "case", "taken", "onnxruntime_ms", "planish_ms", "onnxruntime_cpu", "planish_cpu", "off",
)  # fmt: skip
#: The model, its arguments, their names.
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


# ---- Models --------------------------------------------------------------------------------------


class Called(nn.Module):
    """A model as a function of tensors, with one tensor as its result."""

    def __init__(self, model: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.model, *inputs)


def bert() -> Made:
    import transformers

    config = transformers.BertConfig(vocab_size=2048, num_hidden_layers=4)
    model = transformers.BertModel(config, add_pooling_layer=False)
    call = Called(model, lambda m, ids: m(input_ids=ids).last_hidden_state)
    return call, (torch.randint(3, 2048, (1, 128)),)


def vit() -> Made:
    import timm

    return timm.create_model("vit_base_patch16_224", depth=4), (torch.randn(1, 3, 224, 224),)


def convnext() -> Made:
    import timm

    return timm.create_model("convnext_tiny"), (torch.randn(1, 3, 224, 224),)


def llama() -> Made:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=128,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    call = Called(model, lambda m, ids: m(input_ids=ids, use_cache=False).logits)
    return call, (torch.randint(3, 2048, (1, 128)),)


def unet() -> Made:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=32, block_out_channels=(128, 256), layers_per_block=1, cross_attention_dim=64,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=32,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    call = Called(model, lambda m, x, t, text: m(x, t, text, return_dict=False)[0])
    return call, (torch.randn(1, 4, 32, 32), torch.tensor([5]), torch.randn(1, 7, 64))


MODELS: dict[str, Callable[[], Made]] = {
    "bert": bert, "vit": vit, "convnext": convnext, "llama": llama, "unet": unet,
}  # fmt: skip


def exported(name: str, opset: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file of a model, and its inputs."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    path = folder / f"{name}-{opset}.onnx"
    names = [f"x{i}" for i in range(len(inputs))]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), inputs, input_names=names, dynamo=True, opset_version=opset,
            verbose=False,
        )  # fmt: skip
    program.save(path)
    return path, {n: x.numpy() for n, x in zip(names, inputs, strict=True)}


# ---- Norms ---------------------------------------------------------------------------------------


def norm_model(name: str, shape: tuple[int, ...], what: str) -> tuple[bytes, dict[str, Any]]:
    """One norm; `what` stands around it: "add", "silu", "relu" or nothing."""
    random = numpy.random.default_rng(0)
    channels = shape[-1] if name in ("LayerNormalization", "RMSNormalization") else shape[1]
    weights = {n: random.random(channels, numpy.float32) + 0.5 for n in "wbmv"}
    takes = {"RMSNormalization": "w", "BatchNormalization": "wbmv"}.get(name, "wb")
    attributes = {"num_groups": 32} if name == "GroupNormalization" else {}
    inputs, nodes = ["x"], []
    if what == "add":
        inputs.append("r")
        nodes.append(helper.make_node("Add", ["x", "r"], ["s"]))
    x, y = "s" if what == "add" else "x", "z" if what in ("silu", "relu") else "y"
    nodes.append(helper.make_node(name, [x, *takes], [y], **attributes))
    if what == "silu":
        nodes += [
            helper.make_node("Sigmoid", ["z"], ["q"]),
            helper.make_node("Mul", ["z", "q"], ["y"]),
        ]
    if what == "relu":
        nodes.append(helper.make_node("Relu", ["z"], ["y"]))
    graph = helper.make_graph(
        nodes, "norm",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
         for n in (["y", "s"] if what == "add" else ["y"])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return model.SerializeToString(), {n: random.random(shape, numpy.float32) for n in inputs}


NORMS: list[tuple[str, tuple[int, ...], str]] = [
    ("LayerNormalization", (1, 768), ""),
    ("LayerNormalization", (128, 768), ""),
    ("LayerNormalization", (8192, 768), ""),
    ("LayerNormalization", (6272, 96), ""),
    ("LayerNormalization", (128, 768), "add"),
    ("LayerNormalization", (4096, 1024), "add"),
    ("RMSNormalization", (1, 2048), ""),
    ("RMSNormalization", (128, 2048), ""),
    ("RMSNormalization", (1, 2048), "add"),
    ("RMSNormalization", (2048, 2048), "add"),
    ("GroupNormalization", (1, 256, 16, 16), ""),
    ("GroupNormalization", (1, 128, 32, 32), "silu"),
    ("GroupNormalization", (2, 320, 64, 64), "silu"),
    ("InstanceNormalization", (1, 64, 128, 128), ""),
    ("BatchNormalization", (1, 64, 56, 56), ""),
    ("BatchNormalization", (8, 256, 28, 28), ""),
    ("BatchNormalization", (8, 256, 28, 28), "relu"),
    ("BatchNormalization", (4, 64, 112, 112), "relu"),
]


# ---- Measuring -----------------------------------------------------------------------------------


def sessions(model: Any) -> dict[str, Any]:
    """One of the runtime alone, one with planish."""

    def options() -> Any:
        made = onnxruntime.SessionOptions()
        made.intra_op_num_threads, made.log_severity_level = 2, 3
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return made

    own = onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"])
    ours = onnxruntime.InferenceSession(model, planish.ort.session_options(options()))
    return {"onnxruntime": own, "planish": ours}


def bound(session: Any, feeds: dict[str, Any]) -> Any:
    """Inputs and outputs in their places, so that a run copies nothing."""
    found = session.io_binding()
    for name, value in feeds.items():
        found.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    results = session.run(None, feeds)
    for output, value in zip(session.get_outputs(), results, strict=True):
        found.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    return found


def measured(case: str, model: Any, feeds: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A row of the result."""
    made = sessions(model)
    bindings = {way: bound(session, feeds) for way, session in made.items()}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in made}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["planish"]) < 7:
        for way, session in made.items():
            start, spent = time.perf_counter(), time.process_time()
            session.run_with_iobinding(bindings[way])
            clock, cpu = time.perf_counter() - start, time.process_time() - spent
            times[way].append((1e3 * clock, 1e3 * cpu))
    results = {way: session.run(None, feeds)[0] for way, session in made.items()}
    largest = float(numpy.abs(results["onnxruntime"]).max())
    off = float(numpy.abs(results["onnxruntime"] - results["planish"]).max()) / largest
    groups = collections.Counter("+".join(g) for g in planish.ort.taken(made["planish"]))
    row: dict[str, Any] = {
        "case": case,
        "taken": ", ".join(f"{count} {name}" for name, count in sorted(groups.items())),
        "off": f"{off:.1e}",
    }
    for way, taken in times.items():
        row[f"{way}_ms"] = f"{min(clock for clock, _ in taken):.4g}"
        row[f"{way}_cpu"] = f"{statistics.median(cpu for _, cpu in taken):.4g}"
    print(*(row[c] for c in COLUMNS), sep="  ", flush=True)
    return row


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*MODELS, "norms", []], help="all by default")
    parser.add_argument("--opset", type=int, nargs="+", default=[23], help="of the models")
    parser.add_argument("--seconds", type=float, default=20, help="for each model; norms: a tenth")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases or [*MODELS, "norms"]:
            if name == "norms":
                for operator, shape, what in NORMS:
                    label = f"{operator} {'x'.join(map(str, shape))}" + (
                        f", {what}" if what else ""
                    )
                    model, feeds = norm_model(operator, shape, what)
                    rows.append(measured(label, model, feeds, given.seconds / 10))
            else:
                for opset in given.opset:
                    path, feeds = exported(name, opset, Path(folder))
                    label = f"{name}, opset {opset}"
                    rows.append(measured(label, str(path), feeds, given.seconds))
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
                       "f32, two threads\n")  # fmt: skip
            file.write(f"# python bench/ort_models.py {' '.join(sys.argv[1:])}\n")
            file.write(f"# load {' '.join(f'{load:.1f}' for load in os.getloadavg())}\n")
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
