"""CUDA graphs whose recording is the first thing that planish does, in a process of its own. It
needs a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

import torch

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

#: A forward and its backward, of which planish has compiled and loaded nothing yet.
WORKS = {
    "add": "y, s = planish.add_rms_norm(x, r, w); out = [y, s]",
    "silu": "y = planish.layer_norm(x, -1, w, w, activation='silu'); out = [y]",
    "heads": (
        "q = x.view(64, 4, 3, -1)[:, :, 1]; y = planish.rms_norm(q, -1, w[: q.shape[-1]]); "
        "out = [y]"
    ),
}
PROGRAM = """
import torch, planish

def run(x, r, w, grow):
    x, r, w = (t.detach().requires_grad_() for t in (x, r, w))
    {work}
    got = torch.autograd.grad(out, [x, w], [torch.ones_like(t) * grow for t in out])
    return [*(t.detach() for t in out), *got]

torch.manual_seed(1)
x, r, w = (torch.randn(n, 1536, device="cuda").bfloat16() for n in (64, 64, 1))
w = w[0].contiguous()
# autograd's thread, and no kernel of planish
warm = torch.ones(8, device="cuda", requires_grad=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.autograd.grad(warm.sum(), warm)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side, capture_error_mode={mode!r}):
    captured = run(x, r, w, 2)
for seed in (2, 3):
    torch.manual_seed(seed)
    x.copy_(torch.randn_like(x))
    graph.replay()
    now = run(x, r, w, 2)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, now, strict=True)), seed
print("replayed")
"""


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize("work", WORKS)
def test_the_first_call_of_a_process_cannot_be_recorded(work: str, mode: str) -> None:
    program = PROGRAM.format(work=WORKS[work], mode=mode)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "replayed"


def test_a_backward_alone_cannot_be_recorded() -> None:
    """Where its forward was called on the stream that records, or on any but the default one."""
    import planish

    x, r = (torch.randn(64, 1152, device="cuda").bfloat16() for _ in range(2))
    leaves = [t.detach().requires_grad_() for t in (x, r)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y, s = planish.add_rms_norm(*leaves)
        gradients = [torch.ones_like(y), torch.full_like(s, 2.0)]
        expected = torch.autograd.grad([y, s], leaves, gradients, retain_graph=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        captured = torch.autograd.grad([y, s], leaves, gradients, retain_graph=True)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
