"""A new tensor is one row of src/roles.h and its fields: the how-to is applied and tried, twice."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HOW_TO = ROOT / "docs/internals/add-a-fused-operation.md"
SOURCES = (
    "roles.c",
    "dtypes.c",
    "problem.c",
    "problem_axes.c",
    "problem_checks.c",
    "problem_layouts.c",
    "buffers.c",
    "status.c",
    "sized.c",
    "problem_stages.c",
)
#: What the how-to calls its tensor, and a name for the one behind it.
FIRST, SECOND = "extra", "another"

PROGRAM = r"""
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "plan.h" /* that it has not grown */
#include "problem.h"
#include "sized.h"

static float data[64];
static int64_t shape[] = {2, 4}, other[] = {2, 3};
static char text[256];
static const message error = {text, sizeof text};

static DLTensor tensor(float *at, int64_t *sizes) {
    return (DLTensor){.data = at, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1},
                      .shape = sizes};
}

static void say(planish_status status) {
    printf("%s|%s\n", planish_status_name(status), status ? text : "");
}

int main(void) {
    DLTensor x = tensor(data, shape), y = tensor(data + 8, shape), r = tensor(data + 16, shape),
             wrong = tensor(data + 16, other);
    planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    planish_tensors t = {.struct_size = sizeof t, .x = &x, .y = &y, .NAME = &r}, seen;
    problem p;
    void *buffers[ROLE_COUNT];
    puts(planish_tensor_name(ROLE_COUNT - 1));
    say(problem_make(&p, &op, PLANISH_FORWARD, &t, error));
    printf("%d axes of it\n", has(&p, ROLE_COUNT - 1) ? p.kept_count + p.reduced_count : 0);
    printf("%d from row to row\n", (int)kept_stride(&p, 0, ROLE_COUNT - 1));
    t.NAME = &wrong;
    say(problem_make(&p, &op, PLANISH_FORWARD, &t, error));
    t.NAME = &y;
    say(problem_make(&p, &op, PLANISH_FORWARD, &t, error));
    buffers_of(&t, buffers);
    say(buffers_check(&p, buffers, false, error));
    t.y = NULL;
    t.mean = t.m2 = &wrong; /* not looked at */
    say(problem_make(&p, &op, PLANISH_STATISTICS, &t, error));
    t.struct_size = 96; /* the first release's */
    say(read_tensors(&seen, &t, error));
    puts(seen.NAME ? "an older caller has it" : "an older caller has none");
    return 0;
}
"""

WANTED = """\
NAME
PLANISH_OK|
2 axes of it
4 from row to row
PLANISH_ERROR_SHAPE|NAME has size 3 on axis 1; wanted 4 (the same shape for x, y, dy and dx)
PLANISH_OK|
PLANISH_ERROR_OVERLAP|y shares memory with NAME; wanted separate memory
PLANISH_ERROR_ARGUMENT|NAME is given; wanted NULL for this pass
PLANISH_OK|
an older caller has none
"""


def apply(patch: str, folder: pathlib.Path) -> int:
    """Inserts each added line before or behind the unchanged ones around it; returns the files."""
    files = 0
    for part in patch.split("--- a/")[1:]:
        lines = part.splitlines()
        path = folder / lines[0]
        text = path.read_text()
        for hunk in "\n".join(lines[2:]).split("@@")[1:]:
            body = hunk.splitlines()[1:]
            squeezed = {" ".join(line.split()): line for line in text.splitlines()}
            old = [squeezed[" ".join(line[1:].split())] for line in body if line[0] == " "]
            rows = iter(old)
            new = [next(rows) if line[0] == " " else line[1:] for line in body]
            assert text.count("\n".join(old)) == 1, f"{path}: not where the patch says"
            text = text.replace("\n".join(old), "\n".join(new))
        path.write_text(text)
        files += 1
    return files


def behind(patch: str) -> str:
    """The patch for one more tensor: what it added is there already, and comes before the new."""
    lines = []
    for line in patch.splitlines():
        added = line.startswith("+") and not line.startswith("+++")
        lines.append(" " + line[1:] if added else line)
        if added:
            line = line.replace(FIRST, SECOND)
            lines.append(line.replace(FIRST.upper(), SECOND.upper()))
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("times", [1, 2])
def test_a_role_is_a_row_and_a_declaration(tmp_path: pathlib.Path, times: int) -> None:
    for name in ("include", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    patch = HOW_TO.read_text().split("```diff\n")[1].split("```")[0]
    assert 0 < apply(patch, tmp_path) <= 5
    if times == 2:
        assert 0 < apply(behind(patch), tmp_path) <= 5
    last = FIRST if times == 1 else SECOND
    (tmp_path / "try.c").write_text(PROGRAM.replace("NAME", last))
    sources = [str(tmp_path / "src" / name) for name in SOURCES]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Isrc"]
    subprocess.run(["gcc", *flags, "try.c", *sources, "-lm", "-o", "try"], cwd=tmp_path, check=True)
    found = subprocess.run(["./try"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout == WANTED.replace("NAME", last)
