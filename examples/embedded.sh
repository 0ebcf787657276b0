#!/bin/sh
# planish inside an engine's own build, without torch's layer and without CUDA, as a static library:
#
#     examples/embedded.sh FOLDER          with CC, in an empty folder; .ci/wheel embed runs it
#
# A subproject of meson's, then CMake's FetchContent. Each builds examples/forward.c in a program
# that has functions of planish's inner names of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$here")
[ $# = 1 ] && mkdir -p "$1" && cd "$1"
options="-Ddefault_library=static -Dtorch=disabled -Dcuda=disabled"

cat >engine.c <<'C'
/* Names of the engine's own, which planish has, too. */
int fail(void);
int append(void);
int fail(void) { return 1; }
int append(void) { return 2; }
C

cat >refused.c <<'C'
/* A tensor on a GPU is refused with a sentence. */
#include <planish.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    int64_t shape[] = {2, 4};
    DLTensor x = {.data = &shape, .device = {kDLCUDA, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    char message[256] = "";
    planish_exec exec = {.struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    planish_status status = planish_layer_norm_forward(1, 1e-5, &x, NULL, NULL, &x, NULL, NULL, &exec);
    printf("%s: %s\n", planish_status_name(status), message);
    return status != PLANISH_ERROR_UNAVAILABLE || !strstr(message, "built without CUDA");
}
C

check() {
    "$1/engine" | tee "$1/output.txt"
    grep -q '^row 0: mean' "$1/output.txt"
    if ldd "$1/engine" | grep planish; then echo "the engine needs libplanish.so"; exit 1; fi
}

mkdir -p meson/subprojects
ln -sfn "$tree" meson/subprojects/planish
cat >meson/meson.build <<'M'
project('engine', 'c', default_options: ['default_library=static'])
planish = dependency('planish', fallback: 'planish',
  default_options: ['torch=disabled', 'cuda=disabled', 'default_library=static'])
m = meson.get_compiler('c').find_library('m')
executable('engine', 'engine.c', 'forward.c', dependencies: [planish, m])
executable('refused', 'refused.c', dependencies: planish)
M
cp "$here/forward.c" .
cp engine.c refused.c forward.c meson/
rm -rf meson/build
meson setup meson/build meson
meson compile -C meson/build
check meson/build
meson/build/refused
# What may be seen of the library is the API.
if nm --defined-only -g "$(find meson/build/subprojects -name libplanish.a)" | awk '$2 ~ /[A-Z]/ { print $3 }' |
    grep -v '^planish_'; then
    echo "libplanish.a has other names than the API's"
    exit 1
fi

mkdir -p cmake
cat >cmake/CMakeLists.txt <<C
cmake_minimum_required(VERSION 3.18)
project(engine C)
include(FetchContent)
set(PLANISH_OPTIONS $options)
FetchContent_Declare(planish SOURCE_DIR "$tree" SOURCE_SUBDIR cmake)
FetchContent_MakeAvailable(planish)
add_executable(engine ../engine.c ../forward.c)
target_link_libraries(engine PRIVATE planish::planish m)
C
cmake -S cmake -B cmake/build
cmake --build cmake/build
check cmake/build
