#!/bin/sh
# compute-sanitizer's memcheck, racecheck, initcheck and synccheck over every GPU kernel, on small
# cases: bench/gpu_sanitize.sh OUTPUT_FOLDER, which holds libgpu.so (gpu.sh builds it). The tools run
# side by side. Writes sanitizer.txt; ends with 1 where a tool found something.
out=${1:?"usage: bench/gpu_sanitize.sh OUTPUT_FOLDER"}
cd "$(dirname "$0")/.." || exit 1
export PLANISH_GPU_SHIM="$out/libgpu.so" PYTHONUNBUFFERED=1
# Else torch hands out parts of its own large allocations, whose ends no tool can see.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
for check in memcheck racecheck initcheck synccheck; do
    options='--kernel-name kns=planish'
    # What torch's kernels write has to be seen as written.
    [ "$check" = initcheck ] && options=
    [ "$check" = synccheck ] && options="$options --num-cuda-barriers 1048576"
    # shellcheck disable=SC2086
    timeout 100 "$tool" --tool "$check" $options --error-exitcode 9 \
        python3 tests/cuda/check_device.py --small --names >"$out/$check.txt" 2>&1 &
done
wait
for check in memcheck racecheck initcheck synccheck; do
    echo "== $check"
    grep -E "cases, |SUMMARY|COMPUTE-SANITIZER|WRONG|REFUSED|Error|rror: " "$out/$check.txt" |
        sed 's/^=* *//' | sort | uniq -c | sort -rn | head -n 20
done | tee "$out/sanitizer.txt"
[ "$(grep -cE 'SUMMARY: 0 (errors|hazards)' "$out/sanitizer.txt")" -eq 4 ]
