"""`planish bench fused`: norms with what stands around them in a model, beside their peers.

works.py      the table's rows: shapes, the bytes that move, the data
reference.py  the formulas in double, and how far a result may be from them
way.py        what it is to do the work
ways.py       who can do the work: planish fused and unfused, torch, torch.compile, Liger
triton_*.py   peers written from published semantics: one program a row, tiles of rows, in place
ceilings.py   an element-wise kernel of as many bytes in as many streams
table.py      what is printed and drawn
command.py    the options, and the measuring
"""

from __future__ import annotations

from .command import main

__all__ = ["main"]
