"""Puts build.sh into a source archive: the library by a C compiler and a shell alone.

meson runs this while it makes the archive (meson dist, make dist), in whose top folder it writes
build.sh, made of the commands that meson itself would run for each architecture, and
plain/texts.c, the GPU kernels' text as the C arrays that meson has Python make. So there is no
second list of sources and flags to keep. It builds nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHITECTURES = ("x86_64", "aarch64")

CROSS = """[binaries]
c = {compiler}
ar = 'ar'
[properties]
needs_exe_wrapper = true
[host_machine]
system = 'linux'
cpu_family = '{architecture}'
cpu = '{architecture}'
endian = 'little'
"""

HEAD = """#!/bin/sh
# Builds build/plain/libplanish.so of planish {version} by a C compiler and a shell alone:
#
#     sh build.sh                      CC=clang, JOBS=8, CFLAGS=-g: as in other builds
#     cc -Iinclude examples/forward.c -Lbuild/plain -lplanish -lm -Wl,-rpath,build/plain
#
# For 64-bit Linux with glibc, on x86-64 and aarch64. Made by tools/plain_build.py of what meson
# runs; meson is the way where Python is, and installs too.
set -eu
cd "$(dirname "$0")"
CC=${{CC:-cc}} JOBS=${{JOBS:-$(getconf _NPROCESSORS_ONLN)}}
if [ "$(uname -s)" != Linux ]; then
    echo "planish is built for 64-bit Linux with glibc; this is $(uname -s)." >&2
    exit 1
fi
mkdir -p build/plain
cd build/plain
rm -f ./*.o failed libplanish.so*
started=0 objects=

# unit OBJECT SOURCE FLAGS DEFINITION...: compiles, with up to JOBS others.
unit() {{
    object=$1.o source=../../$2 flags=$3
    shift 3
    objects="$objects $object"
    # shellcheck disable=SC2086
    {{ $CC $flags "$@" ${{CFLAGS-}} -I../../include -I../../src \\
        -o "$object" -c "$source" || echo "$source" >>failed; }} &
    started=$((started + 1))
    if [ $((started % JOBS)) -eq 0 ]; then wait; fi
}}

case $(uname -m) in
"""

TAIL = """*)
    echo "planish is built for x86-64 and aarch64; this is $(uname -m)." >&2
    exit 1
    ;;
esac
wait
if [ -f failed ]; then
    echo "not compiled: $(tr '\\n' ' ' <failed)" >&2
    exit 1
fi
# shellcheck disable=SC2086
$CC -shared -Wl,-soname,libplanish.so.0 -o libplanish.so.{version} $objects -lm -ldl -lpthread
ln -s libplanish.so.{version} libplanish.so.0
ln -s libplanish.so.0 libplanish.so
echo "build/plain/libplanish.so"
"""


def configured(source: Path, architecture: str, folder: Path) -> tuple[list[list[str]], str]:
    """What meson would run to compile the library there: (arguments of each, the version)."""
    cross = folder.with_suffix(".ini")
    # The compiler is only asked what it can; it need not make code of that architecture.
    compiler = os.environ.get("CC") or "cc"
    cross.write_text(CROSS.format(compiler=shlex.split(compiler), architecture=architecture))
    meson = shlex.split(os.environ.get("MESONINTROSPECT", "meson introspect"))
    setup = [*meson[:-1], "setup", str(folder), str(source), "--cross-file", str(cross)]
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CFLAGS", "LDFLAGS")}
    done = subprocess.run(
        [*setup, "-Dtests=false", "-Dpython=false", "-Dmanylinux=false"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"plain_build.py: meson for {architecture}: {done.stdout}{done.stderr}")
    commands = json.loads((folder / "compile_commands.json").read_text())
    project = json.loads((folder / "meson-info" / "intro-projectinfo.json").read_text())
    own = [c for c in commands if not c["output"].startswith("libplanish_ort.so.p")]
    return [arguments(c, source) for c in own], project["version"]


def arguments(command: dict[str, str], source: Path) -> list[str]:
    """[source file, flag, ...] of a compile command, without what is meson's own."""
    path = (Path(command["directory"]) / command["file"]).resolve()
    inside = path.is_relative_to(source)
    found = [path.relative_to(source).as_posix() if inside else f"plain/{path.name}"]
    words = iter(shlex.split(command["command"]))
    for word in words:
        if word in ("-MQ", "-MF", "-o", "-c"):
            next(words)
        elif word.startswith("-") and not word.startswith(("-I", "-MD")):
            found.append(word)
    return found


def script(lists: dict[str, list[list[str]]], version: str) -> str:
    """The text of build.sh: the sets of flags that there are, and which of them a unit has."""
    every = [unit[1:] for units in lists.values() for unit in units]
    shared = {flag for flag in every[0] if all(flag in flags for flags in every)}
    sets: dict[str, str] = {}
    bodies = ""
    for architecture, units in lists.items():
        bodies += f"{architecture})\n"
        for number, (path, *flags) in enumerate(units):
            own = [f for f in flags if f.startswith("-D") and f not in shared]
            rest = " ".join(f for f in flags if f not in own)
            name = sets.setdefault(rest, f"FLAGS{len(sets)}")
            bodies += f'    unit {number} {path} "${name}" {shlex.join(own)}'.rstrip() + "\n"
        bodies += "    ;;\n"
    head, case = HEAD.format(version=version).rsplit("case ", 1)
    flags = "".join(f"{name}='{rest}'\n" for rest, name in sets.items())
    return f"{head}{flags}\ncase {case}{bodies}{TAIL.format(version=version)}"


def main() -> None:
    """Writes into the archive's folder, MESON_DIST_ROOT."""
    archive = Path(os.environ["MESON_DIST_ROOT"]).resolve()
    lists: dict[str, list[list[str]]] = {}
    version = ""
    with tempfile.TemporaryDirectory() as scratch:
        for architecture in ARCHITECTURES:
            folder = Path(scratch).resolve() / architecture
            lists[architecture], version = configured(archive, architecture, folder)
    texts = archive / "plain" / "texts.c"
    texts.parent.mkdir(exist_ok=True)
    embed = archive / "src" / "cuda" / "embed.py"
    kernels = sorted((archive / "src" / "cuda" / "kernels").rglob("*.cu"))
    subprocess.run([sys.executable, embed, texts, *kernels], check=True)
    target = archive / "build.sh"
    target.write_text(script(lists, version))
    target.chmod(0o755)


if __name__ == "__main__":
    main()
