"""The tables of `planish check` name what runs: on every tier of this machine, and on an H100."""

import importlib.util
import os
import pathlib
import re
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from planish.check import cpu_table, cuda_table, engine, runner
from planish.check.case import ACTIVATIONS, DIRECTIONS, FULL, KINDS, mask
from planish.check.problem import Problem
from planish.library.loaded import library


@pytest.fixture(scope="module")
def engines():
    return engine.cpu_engines()


@pytest.mark.parametrize("table", [cpu_table, cuda_table], ids=["cpu", "cuda"])
def test_names_are_unique(table):
    seen = [(case.name, case.shape) for case in table.cases()]
    assert len(set(seen)) == len(seen)
    if table is cpu_table:
        assert len({name for name, _ in seen}) == len(seen)


def test_the_table_has_every_family_dtype_and_pass():
    cases = cpu_table.cases()
    kernels = (
        "short-rows",
        "step-rows",
        "rows",
        "channels",
        "groups",
        "pixels",
        "planes",
        "strided",
        "overflow",
    )
    for kernel in kernels:
        mine = [case for case in cases if case.kernel == kernel]
        dtypes = {"f32", "bf16", "f64"} | ({"f16"} if kernel != "overflow" else set())
        assert {case.dtype for case in mine} == dtypes, kernel
        assert {"forward", "backward"} <= {case.direction for case in mine}, kernel
    assert {case.direction for case in cases} == set(DIRECTIONS)
    assert {case.activation for case in cases} == {"", "silu", "relu"}


def test_every_tier_of_this_machine_is_there(engines):
    names = [one.name for one in engines]
    assert names[0] == "portable"
    assert library().cpu_tier() in names
    assert len(set(names)) == len(names)


def test_every_case_runs_the_variant_that_it_names_on_every_tier(engines):
    """By planish_plan_describe: path, tier, dtype and sizes."""
    for case in cpu_table.cases():
        for one in case.checked():
            problem = Problem(one)
            for tier in engines:
                plan = tier.plan(problem)
                described = plan.described
                plan.close()
                assert runner.takes(one, tier.name, described), f"{one.name}: {described}"
                assert f" {one.direction.replace('from-y', 'backward from y')} " in described
                dtype = one.dtype_of("x" if "x" in problem.tensors else "y")
                assert f" {dtype} " in described, f"{one.name}: {described}"


def test_the_lengths_of_rows_are_those_of_the_kernels_that_they_name():
    """Which kernel of the path "rows" takes a row follows from its length (src/cpu/rows/rows.h,
    kernels_few_*.h), by the canonical lanes and, for rows that are short, by the vectors of a tier:
    these lengths are on the same side on all."""
    source = pathlib.Path(__file__).parents[2] / "src/cpu"
    if not source.is_dir():
        pytest.skip("the C sources are not here")
    files = ("rows/rows.h", "common/unit.h")
    text = "".join((source / file).read_text() for file in files)
    lanes = dict(zip(("f64", "f32"), re.findall(r"#define LANES (\d+)", text), strict=True))
    few = int(re.search(r"NAME\(FEW_COLS\) = (\d+) \* LANES", text).group(1))
    for case in cpu_table.cases():
        lane = int(lanes["f64" if case.dtype == "f64" else "f32"])
        lengths = [one.shape[-1] for one in case.checked()]
        halves = case.dtype in ("f16", "bf16")
        assert case.kernel not in ("short-rows", "step-rows") or case.shape[0] >= 32, case.name
        if case.kernel == "short-rows":
            assert all(n <= lane for n in lengths), case.name
        elif case.kernel == "step-rows" and halves:
            assert case.direction == "backward"
            assert all(3 * lane <= n < 4 * lane for n in lengths), case.name
        elif case.kernel == "step-rows":
            most = few // (2 if "stream" in case.words else 1)
            assert all(2 * lane < n <= most * lane for n in lengths), case.name
        elif case.kernel == "rows":
            assert case.shape[-1] > few * lane, case.name


def shim():
    """tests/cuda's plans without a GPU; None where that library is not built."""
    folder = pathlib.Path(__file__).parents[1] / "cuda"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    spec = importlib.util.find_spec("gpu_shim")
    if spec is None:
        return None
    import gpu_shim

    built = os.environ.get("PLANISH_GPU_SHIM") or gpu_shim.BUILT
    return gpu_shim if pathlib.Path(built).is_file() else None


def test_every_case_of_the_gpu_is_planned_as_it_says_on_an_h100():
    gpu_shim = shim()
    if gpu_shim is None:
        pytest.skip("tests/cuda's shim is not built")
    wrong = []
    # The shim has no tensors of stages; test_stages.py holds those plans against their kernels.
    for case in (case for case in cuda_table.cases() if not case.stage):
        roles = (*case.inputs, *case.outputs)
        strides = {}
        for role in roles:
            steps, length = [0] * len(case.shape), case.step if role in FULL else 1
            for axis in reversed(case.order_of(role)):
                steps[axis] = length
                length *= case.sizes_of(role)[axis]
            strides[role] = steps
        plan = gpu_shim.AnyPlan(
            DIRECTIONS.index(case.direction),
            KINDS.index(case.kind),
            case.shape,
            mask(case.reduce),
            mask(case.affine),
            {role: case.dtype_of(role) for role in roles},
            strides,
            activation=ACTIVATIONS.index(case.activation),
            arch=90,
        )
        if not runner.takes(case, "cuda", plan.describe()):
            wrong.append(f"{case.name}: {case.wanted}: {plan.describe()}")
        if case.kernel == "rows" and ("tiles" in case.words or "runs" in case.words):
            assert plan.get("VARIANT") == (1 if "tiles" in case.words else 2), case.name
    assert not wrong, "\n".join(wrong)
    assert 40 <= len(cuda_table.cases()) <= 60
