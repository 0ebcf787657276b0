"""The reference of Python, by Sphinx: `make docs`. That of C is made by Doxygen (Doxyfile).

What is documented is what docstrings say; warnings are errors. Examples in docstrings are run by
tests/torch/test_reference.py, which also holds that every public name of MODULES has one.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import planish

project = "planish"
copyright = "the planish authors"
release = version = planish.__version__
extensions = ["sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"description": "Fused normalization layers", "page_width": "1100px"}
html_show_sourcelink = False
autodoc_member_order = "alphabetical"
autodoc_typehints = "none"  # the signature has them
autodoc_mock_imports = ["composer"]
add_module_names = False
nitpick_ignore = [("py:meth", "reset_parameters")]  # torch's
python_use_unqualified_type_names = True

MODULES = [
    "planish",
    "planish.apex",
    "planish.hf",
    "planish.composer",
    "planish.distributed",
    "planish.compat.flash_attn",
    "planish.compat.liger",
    "planish.compat.quack",
    "planish.compat.flashinfer",
    "planish.compat.transformer_engine",
    "planish.compat.vllm",
]


def _titled(title: str, body: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{body}\n"


def _help(*command: str) -> str:
    run = [sys.executable, "-m", "planish", *command, "--help"]
    text = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return "".join(f"    {line}\n" for line in text.splitlines())


def _commands() -> str:
    """Every command, by what its --help prints."""
    from planish.commands.cli import _COMMANDS

    parts = ["::\n\n" + _help()]
    for name in _COMMANDS:
        title = f"planish {name}"
        parts.append(f"{title}\n{'-' * len(title)}\n\n::\n\n{_help(name)}")
    return "\n".join(parts)


def _fill(app: Any, page: str, source: list[str]) -> None:
    """Pages say @MODULES@ or @COMMANDS@ where these stand."""
    if "@COMMANDS@" in source[0]:
        source[0] = source[0].replace("@COMMANDS@", _commands())
    if "@OTHERS@" in source[0]:
        members = "   :members:\n"
        modules = (f".. automodule:: {name}\n{members}" for name in MODULES[1:])
        titles = (f"{name}\n{'-' * len(name)}\n" for name in MODULES[1:])
        parts = (f"{title}\n{module}" for title, module in zip(titles, modules, strict=True))
        source[0] = source[0].replace("@OTHERS@", "\n".join(parts))


def _formulas(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Indented lines are formulas and code: they keep their lines."""
    found: list[str] = []
    for line in lines:
        if line.startswith("    ") and found[-1:] in ([], [""]):
            before = next((text for text in reversed(found) if text), "")
            if not before.startswith(" ") and not before.endswith("::"):
                found += ["::", ""]
        found.append(line)
    lines[:] = found


def setup(app: Any) -> None:
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _formulas)
