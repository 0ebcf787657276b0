"""Writes kernel texts as C arrays: embed.py OUTPUT KERNEL.cu...

A string literal would meet the length limit that C promises; an array of characters has none.
A line #include "X.cu" or "X.h" is replaced by that file, whose path is seen from the folder of
the file that includes it. What another includes is no text of its own. Comments and indentation are
left out, which are a third of the bytes; lines stay lines.
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include "([\w./]+\.(?:cu|h))"$', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INDENTATION = re.compile(r"^[ \t]+|[ \t]+$", re.MULTILINE)


def text_of(path: pathlib.Path) -> str:
    """The file with what it includes."""
    return INCLUDE.sub(lambda found: text_of(path.parent / found[1]), path.read_text())


def array(path: pathlib.Path) -> str:
    """The definition of cuda_text_<stem>, closed by 0."""
    bare = COMMENT.sub(lambda found: " " + "\n" * found[0].count("\n"), text_of(path))
    data = INDENTATION.sub("", bare).encode() + b"\0"
    lines = [", ".join(str(b) for b in data[i : i + 24]) for i in range(0, len(data), 24)]
    body = ",\n    ".join(lines)
    name = f"cuda_text_{path.stem}[]"
    return f"extern const char {name};\nconst char {name} = {{\n    {body}}};\n"


def main() -> None:
    output, *kernels = map(pathlib.Path, sys.argv[1:])
    parts = {
        (kernel.parent / part).resolve()
        for kernel in kernels
        for part in INCLUDE.findall(kernel.read_text())
    }
    output.write_text("\n".join(array(k) for k in kernels if k.resolve() not in parts))


main()
