"""Graphs that inductor compiles: planish's norms are called there without Python, packages of
ahead-of-time compilation included, and a switch and torch's caches keep graphs apart.
PLANISH_TEST_DEVICE=cuda has them on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compile_support import results_of
from support import DEVICE
from torch._inductor.utils import fresh_cache, run_and_get_code

import planish
import torch
from planish.compile import inductor
from planish.library import loaded
from torch import Tensor, nn

CALLED = "planish::norm_forward"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(16, 16)
        self.norm, self.groups, self.rms = nn.LayerNorm(16), nn.GroupNorm(4, 8), nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.product(self.norm(self.product(x)))
        return self.rms(self.groups(x.view(-1, 8, 2)).view(-1, 16))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with fresh_cache():
        yield


def ran() -> int:
    """Forwards of planish's own operators since the last question."""
    found = planish.stats()[CALLED]["planish"]
    planish.reset_stats()
    return found


@pytest.mark.parametrize("cpp", [False, True], ids=["python", "cpp_wrapper"])
def test_a_compiled_step_differs(cpp: bool) -> None:
    model, x = Model().to(DEVICE), torch.randn(8, 16, device=DEVICE)
    options = {"planish": "always"}
    run = torch.compile(model, backend="planish", options=options, fullgraph=True)
    with planish.enabled():
        wanted = results_of(model, model, x)
    # Not as an option: on a GPU torch 2.11 forgets that before it compiles the backward.
    with torch._inductor.config.patch(cpp_wrapper=cpp):
        found, codes = run_and_get_code(lambda: results_of(run, model, x))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    code = "\n".join(codes)
    called = 'aoti_torch_call_dispatcher("planish::graph_' if cpp else "torch.ops.planish.graph_"
    assert code.count(called) >= 6, code
    lines = [line.split("#")[0].split("//")[0] for line in code.splitlines()]
    assert not any("planish.norm_" in line for line in lines)


class Block(nn.Module):
    """As ConvNeXt has it: a norm over the channels of a convolution's image, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(2))
        self.norm, self.product = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.inner(x).permute(0, 2, 3, 1))
        return x + self.outer(nn.functional.gelu(self.product(rows)).permute(0, 3, 1, 2))


def test_the_channels_of_a_kept_image_are_scattered() -> None:
    model = nn.Sequential(Block(), Block(), Block()).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(2, 8, 6, 4).to(DEVICE, memory_format=torch.channels_last)
    layouts: list[tuple[int, ...]] = []

    def look(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if "graph_backward" in str(node.target):
                layouts.extend(one.meta["val"].stride() for one in node.args[:2])

    options = {"planish": "always", "post_grad_custom_pre_pass": look}
    run = torch.compile(model, backend="planish", options=options, fullgraph=True)
    with planish.enabled():
        wanted = results_of(model, model, x)
    for one, other in zip(results_of(run, model, x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert layouts == [(192, 32, 8, 1)] * 6, "dy and x of three norms"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tensor, Tensor]:
    """Of a model all of whose norms are planish's: the path, an input and its result."""
    model, x = Model().to(DEVICE).eval(), torch.linspace(-9, 9, 128).view(8, 16).sin().to(DEVICE)
    torch._dynamo.reset()
    inductor.switch("always")
    try:
        with torch.no_grad(), fresh_cache():
            exported = torch.export.export(model, (x,))
            where = str(tmp_path_factory.mktemp("package") / "model.pt2")
            path = torch._inductor.aoti_compile_and_package(exported, package_path=where)
            return path, x, model(x)
    finally:
        inductor.switch(False)


def test_a_package_needs_python(package: Any, tmp_path: Path) -> None:
    path, x, wanted = package
    torch.save((x, wanted), tmp_path / "known.pt")
    program = f"""
        import planish, torch
        import torch._inductor.codecache  # torch 2.10 forgets it
        x, wanted = torch.load({str(tmp_path / "known.pt")!r})
        run = torch._inductor.aoti_load_package({path!r})
        torch.testing.assert_close(run(x), wanted, rtol=1e-4, atol=1e-4)
        print(planish.stats()[{CALLED!r}]["planish"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2, done.stdout


#: Runs a package without Python; its second argument says whether planish's operators are defined.
PROGRAM = """
    #include <ATen/ATen.h>
    #include <torch/csrc/inductor/aoti_package/model_package_loader.h>
    #include <cstdio>
    extern "C" int planish_torch_define(char*, size_t);
    int main(int, char** argv) try {
      char text[256] = "";
      if (argv[2][0] == 'y' && planish_torch_define(text, sizeof text) != 0) return 2;
      torch::inductor::AOTIModelPackageLoader loader(argv[1]);
      auto y = loader.run({at::linspace(-9, 9, 128).view({8, 16}).sin()})[0].contiguous();
      for (int i = 0; i < 128; ++i) std::printf("%.9g\\n", y.data_ptr<float>()[i]);
    } catch (const std::exception& error) {
      std::printf("%s\\n", error.what());
      return 3;
    }
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="the program makes a tensor of the CPU")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_package_needs_python_in_a_program(package: Any, tmp_path: Path) -> None:
    path, _, wanted = package
    (tmp_path / "run.cpp").write_text(textwrap.dedent(PROGRAM))
    library, folder = Path(loaded.library().path).resolve(), Path(torch.__file__).parent
    program = str(tmp_path / "run")
    command = ["c++", "-std=c++20", str(tmp_path / "run.cpp"), "-o", program, str(library)]
    command += [f"-I{folder}/include", f"-I{folder}/include/torch/csrc/api/include"]
    command += [f"-L{folder}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    command += [f"-Wl,-rpath,{folder}/lib:{library.parent}"]
    subprocess.run(command, check=True)

    def run(defined: str) -> subprocess.CompletedProcess[str]:
        given = [program, path, defined]
        return subprocess.run(given, capture_output=True, text=True, check=False)

    done = run("yes")
    assert done.returncode == 0, done.stdout + done.stderr
    found = torch.tensor([float(line) for line in done.stdout.split()]).view(8, 16)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert "planish" in run("no").stdout, "its operators are not there"


def test_a_switch_reaches_what_is_compiled() -> None:
    """Graphs stay as they were made, whatever is switched afterwards; caches on the disk know whose
    they are."""
    model, x = Model().to(DEVICE).eval(), torch.randn(8, 16, device=DEVICE)

    def made() -> object:
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True)
        with torch.no_grad():
            wanted = model(x)
            planish.reset_stats()
            torch.testing.assert_close(run(x), wanted, rtol=1e-4, atol=1e-4)
        return run

    made()
    assert ran() == 0
    planish.enable(devices=DEVICE, compile="always")
    ours = made()
    assert ran() == 3
    assert planish.disable() and inductor.is_on() is None
    with torch.no_grad():
        ours(x)  # type: ignore[operator]
    assert ran() == 3, "a compiled graph is valid after disable()"
    made()
    assert ran() == 0, "inductor's own comes back, also out of a warm cache"
    planish.enable(devices=DEVICE, compile="always")
    made()
    assert ran() == 3, "and so does planish's"


CACHED = """
    import sys
    import planish, torch
    from torch import nn
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16))
    x = torch.ones(8, 16)
    model(x).sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    options = {"planish": sys.argv[1]} if len(sys.argv) > 1 else None
    run = torch.compile(model, backend="planish" if options else "inductor", options=options)
    run(x).sum().backward()
    for one, right in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(one.grad, right)
    found = counters["aot_autograd"]
    calls = sum(calls["planish"] for name, calls in planish.stats().items() if "norm_" in name)
    print(found["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"], calls)
"""


def test_another_process_compiles_again(tmp_path: Path) -> None:
    """What torch keeps on the disk is found again, each mode's by that mode alone."""
    program = textwrap.dedent(CACHED)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def found(*mode: str) -> tuple[int, ...]:
        done = subprocess.run(
            [sys.executable, "-c", program, *mode],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return tuple(map(int, done.stdout.split()))

    assert found("always") == (0, 0, 2)
    assert found() == (0, 0, 0)
    assert found("always") == (1, 2, 2)
    assert found() == (1, 2, 0)


def test_bad_input_is_accepted() -> None:
    weight = torch.randn(9)

    def wrong(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (9,), weight)

    x = torch.randn(4, 8)
    with pytest.raises(RuntimeError) as eager:
        wrong(x)
    with pytest.raises(Exception, match="normalized_shape") as compiled:
        torch.compile(wrong, backend="planish")(x)
    assert str(eager.value).split(",")[0].split(" to ")[0] in str(compiled.value)
