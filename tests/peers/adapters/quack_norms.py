"""quack's tests/test_rmsnorm.py and test_layernorm.py over planish.compat.quack.

The reference functions are taken from the checkout's own quack/rmsnorm.py, by name and without
importing it, since it needs CUTLASS. On the CPU torch.compile stops at aot_eager, for building C++
for each of some hundred graphs takes hours.
"""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path

import torch
from planish.compat import quack as ours

ON_GPU = torch.cuda.is_available()

_CPU = [
    ('device = "cuda"', 'device = "cpu"'),
    ("torch.cuda.get_device_capability()", "(9, 0)"),
]

TESTS = {
    "tests/test_rmsnorm.py": []
    if ON_GPU
    else [
        *_CPU,
        ('device="cuda"', 'device="cpu"'),
        ("torch.cuda.empty_cache()", "None"),
        ("torch.cuda.synchronize()", "None"),
        ("torch.compile(rmsnorm, fullgraph=True)", "torch.compile(rmsnorm, backend='aot_eager')"),
        ("torch.compile(rmsnorm_ref)", "rmsnorm_ref"),
    ],
    "tests/test_layernorm.py": [] if ON_GPU else _CPU,
}

NOT_APPLICABLE = [
    ("_tuned|degenerate|compile_cache", "its own configurations, autotuner and compile cache"),
    ("input_validation", "wants CPU tensors to be refused; planish runs them"),
]
if not ON_GPU:
    NOT_APPLICABLE += [
        (r"test_rmsnorm_large_tensor", "tensors of 8 GB and more: for a GPU"),
        (r"\[(True|False)-8192-(32768|131072|262144)-", "tensors of 1 GB and more: for a GPU"),
        (r"weight_offset\[8192-32768-", "the same"),
        (r"layernorm_forward_backward\[(32768|65536|131072|262144)-4096-", "the same"),
    ]

REFERENCES = (
    "rmsnorm_ref",
    "rmsnorm_bwd_ref",
    "layernorm_ref",
    "layernorm_rstd_ref",
    "layernorm_mean_ref",
)


def install(folder: Path) -> None:
    path = folder / "quack/rmsnorm.py"
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in REFERENCES
    ]
    module = types.ModuleType("quack.rmsnorm")
    module.__dict__.update(torch=torch, Tensor=torch.Tensor)
    exec(compile(tree, str(path), "exec"), module.__dict__)
    for name in ours.__all__:
        setattr(module, name, getattr(ours, name))
    # named by the tests that do not apply
    for name in ("_compile_rmsnorm_fwd", "rmsnorm_bwd_tuned", "rmsnorm_fwd_tuned"):
        setattr(module, name, None)
    sys.modules["quack"] = types.ModuleType("quack")
    sys.modules["quack.rmsnorm"] = module
    for name, members in (
        ("cute_dsl_utils", ("get_device_capacity",)),
        ("rmsnorm_config", ("RmsNormBwdConfig", "RmsNormFwdConfig")),
    ):
        stand_in = types.ModuleType(f"quack.{name}")
        stand_in.__dict__.update(dict.fromkeys(members))
        sys.modules[stand_in.__name__] = stand_in
