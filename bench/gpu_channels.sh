#!/bin/sh
# Builds the GPU backend with its test door, checks channels and groups against double, and times them
# beside torch on the first GPU: bench/gpu_channels.sh OUTPUT_FOLDER. Needs gcc, python3 with torch,
# and a GPU.
set -e
out=${1:?"usage: bench/gpu_channels.sh OUTPUT_FOLDER"}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
"$root/bench/gpu_build.sh" "$out/libgpu.so"
export PLANISH_GPU_SHIM="$out/libgpu.so" PYTHONUNBUFFERED=1
cd "$root"
jobs=$(($(nproc) > 1 ? $(nproc) - 1 : 1))
python3 tests/cuda/check_device.py --images --processes "$jobs" --json "$out/check.json" | tee "$out/check.txt"
for dtype in f16 bf16 f32; do
    python3 bench/gpu_channels.py channels groups --dtype $dtype --processes "$jobs" --eager \
        --csv "$out/$dtype.csv" | tee "$out/$dtype.txt"
done
python3 bench/gpu_channels.py sweep --processes "$jobs" --csv "$out/sweep.csv" | tee "$out/sweep.txt"
