#!/bin/sh
# A C program built against an installed planish, as its user would: installed.sh WAY BUILD_FOLDER CC
#
# WAY is pkg-config or cmake. `meson install` puts the library into a scratch folder first.
# Exits with 77 and a reason where the tool is not there.
set -eu
way=$1 build=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
command -v "$way" >/dev/null || { echo "skipped: $way is not installed"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
meson install -C "$build" --no-rebuild --quiet --destdir "$scratch/root"
package=$(find "$scratch/root" -name planish.pc)
prefix=$(sed -n 's/^prefix=//p' "$package")
# The root of that file system is elsewhere: the scratch folder.
at=$scratch/root$prefix
library=$(dirname "$(dirname "$package")")

case $way in
pkg-config)
    PKG_CONFIG_PATH=$(dirname "$package")
    export PKG_CONFIG_PATH
    flags=$(pkg-config --define-variable=prefix="$at" --cflags --libs planish)
    for name in forward backward; do
        # shellcheck disable=SC2086
        $cc -std=c11 -o "$scratch/$name" "$here/$name.c" $flags -lm -Wl,-rpath,"$library"
        "$scratch/$name"
    done
    ;;
cmake)
    CC=$cc cmake -S "$here/cmake" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$at"
    cmake --build "$scratch/build"
    (cd "$scratch/build" && ctest --output-on-failure)
    # A version that it does not have is refused.
    mkdir "$scratch/newer"
    sed 's/planish 0.1/planish 99.0/' "$here/cmake/CMakeLists.txt" >"$scratch/newer/CMakeLists.txt"
    if CC=$cc cmake -S "$scratch/newer" -B "$scratch/other" -DCMAKE_PREFIX_PATH="$at" >/dev/null 2>&1; then
        echo "version 99 was found"
        exit 1
    fi
    ;;
esac
