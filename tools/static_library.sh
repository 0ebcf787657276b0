#!/bin/sh
# static_library.sh LD OBJCOPY AR OUTPUT ARCHIVE...: one static library of these, whose only names
# are those of the public API. The library's own, such as `fail`, would meet a program's otherwise.
set -eu
ld=$1 objcopy=$2 ar=$3 output=$4
shift 4
"$ld" -r -o "$output.o" --whole-archive "$@"
"$objcopy" --localize-hidden "$output.o"
rm -f "$output"
"$ar" rcs "$output" "$output.o"
rm -f "$output.o"
