"""The process goes on, and a Python exception tells what was wrong: whatever mode, transform or
tracing planish is first used in, whatever torch raises inside planish, whatever an operator of
planish's own is called with.

What is looked for would end the process, so it is done in other processes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The places of first_uses.py.
PLACES = [
    "plain",
    "jvp",
    "grad",
    "vmap",
    "functionalize",
    "make_fx",
    "jit.trace",
    "FakeTensorMode",
    "a dispatch mode that raises",
    "a function mode that raises",
    "inference_mode",
    "autocast",
    "the meta device",
    "export",
    "strict export",
    "compile",
]

#: What raises there without planish too: {place: (exception, actions)}.
RAISES = {
    "a dispatch mode that raises": ("Refused", {"build", "call", "call_enabled"}),
    "a function mode that raises": ("Refused", {"build", "call", "call_enabled"}),
    # It traces through all of Python, and says in many ways what it does not know.
    "strict export": ("", None),
    # torch 2.11 does not get through platform.machine().
    "compile": ("torch._dynamo.exc.", {"doctor"}),
}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@functools.cache
def first_uses() -> list[tuple[str, str, int, str]]:
    """Of all places, by one process: most of the time is taken by the import of torch."""
    done = run_python(str(Path(__file__).with_name("first_uses.py")), *PLACES)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("place", PLACES)
def test_a_first_use_ends_the_process_or_fails(place: str) -> None:
    exception, actions = RAISES.get(place, ("", set()))
    uses = [use for use in first_uses() if use[0] == place]
    assert len(uses) == 8
    for _, action, code, raised in uses:
        assert code == 0, f"{action}: exit code {code}"
        if actions is None or action in actions:
            assert not raised or exception in raised, f"{action}: {raised}"
        else:
            assert not raised, f"{action}: {raised}"


# ---- Registering --------------------------------------------------------------------------------

KNOWN = "print(torch.ops.planish.norm_forward.default, 'planish.library.switch' in sys.modules)"


@pytest.mark.parametrize("order", ["import torch, planish", "import planish, torch"])
def test_importing_both_leaves_the_operators_unknown(order: str) -> None:
    done = run_python("-c", f"import sys\n{order}\n{KNOWN}")
    assert (done.returncode, done.stdout) == (0, "planish.norm_forward.default False\n"), (
        done.stderr
    )


def test_waiting_for_torch_changes_how_torch_is_imported() -> None:
    done = run_python(
        "-c",
        """
import sys
finders = list(sys.meta_path)
import planish, json, importlib.util
assert importlib.util.find_spec("not_there_at_all") is None
assert "torch" not in sys.modules and len(sys.meta_path) == len(finders) + 2
import torch
assert len(sys.meta_path) == len(finders) + 1  # torch's compiler is still waited for
import torch._dynamo.backends.registry
assert sys.meta_path == finders
assert torch.__spec__.loader is torch.__loader__ and "exec_module" not in vars(torch.__loader__)
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_failing_import_of_torch_is_not_waited_for_again(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('not today')\n")
    done = run_python(
        "-c",
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import planish
for _ in range(2):
    try:
        import torch
    except OSError as error:
        assert str(error) == "not today"
sys.path.remove({str(tmp_path)!r})
sys.path_importer_cache.clear()
import torch
{KNOWN}
""",
    )
    assert (done.returncode, done.stdout) == (0, "planish.norm_forward.default False\n"), (
        done.stderr
    )


def test_an_import_without_the_library_fails(tmp_path: Path) -> None:
    """The first use says what is missing."""
    done = run_python(
        "-c",
        """
import os, torch
os.environ["PLANISH_LIBRARY"] = "/nowhere"
from pathlib import Path
there = Path.is_file
Path.is_file = lambda path: path.name != "libplanish.so" and there(path)
import planish
try:
    planish.enable()
except ImportError as error:
    assert "no libplanish.so" in str(error)
else:
    raise SystemExit("no exception")
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_saved_program_does_not_load(tmp_path: Path) -> None:
    path = str(tmp_path / "norm.pt2")
    make = """
import sys, torch, planish
class Model(torch.nn.Module):
    def forward(self, x): return planish.layer_norm(x, 0)
torch.export.save(torch.export.export(Model(), (torch.randn(2, 8),)), sys.argv[1])
"""
    load = """
import planish, sys, torch
program = torch.export.load(sys.argv[1])
x = torch.randn(2, 8)
torch.testing.assert_close(program.module()(x), planish.layer_norm(x, 0))
"""
    for program in (make, load):
        done = run_python("-c", program, path)
        assert done.returncode == 0, done.stderr


# ---- What torch raises inside -------------------------------------------------------------------


def test_what_torch_raises_inside_an_entry_ends_the_process() -> None:
    """An override of torch's own operators that raises meets planish's self-test."""
    done = run_python(
        "-c",
        """
import warnings, torch
import torch.nn.functional as F
warnings.simplefilter("ignore")
def refuse(*_, **__): raise KeyError("not today")
others = torch.library.Library("aten", "IMPL")
for name in ("empty.memory_format", "empty_like", "empty_strided", "mul.Tensor"):
    others.impl(name, refuse, "CPU")
import planish
from planish.library.loaded import library
for _ in range(2):
    for use in (planish.enable, library().define, lambda: planish.layer_norm):
        try:
            use()
        except RuntimeError as error:
            assert "torch raised: " in str(error), error
        else:
            raise SystemExit("no exception")
assert planish.disable() and not library().enabled()
library().cuda_is_missing(), library().symbols(), library().torch_version(), planish.stats()
with library().quiet():
    pass
others._destroy()
planish.enable()
x = torch.randn(2, 3)
F.layer_norm(x, (3,)), F.rms_norm(x, (3,)), planish.layer_norm(x, 0)
assert planish.stats()["native_layer_norm"]["planish"] == 1
""",
    )
    assert done.returncode == 0, done.stderr


def test_memory_that_torch_cannot_give_ends_the_process() -> None:
    done = run_python(
        "-c",
        """
import resource, torch, planish
import torch.nn.functional as F
torch.set_num_threads(2)
planish.enable()
x, C = torch.ones(64, 1 << 18), 1 << 18
image, last = x.view(64, 16, 128, 128), x.view(64, 128, 128, 16).permute(0, 3, 1, 2)
leaf = x.clone().requires_grad_()
small = F.layer_norm(x[:1], (C,)), F.rms_norm(x[:1], (C,)), F.group_norm(image[:1], 4)
small += planish.layer_norm(x[:1], 0), planish.group_norm(image[:1], 4, activation="silu")
ys = F.layer_norm(leaf, (C,)), F.rms_norm(leaf, (C,)), planish.layer_norm(leaf, 0)
dy = torch.ones_like(x)
try:
    torch.empty(1 << 60)
except RuntimeError:
    pass  # what the exception needs is imported now
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (24 << 20), resource.RLIM_INFINITY))
calls = [
    lambda: F.layer_norm(x, (C,)),
    lambda: F.layer_norm(x.t(), (64,)),
    lambda: F.rms_norm(x, (C,)),
    lambda: F.rms_norm(leaf, (C,)),
    lambda: F.group_norm(image, 4),
    lambda: F.group_norm(last, 4),
    lambda: planish.layer_norm(x, 0),
    lambda: planish.group_norm(image, 4, activation="silu"),
    *(lambda y=y: y.backward(dy) for y in ys),
]
for number, call in enumerate(calls):
    try:
        call()
    except RuntimeError as error:
        assert "allocate memory" in str(error), error
    else:
        raise SystemExit(f"call {number} had memory")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
F.layer_norm(x, (C,))
assert planish.disable(), "a call that raised is still taken to be inside"
""",
    )
    assert done.returncode == 0, done.stderr


WRONG = """
import torch, planish
x, row = torch.randn(2, 3, 4), torch.zeros(2, 3, 1)
forward, backward, statistics = (
    getattr(torch.ops.planish, "norm_" + name) for name in ("forward", "backward", "statistics"))

def forward_of(x=x, weight=None, bias=None, reduce=4, affine=4, eps=1e-5, options=0, split=0):
    none = [None] * 4
    axes = reduce | affine << 16
    return forward(x, *none, weight, bias, *none[1:], axes, options, split, eps, 0.0)

def backward_of(dy=x, x=x, mean=row, rstd=row, weight=None, reduce=4, affine=4, options=1 << 16,
                split=0):
    none = [None] * 5
    axes = reduce | affine << 16
    return backward(dy, x, rstd, mean, *none, weight, *none[1:], axes, options, split, 0.0)

tensors = {
    "no axes": torch.tensor(1.0), "too few axes": torch.ones(4), "int": x.int(), "bool": x > 0,
    "complex": torch.ones(2, 3, 4, dtype=torch.cfloat), "sparse": torch.eye(3).to_sparse(),
    "17 axes": torch.ones([1] * 17),
}
sets = {"out of range": 8, "none of them": 0, "many": 2**16 - 1}
wrong = {}
for name, t in tensors.items():
    for role in ("x", "weight", "bias")[: 1 if name == "too few axes" else 3]:
        wrong[f"forward {role} {name}"] = lambda role=role, t=t: forward_of(**{role: t})
    for role in ("dy", "x", "mean", "rstd", "weight")[: 4 if name == "too few axes" else 5]:
        wrong[f"backward {role} {name}"] = lambda role=role, t=t: backward_of(**{role: t})
    wrong[f"statistics {name}"] = lambda t=t: statistics(t, 4)
for name, axes in sets.items():
    for role in ("reduce", "affine") if axes else ("reduce",):
        wrong[f"forward {role} {name}"] = lambda r=role, a=axes: forward_of(**{r: a})
        wrong[f"backward {role} {name}"] = lambda r=role, a=axes: backward_of(**{r: a})
    wrong[f"statistics {name}"] = lambda a=axes: statistics(x, a)
wrong["forward axes beyond all"] = lambda: forward(
    x, *[None] * 9, 4 | -(2**63), 0, 0, 1e-5, 0.0)
for name, options in {"activation 7": 7 << 8, "activation 15": 15 << 8, "offset": 2 << 12,
                      "no dtype": 100 << 24, "int8": 2 << 24, "int64": 5 << 24}.items():
    wrong[f"forward {name}"] = lambda o=options: forward_of(options=o)
    if "act" in name or "offset" in name:
        wrong[f"backward {name}"] = lambda o=options: backward_of(options=o | 1 << 16)
for split in (-3, 2, 5, 2**40, -2**63, 2**63 - 1):
    wrong[f"forward split {split}"] = lambda s=split: forward_of(split=s)
    wrong[f"backward split {split}"] = lambda s=split: backward_of(split=s)
wrong["forward eps"] = lambda: forward_of(eps=float("nan"))
wrong["backward wanted"] = lambda: backward_of(options=255 << 16)
planish.enable()
wrong["no groups"] = lambda: torch.ops.aten.native_group_norm(x, None, None, 2, 3, 4, 0, 1e-5)
wrong["no groups backward"] = lambda: torch.ops.aten.native_group_norm_backward(
    x, x, row, row, None, 2, 3, 4, 0, [True] * 3)
for name, call in wrong.items():
    try:
        call()
    except (RuntimeError, NotImplementedError):
        continue
    print("no exception:", name)
forward_of()
"""


def test_a_wrong_call_ends_the_process_or_is_taken() -> None:
    done = run_python("-c", WRONG)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


UNDEFINED = """
import ctypes, os, torch, planish

libtorch = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))

def made(function, *arguments):
    handle = ctypes.c_void_p()
    assert function(*arguments, ctypes.byref(handle)) == 0
    return handle.value

def tensor(*sizes):
    strides = torch.empty(sizes, device="meta").stride()
    numbers = ctypes.c_int64 * len(sizes)
    return made(libtorch.aoti_torch_empty_strided, ctypes.c_int64(len(sizes)), numbers(*sizes),
                numbers(*strides), libtorch.aoti_torch_dtype_float32(), 0, 0)

def undefined(*_):
    return made(libtorch.aoti_torch_new_uninitialized_tensor)

def numbers(*values):
    handle = made(libtorch.torch_new_list_reserve_size, ctypes.c_size_t(len(values)))
    for value in values:
        assert libtorch.torch_list_push_back(ctypes.c_void_p(handle), ctypes.c_uint64(value)) == 0
    return handle

def failed(name, *stack):
    values = (ctypes.c_uint64 * max(len(stack), 8))(*stack)
    version = ctypes.c_uint64(2 << 56 | 10 << 48)
    return libtorch.torch_call_dispatcher(name.encode(), b"", values, version)

def row(makes):
    dy, x, mean, rstd = (make(*sizes) for make, sizes in zip(makes, [(2, 3)] * 2 + [(2, 1)] * 2))
    return dy, x, mean, rstd

calls = {
    "planish::norm_backward": lambda dy, x, mean, rstd: (
        dy, x, rstd, *[0] * 11, 2 | 2 << 16, 1 | 1 << 16, 0, 0),
    "aten::native_layer_norm_backward": lambda dy, x, mean, rstd: (
        dy, x, numbers(3), mean, rstd, 0, 0, numbers(1, 0, 0)),
    "aten::native_group_norm_backward": lambda dy, x, mean, rstd: (
        dy, x, mean, rstd, 0, 2, 3, 1, 1, numbers(1, 0, 0)),
}
planish.enable()
for name, arguments in calls.items():
    assert not failed(name, *arguments(*row([tensor] * 4)))
    for place in (0, 1, 3) if "planish" in name else range(4):
        makes = [undefined if i == place else tensor for i in range(4)]
        assert failed(name, *arguments(*row(makes))), (name, place)
assert failed("planish::norm_statistics", undefined(), 2)
assert failed("planish::norm_forward", undefined(), *[0] * 9, 2, 0, 0, 0, 0)
"""


def test_undefined_tensors_end_the_process_or_are_taken() -> None:
    """As C++ passes them; Python has none."""
    done = run_python("-c", UNDEFINED)
    assert done.returncode == 0, done.stderr
