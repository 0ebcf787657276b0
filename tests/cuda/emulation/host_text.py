"""Kernel text for the host: host_text.py OUTPUT_FOLDER KERNEL.cu ARGUMENTS.h...

What is left of each text is C++ between words.hpp and instructions.hpp: functions that hold PTX
become declarations (instructions.hpp defines them), shared variables become references to the
block's own memory, and hints for the compiler go. Lines keep their numbers. The
files come into one folder: their names are unique.
"""

from __future__ import annotations

import pathlib
import re
import sys

PTX = re.compile(r"\basm\s*(?:volatile\s*)?\(")
INCLUDE = re.compile(r'^#include "(?:[\w.]+/)*(\w+)\.(?:cu|h)"$', re.MULTILINE)
UNROLL = re.compile(r"^[ \t]*#pragma unroll.*$", re.MULTILINE)
DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];")
SHARED = re.compile(r"(?<!extern )__shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+([^;]+);")
DECLARATOR = re.compile(r"(\w+)((?:\[[^\]]*\])*)$")
# A function of a file's top level: from the start of a line to the brace that closes at a line's
# start, or to the end of its only line.
FUNCTION = re.compile(
    r"^((?:template <[^{;]*?>\s*)?(?:__device__|extern \"C\")[^{;]*?\))\s*(\{.*?\}$)",
    re.MULTILINE | re.DOTALL,
)


def blank(text: str) -> str:
    """As many ends of lines, and nothing else."""
    return "\n" * text.count("\n")


def functions(text: str) -> list[tuple[int, int, int]]:
    """(start, end of the head, end) of every function at the top level."""
    found = []
    at = 0
    while match := FUNCTION.search(text, at):
        head, depth, end = match.end(1), 0, match.start(2)
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        found.append((match.start(), head, end))
        at = end
    return found


def declare_instructions(text: str) -> str:
    """Functions with PTX, without their bodies."""
    parts, at = [], 0
    for _, head, end in functions(text):
        if PTX.search(text, head, end):
            declaration = text[at:head].replace("__forceinline__ ", "")
            parts += [declaration, ";", blank(text[head:end])]
            at = end
    return "".join([*parts, text[at:]])


def declare_shared(text: str, file: int) -> str:
    """Shared variables as references to memory of the block, told apart by file and line."""

    def replace(match: re.Match[str]) -> str:
        line = 10000 * file + text.count("\n", 0, match.start()) + 1
        out = []
        for place, declarator in enumerate(re.split(r",\s*(?![^\[]*\])", match.group(2))):
            parts = DECLARATOR.match(declarator.strip())
            if not parts:
                raise SystemExit(f"line {line}: not understood: {match.group(0)}")
            name, sizes = parts.groups()
            out.append(
                f"typedef {match.group(1)} shared_{name}{sizes}; shared_{name} &{name} = "
                f"*(shared_{name} *)emulation_variable({line}, {place}, sizeof(shared_{name}));"
            )
        return " ".join(out) + blank(match.group(0))

    return SHARED.sub(replace, text)


def host_text(text: str, file: int) -> str:
    """The text of one file, the file-th, for the host."""
    text = UNROLL.sub("", INCLUDE.sub(r'#include "\1.inc"', text))
    text = declare_shared(declare_instructions(text), file)
    text = DYNAMIC.sub(r"#define \1 emulation_dynamic_shared()", text)
    if "__shared__" in text or PTX.search(text):
        raise SystemExit("a shared variable or an instruction is left in the text")
    return text


def main() -> None:
    """Writes one .inc for each kernel."""
    folder = pathlib.Path(sys.argv[1])
    for file, name in enumerate(sys.argv[2:], 1):
        path = pathlib.Path(name)
        text = f'#line 1 "{path.name}"\n' + host_text(path.read_text(), file)
        (folder / (path.stem + ".inc")).write_text(text)


if __name__ == "__main__":
    main()
