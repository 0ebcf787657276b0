"""Trains one small model of each kind as it is, while planish is enabled, with planish.replace(),
with planish.replace(fuse=True), and so while planish is enabled ("both"): losses, time of a step by
the clock and of its kernels, peak of memory.

    python3 bench/fuse_models.py                     # on the first GPU, in bf16, in four minutes
    python3 bench/fuse_models.py --tiny --steps 4    # sizes for a CPU
    python3 bench/fuse_models.py llama flux --csv FILE
    python3 bench/fuse_models.py --images            # those of images instead, whole ones
    python3 bench/fuse_models.py --tiny --decode llama gpt2   # 32 tokens, greedily, with a cache

All start from the same weights and see the same batches. Steps are timed by turns of several, the
first of each left out, for the switch was thrown before it; the median is printed. What a package
is missing for is left out, and said so.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import planish
import torch
from denoisers import dit, flux, unet
from image_kinds import image_kinds
from planish import zoo
from planish.bench import machine, report
from torch import Tensor, nn

WAYS = ("torch", "enable", "replace", "fuse", "both")
#: Steps of a turn.
TURN = 8
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def _language(
    stem: str, size: dict[str, Any], batch: int, length: int, decode: bool
) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        import transformers

        name = "Gemma3TextConfig" if stem == "Gemma3" else f"{stem}Config"
        config = getattr(transformers, name)(vocab_size=2048, **size, **SPECIAL)
        suffix = "LMHeadModel" if stem == "GPT2" else "ForCausalLM"
        suffix = "ForMaskedLM" if stem == "Bert" else suffix
        model = getattr(transformers, stem + suffix)(config)
        ids = torch.randint(3, 2048, (batch, length), device=device)
        given = {} if stem == "Bert" else {"use_cache": False}
        if decode:
            whole = {"attention_mask": torch.ones_like(ids[:1, :8]), "do_sample": False}
            tokens = {"min_new_tokens": 32, "max_new_tokens": 32}
            return model, lambda m: m.generate(ids[:1, :8], **whole, **tokens).float().mean()
        return model, lambda m: m(input_ids=ids, labels=ids, **given).loss

    return make


def _decoder(hidden: int, heads: int, head: int, inner: int, layers: int = 4) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 4, 1),
        "head_dim": head,
        "max_position_embeddings": 4096,
    }


def _vit(tiny: bool) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        import timm

        width, side, batch = (48, 32, 2) if tiny else (1024, 224, 128)
        model = timm.create_model(
            "vit_base_patch16_224",
            img_size=side,
            depth=4,
            embed_dim=width,
            num_heads=width // 16 if tiny else 16,
            init_values=1e-2,
            drop_path_rate=0.2,
            num_classes=100,
        )
        x = torch.randn(batch, 3, side, side, device=device)
        labels = torch.randint(0, 100, (batch,), device=device)
        return model, lambda m: nn.functional.cross_entropy(
            m(x.to(next(m.parameters()).dtype)).float(), labels
        )

    return make


def _kinds(tiny: bool, decode: bool = False) -> dict[str, tuple[str, Callable[[str], Made]]]:
    small = _decoder(64, 4, 16, 128, 2)
    batch, length = (2, 16) if tiny else (16, 1024)

    def language(stem: str, size: dict[str, Any]) -> tuple[str, Callable[[str], Made]]:
        return "transformers", _language(stem, small if tiny else size, batch, length, decode)

    gpt2 = {"n_embd": 1024, "n_layer": 4, "n_head": 16, "n_positions": 1024}
    gpt2_tiny = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    bert = _decoder(1024, 16, 64, 4096)
    return {
        "llama": language("Llama", _decoder(2048, 16, 128, 5632)),
        "qwen3": language("Qwen3", _decoder(2048, 16, 128, 6144)),
        "gemma3": language("Gemma3", _decoder(1152, 4, 256, 6912)),
        "olmo2": language("Olmo2", _decoder(2048, 16, 128, 8192)),
        "gpt2": (
            "transformers",
            _language("GPT2", (gpt2_tiny if tiny else gpt2) | off, batch, length, decode),
        ),
        "bert": language("Bert", bert),
        "vit": ("timm", _vit(tiny)),
        "dit": ("diffusers", dit(tiny)),
        "flux": ("diffusers", flux(tiny)),
        "unet": ("diffusers", unet(tiny)),
    }


@dataclass(frozen=True)
class Record:
    """What the steps of a model came to; the losses' farthest relative distance from torch's."""

    model: str
    way: str
    together: int
    step_ms: float
    step_ms_q1: float
    step_ms_q3: float
    gpu_ms: float
    peak_mib: float
    first_loss: float
    last_loss: float
    farthest_from_torch: float


class _Trained:
    """One of them, and what its steps gave."""

    def __init__(
        self,
        way: str,
        make: Callable[[str], Made],
        device: str,
        dtype: torch.dtype,
        decode: bool = False,
    ) -> None:
        torch.manual_seed(0)
        model, self.loss = make(device)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():  # gates of diffusion transformers start at 0
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
        self.model = model.to(device, dtype).train(not decode)
        self.decodes = decode
        self.replaced = way not in ("torch", "enable")
        if self.replaced:
            planish.replace(self.model, fuse=way != "replace")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.device = device
        self.enables = way in ("enable", "both")
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.peak = 0

    def turn(self, steps: int) -> None:
        with planish.enabled() if self.enables else contextlib.nullcontext():
            for step in range(steps):
                self._step(counts=step > 0)

    def kernels(self) -> float:
        """Milliseconds of the kernels of forward and backward; 0 on a CPU, and of tokens."""
        if self.decodes or not self.device.startswith("cuda"):
            return 0.0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            with planish.enabled() if self.enables else contextlib.nullcontext():
                for _ in range(3):
                    self.loss(self.model).backward()  # type: ignore[no-untyped-call]
                    self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
        return sum(e.self_device_time_total for e in profile.key_averages()) / 3e3

    def _step(self, counts: bool) -> None:
        cuda = self.device.startswith("cuda")
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        torch.manual_seed(len(self.losses))
        start = time.perf_counter()
        loss = self.loss(self.model)
        if not self.decodes:
            loss.backward()  # type: ignore[no-untyped-call]
        if cuda:
            torch.cuda.synchronize()
        if counts:
            self.seconds.append(time.perf_counter() - start)
        if cuda:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated() - held)
        if not self.decodes:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(float(loss))


def _run(name: str, make: Callable[[str], Made], arguments: argparse.Namespace) -> list[Record]:
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[arguments.dtype]
    trained = {way: _Trained(way, make, arguments.device, dtype, arguments.decode) for way in WAYS}
    print(f"{name}: {str(planish.replaced(trained['fuse'].model)).splitlines()[0]}", flush=True)
    for done in range(0, arguments.steps, TURN):
        for way in WAYS:
            trained[way].turn(min(TURN, arguments.steps - done))
    records = []
    for way, one in trained.items():
        times = [1e3 * seconds for seconds in one.seconds[2:] or one.seconds]
        low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else 3 * times
        record = Record(
            name,
            way,
            planish.replaced(one.model).places_fused if one.replaced else 0,
            middle,
            low,
            high,
            one.kernels(),
            one.peak / 2**20,
            one.losses[0],
            one.losses[-1],
            max(
                abs(a - b) / abs(b)
                for a, b in zip(one.losses, trained["torch"].losses, strict=True)
            ),
        )
        records.append(record)
        shown = report.rounded(asdict(record))
        print("  " + "  ".join(f"{key} {value}" for key, value in list(shown.items())[1:]))
    return records


def _context(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    packages = "torch", "transformers", "timm", "diffusers"
    found = [p for p in packages if importlib.util.find_spec(p) is not None]
    settings = {"command": "bench/fuse_models.py " + " ".join(sys.argv[1:])}
    return {
        "machine": machine.describe(),
        "versions": {p: importlib.metadata.version(p) for p in found},
        "settings": {**settings, "dtype": arguments.dtype, "steps": arguments.steps},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("models", nargs="*", help="of " + ", ".join(_kinds(True)))
    parser.add_argument("--images", action="store_true", help="models of images, of timm")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--decode", action="store_true", help="tokens, in place of training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    zoo.prepare()
    # The backward of cuDNN 9.19's attention reads out of bounds for Flux on an H200, in torch 2.11
    # without planish, too.
    torch.backends.cuda.enable_cudnn_sdp(False)
    warnings.simplefilter("ignore")
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU"
    print(f"torch {torch.__version__}, {where}, {arguments.dtype}, {arguments.steps} steps")
    tiny = arguments.tiny
    kinds = image_kinds(tiny) if arguments.images else _kinds(tiny, arguments.decode)
    unknown = set(arguments.models) - set(kinds)
    if unknown:
        parser.error(f"unknown models: {', '.join(sorted(unknown))}")
    context = _context(arguments)
    records: list[Record] = []
    for name in arguments.models or kinds:
        package, make = kinds[name]
        if importlib.util.find_spec(package) is None:
            print(f"{name}: left out, {package} is not installed")
            continue
        records += _run(name, make, arguments)
        gc.collect()
        if arguments.device.startswith("cuda"):
            torch.cuda.empty_cache()
    if arguments.csv and records:
        report.write_csv(Path(arguments.csv), records, context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
