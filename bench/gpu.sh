#!/bin/sh
# Builds the GPU backend with its test door, checks the kernels against double, and times them beside
# torch on the first GPU: bench/gpu.sh OUTPUT_FOLDER. Needs gcc, python3 with torch, and a GPU.
set -e
out=${1:?"usage: bench/gpu.sh OUTPUT_FOLDER"}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
cd "$root/src/cuda"
python3 embed.py "$out/texts.c" kernels/*.cu
cc -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared -I../../include -I.. -o "$out/libgpu.so" \
    arguments.c cache.c driver.c general.c geometry.c jit.c launch.c spec.c "$out/texts.c" \
    ../problem.c ../roles.c ../status.c ../../tests/cuda/shim.c ../../tests/cuda/ceiling.c -ldl -lpthread
rm "$out/texts.c"
export PLANISH_GPU_SHIM="$out/libgpu.so" PYTHONUNBUFFERED=1
cd "$root"
jobs=$(($(nproc) > 1 ? $(nproc) - 1 : 1))
python3 tests/cuda/check_device.py --processes "$jobs" --json "$out/check.json" | tee "$out/check.txt"
python3 bench/gpu_rows.py forward backward table --processes "$jobs" --eager \
    --csv "$out/layer.csv" | tee "$out/layer.txt"
python3 bench/gpu_rows.py forward backward --kind rms --processes "$jobs" --eager \
    --csv "$out/rms.csv" | tee "$out/rms.txt"
python3 bench/gpu_rows.py key --processes "$jobs" --eager --compiled \
    --csv "$out/compiled.csv" | tee "$out/compiled.txt"
