"""Training steps of whole models under torch.compile: inductor, and planish's backend, which takes
the norms that it is faster at. By turns, on the first GPU in bf16, or on a CPU in f32.

    python3 bench/compiled_models.py --csv FILE              # all of them
    python3 bench/compiled_models.py llama convnext          # some
    python3 bench/compiled_models.py --device cpu bert       # of fewer images or tokens
    python3 bench/compiled_models.py --tiny --device cpu     # does it run
    python3 bench/compiled_models.py --device cpu zoo/autoencoder_kl     # a tiny one of the zoo

Each model has a process of its own. On a GPU --together of them compile at the same time, and are
measured one after the other, once these are compiled or --patience is over; on a CPU one follows
the other. Each model's rows are in FILE as soon as it is measured: on an H200 with 16 cores two
language models take a minute, a U-Net four. `gpu`
is the time of the kernels, as the profiler adds them up; `clock` the time of a step by the clock;
both in milliseconds, the median of the rounds; `least` that of the fastest round; `cores` the time
that the process had cores, which leaves out that others had them. `norms_planish` and
`norms_inductor` are the kernels of norms, planish's and those of Triton's whose names have a norm
in them with all that inductor fused with it. `small` waits for
the host; `graphs` is the same under mode="reduce-overhead", where the host costs nothing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import planish
import planish.compile
import torch
from denoisers import dit, unet
from planish import zoo
from planish.bench import machine, report
from torch import Tensor, nn

WAYS = ("inductor", "planish")
#: By the kind of device.
ROUNDS, STEPS = {"cuda": 7, "cpu": 5}, {"cuda": 3, "cpu": 1}
#: On a CPU: images, and a batch of sequences of tokens.
CPU_IMAGES, CPU_TOKENS = 4, (2, 512)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SUFFIX = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM", "T5": "ForConditionalGeneration"}

Made = tuple[nn.Module, Callable[[Any], Tensor]]


@dataclass(frozen=True)
class Step:
    """A training step of one model in one way."""

    model: str
    way: str
    gpu_ms: float
    norms_planish_ms: float
    norms_inductor_ms: float
    clock_ms: float
    least_ms: float
    cores_ms: float
    peak_gib: float
    compile_s: float
    loss: float
    forward_planish: int
    forward_inductor: int
    backward_planish: int
    backward_inductor: int


def _language(stem: str, batch: int, length: int, **size: Any) -> Callable[[bool, str], Made]:
    def make(tiny: bool, device: str) -> Made:
        import transformers

        given = dict(size)
        if tiny:
            names = {
                "n_embd": "n_head",
                "d_model": "num_heads",
                "hidden_size": "num_attention_heads",
            }
            width = next(name for name in names if name in given)
            given |= {width: 64, names[width]: 4}
            if "num_key_value_heads" in given:
                given["num_key_value_heads"] = 2
            if "head_dim" in given:
                given["head_dim"] = 16
            if "intermediate_size" in given:
                given["intermediate_size"] = 96
        config = getattr(transformers, f"{stem}Config")(vocab_size=2048, **given, **SPECIAL)
        model = getattr(transformers, stem + SUFFIX.get(stem, "ForCausalLM"))(config)
        rows, columns = (2, 16) if tiny else CPU_TOKENS if device == "cpu" else (batch, length)
        ids = torch.randint(3, 2048, (rows, columns), device=device)
        more = {} if stem in ("Bert", "T5") else {"use_cache": False}
        return model, lambda m: m(input_ids=ids, labels=ids, **more).loss  # type: ignore[no-any-return]

    return make


def _image(
    name: str, batch: int, channels_last: bool = True, **more: Any
) -> Callable[[bool, str], Made]:
    def make(tiny: bool, device: str) -> Made:
        import timm

        model = timm.create_model(name, **more)
        least = 224 if "vit" in name else 64
        side, count = (least, 2) if tiny else (224, CPU_IMAGES if device == "cpu" else batch)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        x = torch.randn(count, 3, side, side, device=device, dtype=dtype)
        if channels_last:
            model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
        labels = torch.randint(0, 1000, (count,), device=device)
        return model, lambda m: nn.functional.cross_entropy(m(x).float(), labels)

    return make


def _denoiser(of: Callable[[bool], Callable[[str], Made]]) -> Callable[[bool, str], Made]:
    return lambda tiny, device: of(tiny)(device)


def _of_zoo(name: str) -> Callable[[bool, str], Made]:
    def make(tiny: bool, device: str) -> Made:
        model, inputs = zoo.build(zoo.entries()[name])
        given = zoo.mapped(inputs, lambda t: t.to(device))
        return model, lambda m: zoo.loss_of(m(**given))

    return make


_DECODER = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
_SMALL = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8}
_SMALL_LLAMA = _language(
    "Llama", 2, 512, num_hidden_layers=4, num_key_value_heads=2, head_dim=128, **_SMALL
)
MODELS: dict[str, Callable[[bool, str], Made]] = {
    "llama": _language(
        "Llama", 4, 1024, num_hidden_layers=4, num_key_value_heads=4, head_dim=128, **_DECODER
    ),
    "qwen3": _language(
        "Qwen3", 4, 1024, num_hidden_layers=4, num_key_value_heads=4, head_dim=128, **_DECODER
    ),
    "gpt2": _language("GPT2", 4, 1024, n_embd=1024, n_layer=8, n_head=16),
    "neox": _language(
        "GPTNeoX", 4, 1024, hidden_size=2048, intermediate_size=8192, num_hidden_layers=4,
        num_attention_heads=16,
    ),
    "bert": _language(
        "Bert", 32, 512, hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
        num_hidden_layers=4, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    ),
    "t5": _language(
        "T5", 16, 512, d_model=1024, d_kv=64, d_ff=4096, num_heads=16, num_layers=4,
        dropout_rate=0.0, decoder_start_token_id=0,
    ),
    "vit": _image("vit_base_patch16_224", 64, False, depth=6),
    "convnext": _image("convnext_base", 64),
    "resnet_gn": _image("resnet50_gn", 64),
    "convnext_nchw": _image("convnext_base", 64, False),
    "resnet_gn_nchw": _image("resnet50_gn", 64, False),
    "dit": _denoiser(dit),
    "unet_nchw": _denoiser(unet),
    "unet_nhwc": _denoiser(functools.partial(unet, channels_last=True)),
    "small": _SMALL_LLAMA,
    "graphs": _SMALL_LLAMA,
}  # fmt: skip


def _makers() -> dict[str, Callable[[bool, str], Made]]:
    return {**MODELS, **{f"zoo/{name}": _of_zoo(name) for name in zoo.entries()}}


class _Way:
    """A model compiled in one way, and its step."""

    def __init__(self, name: str, way: str, tiny: bool, device: str) -> None:
        torch.manual_seed(0)
        self.model, loss = _makers()[name](tiny, device)
        self.model.to(device, torch.float32 if device == "cpu" else torch.bfloat16).train()
        mode = "reduce-overhead" if name == "graphs" else None
        compiled: Any = torch.compile(self.model, backend=way, mode=mode, dynamic=False)
        self.parameters = list(self.model.parameters())
        self.cuda, self.steps = device == "cuda", STEPS[device]

        def step() -> Tensor:
            found = loss(compiled)
            found.backward()  # type: ignore[no-untyped-call]
            for parameter in self.parameters:
                parameter.grad = None
            return found

        self.step = step
        before = len(planish.compile.report())
        begin = time.perf_counter()
        for _ in range(3):
            self.loss = float(step().detach())
        self.compile_s = time.perf_counter() - begin
        self.chosen = collections.Counter(
            (entry.direction, entry.chosen) for entry in planish.compile.report()[before:]
        )

    def clock(self) -> tuple[float, float]:
        """Milliseconds of a step, by the clock and of the process's cores."""
        self._wait()
        begin = time.perf_counter(), time.process_time()
        for _ in range(self.steps):
            self.step()
        self._wait()
        end = time.perf_counter(), time.process_time()
        wall, cores = ((b - a) / self.steps * 1e3 for a, b in zip(begin, end, strict=True))
        return wall, cores

    def gpu(self) -> tuple[float, float, float]:
        """Milliseconds of a step's kernels, and of those of norms: planish's and inductor's."""
        kernels = self.kernels()
        planishs = [spent for name, spent, _ in kernels if name.startswith("planish_")]
        theirs = [
            spent for name, spent, _ in kernels if name.startswith("triton_") and "norm" in name
        ]
        return sum(spent for _, spent, _ in kernels), sum(planishs), sum(theirs)

    def kernels(self) -> list[tuple[str, float, int]]:
        """The kernels of a step, the longest first: name, milliseconds and calls."""
        if not self.cuda:
            return []
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(self.steps):
                self.step()
            self._wait()
        found = [
            (e.key, e.self_device_time_total / self.steps / 1e3, e.count // self.steps)
            for e in profile.key_averages()
        ]
        return sorted(found, key=lambda kernel: -kernel[1])

    def peak(self) -> float:
        """GiB that one step holds at most."""
        if not self.cuda:
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        self.step()
        return torch.cuda.max_memory_allocated() / 2**30

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def _measure(
    name: str,
    tiny: bool,
    device: str,
    patience: float,
    shown: int,
    rounds: int,
    barrier: Any,
    lock: Any,
    results: Any,
) -> None:
    found: list[dict[str, Any]] | None = None
    try:
        ways = {}
        try:
            ways = {way: _Way(name, way, tiny, device) for way in WAYS}
        except Exception as error:
            print(f"{name}: left out: {type(error).__name__}: {error}"[:600], flush=True)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(patience)
        with lock:
            found = _by_turns(name, ways, rounds or ROUNDS[device])
            results.put(found)
            for way, made in ways.items():
                for kernel, spent, calls in made.kernels()[:shown]:
                    print(f"  {name} {way} {spent:8.3f} ms {calls:4} x {kernel[:120]}", flush=True)
    finally:
        if found is None:
            results.put([])


def _by_turns(name: str, ways: dict[str, _Way], rounds: int) -> list[dict[str, Any]]:
    clocks: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    gpus: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for round_ in range(rounds):
        for way in list(ways)[:: 1 if round_ % 2 else -1]:
            clocks[way].append(ways[way].clock())
            if round_ % 3 == 0:
                gpus[way].append(ways[way].gpu())
    found = []
    for way, made in ways.items():
        chosen = {
            f"{direction}_{who}": made.chosen[direction, who]
            for direction in ("forward", "backward")
            for who in ("planish", "inductor")
        }
        walls, cores = zip(*clocks[way], strict=True)
        gpu, *norms = (statistics.median(each) for each in zip(*gpus[way], strict=True))
        medians = (
            gpu,
            norms[0],
            norms[1],
            statistics.median(walls),
            min(walls),
            statistics.median(cores),
        )
        found.append(
            asdict(Step(name, way, *medians, made.peak(), made.compile_s, made.loss, **chosen))
        )
        print(
            f"{name:10} {way:9} gpu {medians[0]:8.3f}  norms {medians[1]:6.3f} planish "
            f"{medians[2]:6.3f} inductor  clock {medians[3]:8.3f} ms  "
            f"least {medians[4]:8.3f}  cores {medians[5]:8.3f} ms  "
            f"peak {found[-1]['peak_gib']:6.2f} GiB  compiled in {made.compile_s:5.1f} s  "
            f"loss {made.loss:.4f}  {chosen}",
            flush=True,
        )
    return found


def main() -> int:
    """Runs each model in its process."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("models", nargs="*", help=", ".join(MODELS))
    p.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--together", type=int, default=4, help="compile so many at once, on a GPU")
    p.add_argument("--patience", type=float, default=600.0, help="seconds to wait for all")
    p.add_argument("--kernels", type=int, default=0, help="show so many kernels of each step")
    p.add_argument("--rounds", type=int, default=0, help="0: so many as the device has")
    p.add_argument("--csv", type=Path)
    arguments = p.parse_args()
    names = arguments.models or list(MODELS)
    if unknown := set(names) - set(_makers()):
        p.error(f"unknown models {sorted(unknown)}; known are {', '.join(MODELS)}, zoo/NAME")
    context = multiprocessing.get_context("spawn")
    together = arguments.together if arguments.device == "cuda" else 1
    lock, results = context.Lock(), context.Queue()
    given = (
        *(arguments.tiny, arguments.device, arguments.patience),
        *(arguments.kernels, arguments.rounds),
    )
    rows: list[dict[str, Any]] = []
    for at in range(0, len(names), together):
        some = names[at : at + together]
        shared = context.Barrier(len(some)), lock, results
        running = [context.Process(target=_measure, args=(name, *given, *shared)) for name in some]
        for process in running:
            process.start()
        for _ in running:
            rows += results.get()
            if arguments.csv and rows:  # at once: what is cut off has what was measured by then
                about = {"machine": machine.describe(), "settings": {"command": " ".join(sys.argv)}}
                report.write_csv(arguments.csv, [Step(**row) for row in rows], about)
        for process in running:
            process.join()
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
