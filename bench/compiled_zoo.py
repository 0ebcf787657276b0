"""Which norms of every model of the zoo planish takes where it is compiled, on this CPU.

    python bench/compiled_zoo.py                        # all of them, in 20 minutes
    python bench/compiled_zoo.py llama autoencoder_kl   # some

One step of training of each is traced as `backend="planish"` traces it, and its graphs are run node
by node: nothing waits for code. Printed are the norms of its graphs that planish takes and those
that it leaves to inductor, forward and backward. A model of which it takes none has inductor's
graphs. Those of the others are measured by `bench/compiled_models.py --device cpu zoo/NAME`.
"""

from __future__ import annotations

import argparse
import collections
import warnings
from typing import Any

import torch._functorch.config
from functorch.compile import make_boxed_func

import planish
import torch
from planish import zoo
from planish.compile import choice, inductor
from torch import fx


def look(name: str) -> tuple[collections.Counter[str], int]:
    """The norms by direction and who has them, and planish's operators in the graphs."""
    model, inputs = zoo.build(zoo.entries()[name])
    model.train()
    graphs: list[fx.GraphModule] = []

    def take(module: fx.GraphModule, _: Any, **__: Any) -> Any:
        graphs.append(module)
        return make_boxed_func(fx.Interpreter(module).run)

    def backend(module: Any, given: Any) -> Any:
        return inductor.compile_graph(module, given, choice.FASTER, inner_compile=take)

    torch._dynamo.reset()
    before = len(planish.compile.report())
    with torch._functorch.config.patch(enable_autograd_cache=False):
        output = torch.compile(model, backend=backend, dynamic=False)(**inputs)
    loss = zoo.loss_of(output)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    found = collections.Counter(
        f"{entry.direction} {entry.chosen}" for entry in planish.compile.report()[before:]
    )
    operators = sum(
        isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "planish"
        for graph in graphs
        for node in graph.graph.nodes
    )
    return found, operators


def main() -> int:
    """A line for each model, and how many of them have no operator of planish's."""
    p = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    p.add_argument("models", nargs="*")
    names = p.parse_args().models or list(zoo.entries())
    warnings.simplefilter("ignore")
    torch._logging.set_logs(dynamo=50, aot=50)
    left = 0
    print(f"torch {torch.__version__}; norms: planish's and inductor's, forward; backward")
    for name in names:
        missing = zoo.missing_packages(zoo.entries()[name].packages)
        if missing:
            print(f"{name}: left out, {', '.join(missing)} is not installed", flush=True)
            continue
        found, operators = look(name)
        left += not operators
        taken, kept, back, back_kept = (
            found[f"{direction} {who}"]
            for direction in ("forward", "backward")
            for who in ("planish", "inductor")
        )
        print(f"{name:34} {taken:3} and {kept:3}; {back:3} and {back_kept:3}", flush=True)
    print(f"{left} of {len(names)} models have inductor's graphs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
