"""Commands that are asked for what makes no sense, or that lack a package, end in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch
from planish.commands import cli
from torch import nn

COMMANDS = ("doctor", "bench", "check", "cache", "pack", "run", "coverage", "try", "model")
HERE = Path(__file__).parent


def make() -> tuple[nn.Module, torch.Tensor]:
    """A model for `planish try test_commands:make`."""
    norms = nn.Sequential(nn.LocalResponseNorm(2), nn.GroupNorm(2, 8), nn.LocalResponseNorm(2))
    return nn.Sequential(nn.Conv2d(3, 8, 3), norms), torch.randn(1, 3, 8, 8)


def make_batch() -> tuple[nn.Module, torch.Tensor]:
    """One that has no norms of planish's kinds."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(2)), torch.randn(1, 3, 8, 8)


def three() -> int:
    """No model."""
    return 3


MINE = "test_commands:make"
#: What is asked, and what the sentence says.
WRONG = [
    ("polish", "no command 'polish'"),
    ("doctor foo", "unrecognized arguments: foo"),
    ("cache", "action"),
    ("cache foo", "invalid choice: 'foo'"),
    ("pack", "OUT"),
    ("pack x --gpu H1000", "--gpu H1000; known are A100"),
    ("pack x --norms list.json --gpu H1000", "known are A100"),
    ("pack x --norms list.json --arch 90", "--arch and --multiprocessors go together"),
    ("pack x --norms list.json --arch 75 --multiprocessors 9", "--arch 75; known are"),
    ("pack x --jobs 0", "'0'; wanted a whole number from 1 on"),
    ("pack x --multiprocessors -1", "wanted a whole number from 1 on"),
    ("run", "there is no program to run"),
    ("run nofile.py", "can't open file"),
    ("coverage", "which model? or --all"),
    ("coverage bert --all", "'bert' and --all: wanted one of them"),
    ("coverage bert --out x.md", "go with --all"),
    ("coverage --all --family nothing", "--family nothing: no family"),
    ("coverage no-such-model", "no model 'no-such-model'"),
    ("coverage --dtype f64 bert", "invalid choice: 'f64'"),
    ("try", "model"),
    ("try no-such-model", "no model 'no-such-model'"),
    ("try nomodule:x", "there is no module 'nomodule' to import"),
    ("try test_commands:nothing", "has no function 'nothing'"),
    ("try test_commands:three", "returned int; wanted a pair of a torch.nn.Module"),
    (f"try {MINE} --threads 0", "'0'; wanted a whole number from 1 on"),
    (f"try {MINE} --threads two", "'two'; wanted a whole number from 1 on"),
    (f"try {MINE} --seconds 0", "'0'; wanted a number above 0"),
    (f"try {MINE} --seconds nan", "'nan'; wanted a number above 0"),
    (f"try {MINE} --device gpu", "--device gpu; known are cpu, cuda, cuda:1"),
    (f"try {MINE} --device meta", "--device meta; known are cpu, cuda, cuda:1"),
    (f"try {MINE} --device cuda:99", "--device cuda:99: torch finds"),
    ("model --variant foo", "--variant: 'foo' is none of convnext_atto"),
    ("model --models bert,foo", "--models: 'foo' is none of bert, bert-large, convnext"),
    ("model --threads 0", "'0'; wanted a whole number from 1 on"),
    ("model --seconds -1", "'-1'; wanted a number above 0"),
    ("check nothing", "no 'nothing'; known are short-rows"),
    ("check rows --no-time nothing", "no 'nothing'"),
    ("check rows --seconds 0", "'0'; wanted a number above 0"),
    ("bench polish", "invalid choice: 'polish'"),
    ("bench --markdown no.json", "--markdown no.json: No such file or directory"),
    (f"bench --markdown {__file__}", "this is no JSON that a sweep wrote"),
    ("bench --threads 0", "'0'; wanted a whole number from 1 on"),
    ("bench --clock cpu --threads 2", "use --threads 1"),
    ("bench switch --threads 1,0", "'0'; wanted a whole number from 1 on"),
    ("bench switch --dtype f99", "--dtype: 'f99' is none of f32, f16, bf16, f64"),
    ("bench switch --direction up", "--direction: 'up' is none of forward, backward"),
    ("bench switch --layout square", "--layout: 'square' is none of rows, nchw, nhwc"),
    ("bench switch --only nothing-like-it", "leave no shape"),
    ("bench norms --models foo", "--models: 'foo' is none of convnext, resnet"),
    ("bench norms --norms foo", "--norms: 'foo' is none of"),
    ("bench fused --only foo", "--only: 'foo' is none of"),
    ("bench fused --ways foo", "--ways: 'foo' is none of"),
    ("bench bert --threads 0", "'0'; wanted a whole number from 1 on"),
]
IN_THIS_PROCESS = {"PLANISH_BENCH_KEEPS_PAGES": "1"}  # no second process for malloc's sake


def status(words: list[str]) -> int:
    """The exit status of a command in this process."""
    try:
        return cli.main(words)
    except SystemExit as left:
        assert isinstance(left.code, int), f"exit status {left.code!r}"
        return left.code


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In an empty folder, from which this file is imported as a user's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    for name, value in IN_THIS_PROCESS.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.parametrize("line, words", WRONG, ids=[line for line, _ in WRONG])
def test_what_makes_no_sense_is_no_sentence(
    line: str, words: str, placed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if line.startswith("model"):
        pytest.importorskip("timm", reason="timm is not installed")
        pytest.importorskip("transformers", reason="transformers is not installed")
    assert status(line.split()) == 2
    said = capsys.readouterr()
    assert words in said.err and "Traceback" not in said.err
    assert said.err.splitlines()[-1].startswith("planish ") or line == "polish"
    assert list(placed.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing is missing")
@pytest.mark.parametrize("command", [f"try {MINE}", "model", "bench switch", "bench fused"])
def test_a_missing_gpu_is_a_traceback(
    command: str, placed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status([*command.split(), "--device", "cuda"]) == 2
    assert "--device cuda: torch finds no GPU that it can use" in capsys.readouterr().err


def test_the_order_of_names_and_options_counts(capsys: pytest.CaptureFixture[str]) -> None:
    listed = set()
    for line in ("rows bf16 --list", "--list rows bf16", "rows --list bf16", "bf16 --list rows"):
        assert cli.main(["check", *line.split()]) == 0
        listed.add(capsys.readouterr().out)
    assert len(listed) == 1
    assert "rows" in listed.pop()


#: A finder that has no such packages, as where they are not installed.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from planish.commands import cli
for words in {lines}:
    print("==", words, flush=True)
    try:
        code = cli.main(words.split())
    except SystemExit as left:
        code = left.code
    print("->", code, flush=True)
"""


def said_without(names: tuple[str, ...], lines: list[str]) -> dict[str, tuple[str, str]]:
    """What each command line prints where these packages are missing, and its exit status."""
    code = WITHOUT.format(names=set(names), lines=lines)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout
    found = {}
    for part in done.stdout.split("== ")[1:]:
        line, _, rest = part.partition("\n")
        text, _, code = rest.rpartition("-> ")
        found[line] = text, code.strip()
    assert list(found) == lines, done.stdout
    return found


@pytest.mark.parametrize(
    "package, sentence, lines",
    [
        (
            "torch",
            "needs PyTorch 2.10 or newer, and there is none: pip install torch",
            ["bench", "bench switch", "check rows", "coverage bert", "try bert", "model"],
        ),
        (
            "numpy",
            "needs NumPy, and there is none: pip install numpy",
            ["bench", "bench fused", "check rows", "model"],
        ),
    ],
)
def test_a_missing_package_is_a_traceback(package: str, sentence: str, lines: list[str]) -> None:
    helps = [f"{command} --help" for command in COMMANDS]
    wrong = ["try", "try bert --threads 0", "check --seconds 0", "coverage", "bench polish"]
    found = said_without((package,), [*lines, *helps, *wrong])
    for line in lines:
        assert found[line] == (f"planish {line.split()[0]}: {sentence}\n", "1")
    for line in helps:
        text, code = found[line]
        assert code == "0" and text.startswith(f"usage: planish {line.split()[0]}"), (line, text)
    for line in wrong:
        text, code = found[line]
        assert code == "2" and "error: " in text, (line, text)


def test_a_model_is_not_tried(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["try", MINE, "--seconds", "2", "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert "1 of 1 norm calls of a forward ran on planish" in said.out
    assert "not counted: 2 x torch.LocalResponseNorm: planish has no such norm" in said.out
    doing = [line for line in said.err.splitlines() if line.startswith("planish try: ")]
    assert len(doing) == 5 and all(line.endswith(" ...") for line in doing), said.err
    assert not any(line in said.out for line in doing)


def test_norms_of_other_kinds_are_passed_over(
    placed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["coverage", "test_commands:make_batch"]) == 0
    said = capsys.readouterr().out
    assert "no norm of planish's kinds in a forward" in said
    assert (
        "not counted: 1 x torch.LocalResponseNorm: planish has no such norm, it stays torch's"
        in said
    )
