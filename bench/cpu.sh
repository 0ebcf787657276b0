#!/bin/bash
# What a CPU gives: bench/cpu.sh OUTPUT_FOLDER [proofs] [table]. Builds planish, proves it on this
# machine (the same bits on every instruction set it has, the whole grid, more than 2^31 elements,
# the drop-in under the torch installed), then measures it beside its peers. Needs gcc, meson, ninja
# and python3 with torch; onnxruntime and oneDNN (PLANISH_BENCH_ONEDNN names its library) if there.
#
# PROOF_SECONDS (default 3600) is the most one proof may take; those that take longer are named.
# BUILD (default build/cpu) is the folder to build in.
set -u
out=$(realpath -m "${1:?usage: bench/cpu.sh OUTPUT_FOLDER [proofs] [table]}")
shift
cd "$(dirname "$0")/.." && mkdir -p "$out"
steps=${*:-proofs table} limit=${PROOF_SECONDS:-3600} build=${BUILD:-build/cpu}
meson setup "$build" -Dbuildtype=release >"$out/build.txt" 2>&1
ninja -C "$build" >>"$out/build.txt" 2>&1 || { tail "$out/build.txt"; exit 1; }
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
PLANISH_LIBRARY=$(realpath "$build"/libplanish.so)
export PLANISH_LIBRARY
{
    lscpu | grep -E '^(Model name|Thread|Core|Socket|L1d|L2|L3)'
    echo "instruction sets: $(grep -m 1 ^flags /proc/cpuinfo | grep -oE ' (avx|fma|f16c|asimd)[^ ]*' | tr -d '\n')"
    python3 -c 'import torch; print("torch", torch.__version__)'
} >"$out/machine.txt"

# prove NAME COMMAND...: in the background; its last lines go to the report.
prove() {
    local name=$1
    shift
    (
        OMP_NUM_THREADS=2 timeout "$limit" "$@" >"$out/proof-$name.txt" 2>&1
        code=$?
        [ $code = 124 ] && echo "not finished in $limit s" >>"$out/proof-$name.txt"
        printf '%s: exit %d: %s\n' "$name" $code "$(tail -n 1 "$out/proof-$name.txt")" >>"$out/proofs.txt"
    ) &
}

if [[ " $steps " == *" proofs "* ]]; then
    : >"$out/proofs.txt"
    tests=$build/tests/c
    prove large "$tests/test_large"
    prove bits "$tests/test_bits" --share="${BITS_SHARE:-1}"
    for table in lengths rows dtypes subsets layouts axes numbers; do
        prove "grid-$table" "$tests/test_grid" --full --table=$table
    done
    prove grid-start "$tests/test_grid" --guard=start
    for name in special conversions descriptors plan faults; do
        prove "$name" "$tests/test_$name"
    done
    prove torch python3 -m pytest -q -p no:cacheprovider tests/torch
    wait
    cat "$out/proofs.txt"
    rm -f "$out"/proof-{large,special,conversions,descriptors,plan,faults}.txt
fi
if [[ " $steps " == *" table "* ]]; then
    for dtype in f32 bf16; do
        python3 -m planish bench rows --threads 1 --dtype $dtype --kind layer --out "$out/rows-$dtype" \
            --providers "${PROVIDERS:-copy,add,torch-kept,onnxruntime,onednn,planish,planish-torch-kept}"
    done
fi
