#!/bin/sh
# Builds the GPU backend with its test door, checks the kernels against double and for the same bits
# every time, and times them beside torch on the first GPU: bench/gpu.sh OUTPUT_FOLDER. Needs gcc,
# python3 with torch, and a GPU.
set -e
out=${1:?"usage: bench/gpu.sh OUTPUT_FOLDER"}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
"$root/bench/gpu_build.sh" "$out/libgpu.so"
export PLANISH_GPU_SHIM="$out/libgpu.so" PYTHONUNBUFFERED=1
cd "$root"
jobs=$(($(nproc) > 1 ? $(nproc) - 1 : 1))
python3 tests/cuda/check_device.py --processes "$jobs" --json "$out/check.json" | tee "$out/check.txt"
python3 tests/cuda/check_stages.py --quick --processes "$jobs" | tee "$out/stages.txt"
python3 tests/cuda/check_repeats.py --processes "$jobs" | tee "$out/repeats.txt"
python3 bench/gpu_rows.py forward backward table --processes "$jobs" --eager \
    --csv "$out/layer.csv" | tee "$out/layer.txt"
python3 bench/gpu_rows.py forward backward --kind rms --processes "$jobs" --eager \
    --csv "$out/rms.csv" | tee "$out/rms.txt"
python3 bench/gpu_rows.py key --processes "$jobs" --eager --compiled \
    --csv "$out/compiled.csv" | tee "$out/compiled.txt"
