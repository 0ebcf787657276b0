"""`planish check`: what is wrong is found and said, what is noise is not shown, names choose."""

import pathlib
import re
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from planish.bench.timing import Sample
from planish.check import command, cpu_table, cuda, cuda_table, engine, exact, judge, main, runner
from planish.check.case import Case
from planish.check.problem import EPS, Problem
from planish.library.dtypes import BY_NAME

QUIET = (0.010, 0.011, 0.010, 0.010, 0.0101, 0.010, 0.010)
NOISE = (0.010, 0.9, 0.02, 0.4, 0.010, 1.7, 0.1)


@pytest.fixture(scope="module")
def engines():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield engine.cpu_engines()
    torch.set_num_threads(threads)


def rows(direction="forward", **more):
    """A small case of dense rows."""
    case = Case("rows", ("layer", direction), "f32", (19, 200), (1,), (1,), direction, "rows")
    return replace(case, **more)


class Spoiled:
    """An engine whose kernel writes something else to one element of an output."""

    def __init__(self, real, role, index, value, name=None, described=None):
        self.real, self.role, self.index, self.value = real, role, index, value
        self.name, self.said = name or real.name, described

    def plan(self, problem):
        plan = self.real.plan(problem)
        run, tensor = plan.run, problem.tensors[self.role].view

        def spoil():
            run()
            tensor[self.index] = self.value(tensor[self.index])

        plan.run = spoil
        plan.described = self.said or plan.described.replace(self.real.name, self.name, 1)
        return plan


# ---- What is right -------------------------------------------------------------------------------


def test_the_reference_is_that_of_autograd():
    """The values of exact.py, by torch's own formulas in f64."""
    case = rows("backward", activation="silu", dtype="f32")
    problem = Problem(case)
    x, dy, weight, bias = (problem.inputs[r].double() for r in ("x", "dy", "weight", "bias"))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    mean = x.mean(1, keepdim=True)
    z = (x - mean) * ((x - mean).square().mean(1, keepdim=True) + EPS).rsqrt() * weight + bias
    torch.nn.functional.silu(z).backward(dy)
    for role, leaf in zip(("dx", "dweight", "dbias"), leaves, strict=True):
        assert torch.allclose(problem.wanted[role].value, leaf.grad, rtol=1e-12, atol=1e-12), role


def test_ulp_of_every_dtype():
    for dtype, kind in BY_NAME.items():
        for value in (1.0, 0.75, 3.0, 1000.0):
            start = torch.tensor(value, dtype=kind)
            step = float(torch.nextafter(start, torch.tensor(1e4, dtype=kind)) - start)
            assert float(exact.ulp(torch.tensor(value, dtype=torch.float64), dtype)) == step
    assert float(exact.ulp(torch.tensor(0.0, dtype=torch.float64), "f32")) == 2.0**-149


@pytest.mark.parametrize("direction", ["forward", "backward", "from-y", "statistics", "apply"])
def test_all_tiers_are_right_about_a_small_case(engines, direction):
    path = "strided" if direction == "from-y" else "rows"
    found = runner.check(rows(direction, wanted=path), engines)
    assert [outcome.failed for outcome in found] == [False] * len(engines), found
    assert all(0 <= outcome.verdict.worst <= outcome.verdict.bound for outcome in found)
    assert all(outcome.bytes > 0 for outcome in found)


# ---- What is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "direction, role, index",
    [
        ("forward", "y", (7, 113)),
        ("forward", "rstd", (3, 0)),
        ("backward", "dx", (18, 199)),
        ("backward", "dweight", (0, 5)),
        ("backward", "dbias", (0, 199)),
    ],
)
def test_a_wrong_element_is_found_and_named(engines, direction, role, index):
    spoiled = Spoiled(engines[0], role, index, lambda v: v + 1e-3)
    (outcome,) = runner.check(rows(direction), [spoiled])
    assert outcome.failed
    text = str(outcome.verdict.wrong[0])
    assert text.startswith(f"{role}[{', '.join(map(str, index))}] is "), text
    found, wanted = map(float, re.search(r" is (\S+), wanted (\S+):", text).groups())
    assert found == pytest.approx(wanted + 1e-3, rel=1e-3)
    assert "allowed" in text


def test_the_first_wrong_element_is_the_one_that_is_named(engines):
    spoiled = Spoiled(engines[0], "y", (slice(4, 6), 7), lambda v: v * 2)
    (outcome,) = runner.check(rows(), [spoiled])
    assert str(outcome.verdict.wrong[0]).startswith("y[4, 7] is ")


def test_an_element_that_was_not_written_is_wrong(engines):
    spoiled = Spoiled(engines[0], "y", (0, 0), lambda v: float("nan"))
    (outcome,) = runner.check(rows(), [spoiled])
    assert "not finite" in str(outcome.verdict.wrong[0])


def test_a_write_beside_the_elements_is_wrong(engines):
    class Strays(Spoiled):
        def plan(self, problem):
            plan = self.real.plan(problem)
            run, whole = plan.run, problem.tensors["y"]._whole
            plan.run = lambda: (run(), whole[-1:].fill_(0))
            return plan

    (outcome,) = runner.check(rows(), [Strays(engines[0], "y", None, None)])
    assert outcome.verdict.wrong == ("y: written beside its elements",)


def test_other_bits_than_another_tier_are_wrong_though_within_the_bound(engines):
    one = Spoiled(engines[0], "y", (2, 3), lambda v: v * (1 + 2.0**-23), name="other")
    first, second = runner.check(rows(), [engines[0], one])
    assert not first.failed
    assert second.failed
    assert re.match(r"y\[2, 3\] is .* portable has other bits", str(second.verdict.wrong[0]))


def test_a_16_bit_value_two_steps_away_is_wrong_and_one_is_not(engines):
    def away(steps):
        return lambda v: (v.view(torch.int16) + steps).view(torch.bfloat16)

    for steps, failed in ((2, True), (1, False)):
        case = rows(dtype="bf16")
        first = runner.check(case, [engines[0]])[0]
        assert not first.failed
        problem = Problem(case)
        exactly = judge.rounded(problem.wanted["y"].value, "bf16")[9, 9]
        spoiled = Spoiled(engines[0], "y", (9, 9), lambda v, s=steps, e=exactly: away(s)(e))
        assert runner.check(case, [spoiled])[0].failed == failed


def test_copies_of_rows_that_differ_are_wrong(engines):
    case = rows(shape=(57, 200), repeats=3)
    assert not runner.check(case, [engines[0]])[0].failed
    spoiled = Spoiled(engines[0], "y", (40, 0), lambda v: v * (1 + 2.0**-23))
    (outcome,) = runner.check(case, [spoiled])
    assert "an equal row has other bits" in str(outcome.verdict.wrong[0])


def test_a_shape_that_is_only_checked_is_named_where_it_is_wrong(engines):
    case = rows(also=((5, 300),))
    spoiled = Spoiled(engines[0], "y", (4, 199), lambda v: v + 1)
    (outcome,) = runner.check(replace(case, shape=(3, 200)), [engines[0]])
    assert not outcome.failed
    (outcome,) = runner.check(case, [spoiled])
    assert any(text.startswith("5x300: y[4, 199]") for text in outcome.verdict.wrong)


def test_a_case_that_another_kernel_takes_is_an_error_of_the_table(engines, capsys):
    status = command.run_all([rows(wanted="groups")], engines[:1], None)
    printed = capsys.readouterr().out
    assert status == 1
    assert "NOT WHAT THE TABLE SAYS: 19x200: wanted groups, planned is: rows/portable" in printed
    assert "1 not of the kernel that the table says" in printed


def test_a_case_that_planish_refuses_is_an_error_of_the_table(engines):
    (outcome,) = runner.check(rows(reduce=(5,)), engines[:1])
    assert outcome.astray.startswith("19x200: planish refuses it: "), outcome.astray


# ---- The command ---------------------------------------------------------------------------------


def faked(seconds):
    """A timer that makes up its trials: of the engines these, of the ceiling quiet ones."""

    def timer(case, engines, effort):
        return {runner.CEILING: Sample(QUIET)} | {e.name: Sample(seconds) for e in engines}

    return timer


@pytest.mark.parametrize("seconds, noisy", [(QUIET, False), (NOISE, True)], ids=["quiet", "noise"])
def test_noise_is_not_shown_as_a_figure(engines, seconds, noisy, capsys):
    budget = runner.Budget(100.0)
    assert command.run_all([rows()], engines[:1], budget, faked(seconds)) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.count("too noisy") == (2 if noisy else 0)
    assert ("100%" in line) == (not noisy)
    figures = re.findall(r"\d+\.\d(?= )", line.split("of 4")[1])
    assert len(figures) == (0 if noisy else 1)


def test_a_quiet_kernel_beside_a_noisy_ceiling_has_no_share():
    outcome = runner.Outcome(rows(), "portable", 1 << 20)
    outcome.sample = Sample(QUIET)
    outcome.share = runner.ratio(Sample(NOISE), outcome.sample)
    text = command.row(outcome)
    assert text.count("too noisy") == 1
    assert "0.1" in text.split("200")[1]


def test_what_is_wrong_is_not_timed(engines, capsys):
    timed = []

    def timer(case, engines, effort):
        timed.append([one.name for one in engines])
        return faked(QUIET)(case, engines, effort)

    spoiled = Spoiled(engines[0], "y", (1, 1), lambda v: v + 1, name="spoiled")
    assert command.run_all([rows()], [engines[0], spoiled], runner.Budget(100.0), timer) == 1
    assert timed == [[engines[0].name]]
    printed = capsys.readouterr().out
    assert "    WRONG: y[1, 1] is " in printed
    assert "2 runs, 1 wrong" in printed


def test_when_no_time_is_left_the_results_are_checked_all_the_same(engines, capsys):
    clock = iter(range(0, 1000, 10)).__next__
    budget = runner.Budget(5.0, clock)
    assert command.run_all([rows(), rows("backward")], engines[:1], budget, faked(QUIET)) == 0
    assert "no time was left to time 2 cases" in capsys.readouterr().out


def test_the_budget_is_for_all_cases():
    now = [0.0]
    budget = runner.Budget(10.0, lambda: now[0])
    effort = budget.effort(100)
    assert effort.case_seconds * effort.patience <= 2 * 10.0 / 100 + 1e-9
    assert budget.effort(1).case_seconds <= runner.EFFORT.case_seconds
    now[0] = 11.0
    assert budget.effort(1) is None


def test_names_choose():
    cases = cpu_table.cases()
    tiers = ["portable", "avx2"]
    found, on = command.chosen(cases, tiers, ["rows", "bf16", "avx2"])
    assert on == ["avx2"]
    assert found and {(case.kernel, case.dtype) for case in found} == {("rows", "bf16")}
    found, on = command.chosen(cases, tiers, ["channels", "pixels", "backward", "silu"])
    assert on == tiers
    assert {case.kernel for case in found} == {"pixels"}
    assert all({"backward", "silu"} <= set(case.words) for case in found)
    found, _ = command.chosen(cases, tiers, ["forward", "backward", "channels"])
    assert {case.direction for case in found} == {"forward", "backward"}
    assert len(command.chosen(cases, tiers, [])[0]) == len(cases)


@pytest.mark.parametrize(
    "names, said",
    [
        (["quick"], "no 'quick'; known are short-rows"),
        (["neon"], "neon does not run here"),
        (["planes", "silu"], "no case is all of planes, silu"),
    ],
)
def test_names_that_make_no_sense_are_refused(names, said):
    with pytest.raises(command.UsageError, match=re.escape(said)):
        command.chosen(cpu_table.cases(), ["portable"], names)


def test_exit_status_of_the_command(capsys):
    assert main(["groups", "f32", "silu", "portable", "--no-time"]) == 0
    printed = capsys.readouterr().out
    assert "2 runs, 0 wrong" in printed
    assert re.search(r"^groups +silu layer backward +f32 +portable", printed, re.M)
    with pytest.raises(command.UsageError, match="no 'nothing-of-that-name'"):
        main(["nothing-of-that-name"])


def test_a_figure_comes_with_its_share_of_the_ceiling(capsys):
    assert main(["overflow", "f32", "channels", "portable", "forward"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[-1].endswith("%") or line.endswith("too noisy")


def test_list_names_everything_and_runs_nothing(capsys, monkeypatch):
    monkeypatch.setattr(command, "run_all", None)
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for case in cpu_table.cases():
        assert case.kernel in printed and case.variant in printed
    assert "portable" in printed.splitlines()[-1]
    assert main(["--cuda", "--list"]) == 0
    assert "strips" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(command.UsageError) as refused:
        main(["--cuda"])
    assert str(refused.value) == "--cuda: there is no NVIDIA GPU that this torch can use"

    assert capsys.readouterr().out == ""


def test_a_gpu_without_clusters_leaves_their_cases_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    found = cuda.here(cuda_table.cases())
    assert found and not any("cluster" in case.words for case in found)
    assert "no clusters before 9.0" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert len(cuda.here(cuda_table.cases())) == len(cuda_table.cases())


def test_without_a_gpu_its_kernels_are_compiled_from_the_same_table(monkeypatch):
    """What is compiled ahead has the tensors of the problem."""
    from planish.check import ahead

    case = cuda_table.cases()[0]
    on_cpu = replace(case, device="cpu", shape=(4, *case.shape[1:]))
    problem = Problem(on_cpu)
    for role, placed in problem.tensors.items():
        made = ahead._tensor(on_cpu, role)
        assert tuple(made.shape[: made.ndim]) == tuple(placed.view.shape)
        assert tuple(made.strides[: made.ndim]) == tuple(placed.view.stride())
        assert placed.view.data_ptr() % 64 == ahead.ALIGNMENT % 64 == 0


def test_the_gpu_is_timed_over_several_sets_of_buffers(monkeypatch, engines):
    """By turns with its ceiling, and every plan is freed; here with a CPU in its place."""
    sets, closed = {}, []

    def replayed(calls):
        sets[len(sets)] = len(calls)
        return lambda count: [call() for call in calls] and 1e-4 * count

    class Counted(Spoiled):
        def plan(self, problem):
            plan = self.real.plan(problem)
            close = plan.close
            plan.close = lambda: (closed.append(1), close())
            return plan

    monkeypatch.setattr(cuda.gpu, "replayed", replayed)
    monkeypatch.setattr(cuda.gpu, "ROTATE_BYTES", 5 * Problem(rows()).bytes)
    monkeypatch.setattr(cuda, "_ceiling", lambda case, moved: lambda count: 5e-5 * count)
    samples = cuda.time_on_cuda(rows(), [Counted(engines[0], "y", None, None)], runner.EFFORT)
    assert sets == {0: 5}
    assert len(closed) == 5
    assert runner.ratio(samples[runner.CEILING], samples[engines[0].name]).value == 0.5


COMPILES = """
import pathlib, sys
from planish.library.ahead import Gpu
from planish.check import ahead, cuda_table
case = next(c for c in cuda_table.cases() if c.kernel == "strips" and c.direction == "backward")
problem = ahead.compile_one(case, Gpu(90, 132, 232448, 16), 1e-5)
assert "torch" not in sys.modules
print(problem or len(list(pathlib.Path(sys.argv[1]).glob("*.kernel"))))
"""


def test_a_process_that_compiles_ahead_needs_no_torch(tmp_path, monkeypatch):
    """It loads the library by itself, whose tensors have their names only then."""
    nvrtc = pytest.importorskip("nvidia", reason="NVRTC is not installed").__path__[0]
    for name in sorted(pathlib.Path(nvrtc).rglob("libnvrtc.so*")):
        monkeypatch.setenv("PLANISH_NVRTC_PATH", str(name.parent))
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", COMPILES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 1, done.stdout
