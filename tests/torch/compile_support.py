"""Graphs as planish's backend leaves them, run node by node: what is chosen, put in and computed is
seen without waiting for inductor to write and compile code, which test_compile_inductor.py does."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch._functorch.config
import torch.nn.functional as F
from functorch.compile import make_boxed_func

import planish
import torch
from planish.compile import choice, forms, inductor, table
from torch import Tensor, fx, nn

Record = tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]


class Graphs:
    """The graphs that were compiled, and with ``record`` what each of planish's forms was called
    with and returned."""

    def __init__(self) -> None:
        self.modules: list[fx.GraphModule] = []
        self.calls: list[Record] = []
        self.record = False

    def counted(self) -> collections.Counter[str]:
        """The operators of all graphs by their names, without overloads."""
        names: collections.Counter[str] = collections.Counter()
        for module in self.modules:
            for node in module.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    names[node.target.name().split(".")[0]] += 1
        return names

    def take(self, module: fx.GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
        """inductor's inner_compile."""
        self.modules.append(module)
        return make_boxed_func(lambda *given: _Recorder(module, self).run(*given))


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, graphs: Graphs) -> None:
        super().__init__(module)
        self.graphs = graphs

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().call_function(target, args, kwargs)
        if self.graphs.record and forms.is_form(target):
            results = found if isinstance(found, tuple) else (found,)
            self.graphs.calls.append((target, args, results))
        return found


def compiled(
    model: Any, mode: str = choice.ALWAYS, dynamic: bool | None = False, fullgraph: bool = True
) -> tuple[Any, Graphs]:
    """The model through planish's backend, and its graphs."""
    graphs = Graphs()

    def backend(module: Any, inputs: Any) -> Any:
        return inductor.compile_graph(module, inputs, mode, inner_compile=graphs.take)

    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        made = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    return made, graphs


def results_of(run: Any, model: Any, *inputs: Tensor) -> list[Tensor]:
    """Of a call and its backward: the results, and the gradients of inputs and parameters."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    found = run(*leaves)
    outputs = found if isinstance(found, tuple) else (found,)
    wrt = [t for t in (*leaves, *parameters) if t.requires_grad]
    weighed = sum(
        (y.float() * torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)).sum()
        for y in outputs
    )
    gradients = torch.autograd.grad(weighed, wrt, allow_unused=True)  # type: ignore[arg-type]
    return [*(y.detach() for y in outputs), *(g for g in gradients if g is not None)]


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    """A graph out of a cache would not be looked at."""
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the table: ``rows(forward=2.0)`` says that planish is twice as fast at every forward on
    this device, and has no row for backwards."""

    def put(**speedups: float) -> None:
        device = table.device_kind(torch.device("cpu"))
        behind = ("", " with stages")
        layouts = [
            f"{kind} {layout}{stages}"
            for kind in ("layer", "rms")
            for layout in ("rows", "channels", "groups nchw", "groups nhwc")
            for stages in behind
        ]
        whole = (0, None)
        found = [
            table.Row(device, layout, dtype, direction, whole, whole, speedup)
            for layout in layouts
            for dtype in set(table.NAMES.values())
            for direction, speedup in speedups.items()
        ]
        monkeypatch.setattr(table, "rows", lambda: found)

    return put


# ---- Models with norms ---------------------------------------------------------------------------


class Layer(nn.Module):
    """torch's norms over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.product(x))


class Written(nn.Module):
    """An RMS norm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        wide = self.product(x).to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 16), nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.product(x))


class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 32), nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.product(x).view(-1, 8, 4)))


class Functions(nn.Module):
    """planish's own functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        y, total = planish.add_rms_norm(x, x.flip(0), self.weight, 1e-6)
        one, other = planish.qk_norm(y, total, self.weight, self.weight, 1e-6)
        gated = planish.gated_rms_norm(one, other, self.weight, 1e-6)
        moved = planish.modulated_layer_norm(gated, self.weight, self.weight.flip(0))
        return planish.layer_norm(moved.view(-1, 4, 4), dims=1).view(-1, 16)


class Lengths(nn.Module):
    """An L2 norm, of whose rows some are shorter than the least length."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        longer = torch.arange(len(x), device=x.device).unsqueeze(-1)
        return planish.normalize(self.product(x) * longer, dim=-1, eps=6.0, weight=self.weight)


class Heads(nn.Module):
    """Queries, keys and values of one norm's result, and what goes round them."""

    def __init__(self, after: bool = False, more: Any = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.ways = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))
        self.after, self.more = after, more

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        rows_ = self.norm(x)
        q, k, v = (way(rows_) for way in self.ways)
        mixed = q * k.sigmoid() + v
        more = 0 if self.more is None else self.more(rows_)
        return mixed + (rows_ if self.after else x) + more


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "layer": (Layer, 1),
    "written": (Written, 1),
    "rms": (Rms, 1),
    "groups": (Groups, 1),
    "functions": (Functions, 6),
    "lengths": (Lengths, 1),
}
