"""The reference: every public name is documented, with an example that runs as it stands; dir()
shows public names alone; every function of planish.h stands in an example that is compiled."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_blocks
import pytest

import planish
import torch

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    *("planish", "planish.apex", "planish.hf", "planish.composer", "planish.distributed"),
    *(f"planish.compat.{name}" for name in ("flash_attn", "liger", "quack", "flashinfer")),
    *("planish.compat.transformer_engine", "planish.compat.vllm"),
]
#: Examples that need another library, which docs/guide has and runs.
ELSEWHERE = {"planish.hf.register"}
#: Values.
VALUES = {"planish.__version__", "planish.hf.LAYERS", "planish.compat.vllm.PROVIDER"}
#: What needs Composer to be looked at.
NEEDS_COMPOSER = "planish.composer.FusedLayerNorm"
EXAMPLES = doctest.DocTestParser()


def public() -> dict[str, Any]:
    found = {}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            full = f"{module}.{name}"
            if full != NEEDS_COMPOSER and full not in VALUES:
                found[full] = getattr(importlib.import_module(module), name)
    return found


PUBLIC = public()


#: Modules without which an example says something else.
NEEDED = {"planish.compat.liger.apply_planish_to": "transformers"}


def failures(name: str, text: str) -> str:
    """What doctest says of the examples in this text; a name that fails stands for one."""
    report: list[str] = []
    test = EXAMPLES.get_doctest(text, {"planish": planish, "torch": torch}, name, None, 0)
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=report.append)
    return "".join(report)


@contextlib.contextmanager
def group_for(name: str) -> Iterator[None]:
    """A process group of this process alone, for what needs one."""
    if not name.startswith("planish.distributed"):
        yield
        return
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_does_not_run(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert name in ELSEWHERE or EXAMPLES.get_examples(text), f"{name} has no example"
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason=f"{NEEDED[name]} is not installed")
    with group_for(name):
        assert failures(name, text) == ""


def test_an_example_that_is_wrong_passes() -> None:
    assert "Expected:\n    2" in failures("wrong", ">>> 1 + 1 + 1\n2\n")
    assert "NameError" in failures("wrong", ">>> x.shape\n")
    assert failures("right", ">>> torch.ones(2).shape\ntorch.Size([2])\n") == ""


@pytest.mark.parametrize("name", [n for n, value in PUBLIC.items() if inspect.isclass(value)])
def test_forward_is_not_documented(name: str) -> None:
    """The documentation of nn.Module's forward says nothing of this one."""
    if not issubclass(PUBLIC[name], torch.nn.Module):
        return
    forward = PUBLIC[name].forward
    assert (forward.__doc__ or "").strip()
    assert forward.__module__.startswith("planish")


@pytest.mark.parametrize(
    "name", [n for n in PUBLIC if n.startswith("planish.") and n.count(".") == 1]
)
def test_arguments_of_a_function_are_not_in_its_documentation(name: str) -> None:
    """Each by its name, there or where it is said that the rest is as there."""
    value = PUBLIC[name]
    if inspect.isclass(value):
        return
    text = inspect.getdoc(value) or ""
    for other in re.findall(r":func:`(?:planish\.)?(\w+)`", text):
        text += inspect.getdoc(getattr(planish, other)) or ""
    missing = [a for a in inspect.signature(value).parameters if not re.search(rf"\b{a}\b", text)]
    assert missing == []
    assert "Raises" in text or name in RAISE_NOTHING


RAISE_NOTHING = {
    "planish.disable",
    "planish.reset_stats",
    "planish.is_available",
    "planish.replaced",
    "planish.restore",
    "planish.replace",
    "planish.stats",
}


@pytest.mark.parametrize("module", ["planish", "planish.apex", "planish.hf", "planish.composer"])
def test_dir_shows_names_that_are_not_public(module: str) -> None:
    found = importlib.import_module(module)
    shown = set(dir(found)) - {"__doc__", "__file__"}
    assert shown - set(found.__all__) <= {
        *("apex", "compat", "compile", "composer", "distributed", "hf")
    }
    assert set(found.__all__) <= shown


# ---- The header ---------------------------------------------------------------------------------


def declared() -> set[str]:
    text = (ROOT / "include/planish.h").read_text(encoding="utf-8")
    return set(re.findall(r"PLANISH_API [\w *]*?\b(planish_\w+)\(", text))


def test_a_function_of_the_header_is_in_no_example() -> None:
    """Examples are built and run by meson's tests, blocks of the guide by test_readme.py."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.c"))]
    for page in page_blocks.documents():
        sources += page_blocks.blocks_of(page.read_text(encoding="utf-8"), "c").values()
    used = set(re.findall(r"\b(planish_\w+)\(", "\n".join(sources)))
    assert len(declared()) > 30
    assert declared() - used == set()


def test_the_reference_has_another_list_of_names() -> None:
    """Its pages are made of what is public here."""
    configuration = ast.parse((ROOT / "docs/reference/conf.py").read_text(encoding="utf-8"))
    lists = [node for node in ast.walk(configuration) if isinstance(node, ast.List)]
    named = {c.value for node in lists for c in node.elts if isinstance(c, ast.Constant)}
    assert set(MODULES) <= named
