"""How planish.replace(model, fuse=True) reads the source of a forward, and writes it anew."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import pytest

from planish.replacing import reading, rewriting


def test_a_reader_reads_places_where_there_are_none() -> None:
    for source, wanted in SOURCES.items():
        function: Any = ast.parse(source).body[0]
        found: list[reading.Place] = []

        def accept(place: reading.Place, found: list[reading.Place] = found) -> str:
            found.append(place)
            return "helper"

        reading.Reader(function, ["self"], accept, lambda test: None).run()
        assert [str(place) for place in found] == wanted, source


SOURCES = {
    # v is set again before the norm
    "def f(self, a, b):\n v = a + b\n v = v * 2\n return self.norm(v)": [],
    # the norm takes more than the sum
    "def f(self, a, b):\n v = a + b\n return self.norm(v, b)": [],
    # a product, no sum
    "def f(self, a, b):\n v = a * b\n return self.norm(v)": [],
    # self is something else by now
    "def f(self, a, b):\n self = b\n v = a + b\n return self.norm(v)": [],
    # the modulation reads the sum
    "def f(self, a, b):\n v = a + b\n return self.norm(v) * (1 + v) + b": ["add + norm"],
    # 2 + scale is no modulation
    "def f(self, a, s):\n return self.norm(a) * (2 + s) + s": [],
    "def f(self, a, s):\n return self.norm(a) * (1 + s) + s": ["norm + modulation"],
    "def f(self, a, b):\n return self.norm(a + b)": ["add + norm"],
    "def f(self, a):\n return [self.norm(x + a) for x in a]": [],
}


def test_a_rewritten_function_has_other_lines_or_defaults() -> None:
    def given(self: Any, x: int, y: int = 3, *, z: int = 4) -> int:
        return x + y + z

    tree = rewriting.parsed(given)
    made = rewriting.rewritten(given, tree, {})
    assert made(None, 1) == 8 and made.__code__.co_firstlineno == given.__code__.co_firstlineno
    assert made.__defaults__ == (3,) and made.__name__ == "given"
    with pytest.raises(rewriting.Unreadable, match="no function"):
        rewriting.parsed(len)
    wrapped: Callable[..., int] = functools.wraps(given)(lambda *a: 1)
    with pytest.raises(rewriting.Unreadable, match="decorator"):
        rewriting.parsed(wrapped)
