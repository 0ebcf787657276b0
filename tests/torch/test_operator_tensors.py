"""The lists of the operators' tensors in Python (planish/operators) are not those of C."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from planish.operators import ops, sharding
from planish.operators.call import GRADIENTS, Quantized, Tensors
from planish.operators.formulas import Given

SOURCE = Path(__file__).parents[2] / "src"
#: Of a role's axes (src/roles.h), as sharding.py calls them.
SETS = {"KEPT": "row", "AFFINE": "affine", "COLUMN": "column", "MODULATION": "modulation"}


@pytest.mark.parametrize(
    ("operator", "names"),
    [(ops.FORWARD, Tensors), (ops.BACKWARD, Given), (ops.QUANTIZED, Quantized)],
)
def test_tensors_are_not_those_of_the_schema(operator: Any, names: Any) -> None:
    arguments = operator._schema.arguments
    assert [a.name for a in arguments if "Tensor" in str(a.type)] == list(names._fields)


def test_gradients_are_not_the_results_of_c() -> None:
    text = (SOURCE / "torch/norm_operators.c").read_text()
    found = re.search(r"backward_outputs\[.*?\{(.*?)\};", text, re.DOTALL)
    assert found
    assert re.findall(r"ROLE_D(\w+)", found[1]) == [name.upper() for name in GRADIENTS]


def test_axes_are_not_those_of_the_roles() -> None:
    rows = re.findall(r"MAKE\(arg, \w+, +(\w+), +(\w+),", (SOURCE / "roles.h").read_text())
    axes = dict(rows)
    for name in {*Tensors._fields, *Given._fields, *Quantized._fields} - {"s"}:
        wanted = "x" if axes[name] == "FULL" else SETS.get(axes[name], "none")
        assert sharding._SETS.get(name, "x") == wanted, name
