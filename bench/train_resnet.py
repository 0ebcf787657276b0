"""A ResNet-18 with batch norms, trained for 200 steps on seeded images by torch, with planish under
torch's operators (enable), and with planish's modules in it (replace, activations and all).

    python bench/train_resnet.py [--steps 200] [--device cpu] [--out FILE.csv]

All three begin with the same weights and see the same images, of ten classes that differ by a
pattern in noise. Written are the losses of each step, printed the largest difference from torch's,
of the losses and of the running statistics at the end. A fourth way shows what training itself
makes of a rounding: torch's own, from weights of which each is the next number.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
import torchvision

import planish
import torch
from torch import Tensor, nn

CLASSES, BATCH, SIDE = 10, 16, 32


def images(steps: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and their classes, the same in each run."""
    make = torch.Generator().manual_seed(5)
    patterns = torch.randn(CLASSES, 3, SIDE, SIDE, generator=make)
    for _ in range(steps):
        labels = torch.randint(0, CLASSES, (BATCH,), generator=make)
        noise = torch.randn(BATCH, 3, SIDE, SIDE, generator=make)
        yield (patterns[labels] + 2 * noise).to(device), labels.to(device)


def train(prepare: Callable[[nn.Module], nn.Module], steps: int, device: str) -> tuple[Any, Any]:
    """The losses, and the running statistics behind the last step."""
    torch.manual_seed(0)
    model = prepare(torchvision.models.resnet18(num_classes=CLASSES)).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    losses = []
    for x, labels in images(steps, device):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    return losses, torch.cat([b.flatten().double().cpu() for b in buffers])


def nudged(model: nn.Module) -> nn.Module:
    """Each weight is the next number: as far as a rounding could have moved it."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.nextafter(parameter * 2 + 1))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out")
    given = parser.parse_args()
    ways: dict[str, tuple[Any, Callable[[nn.Module], nn.Module]]] = {
        "torch": (nullcontext, lambda model: model),
        "torch, nudged": (nullcontext, nudged),
        "enable": (planish.enabled, lambda model: model),
        "replace": (nullcontext, lambda model: planish.replace(model, activations=True)),
    }
    losses, statistics = {}, {}
    for name, (inside, prepare) in ways.items():
        with inside():
            losses[name], statistics[name] = train(prepare, given.steps, given.device)
        first, last = losses[name][0], sum(losses[name][-10:]) / 10
        apart = [abs(a - b) for a, b in zip(losses[name], losses["torch"], strict=True)]
        moved = float((statistics[name] - statistics["torch"]).abs().max())
        print(
            f"{name:14} loss {first:.6f} -> {last:.6f} (mean of the last ten); from torch's: ten "
            f"steps {max(apart[:10]):.1e}, all {max(apart):.1e}, running statistics {moved:.1e}",
            flush=True,
        )
    if given.out:
        with open(given.out, "w", encoding="utf-8", newline="") as file:
            file.write(f"# torch {torch.__version__}, {given.device}; bench/train_resnet.py\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["step", *losses])
            writer.writerows(zip(range(given.steps), *losses.values(), strict=True))


if __name__ == "__main__":
    main()
