#!/bin/sh
# Builds the GPU backend with its test door as one library: bench/gpu_build.sh LIBRARY. Needs a C
# compiler and python3; nothing of CUDA.
set -e
library=$(realpath "${1:?"usage: bench/gpu_build.sh LIBRARY"}")
cd "$(dirname "$0")/../src/cuda"
python3 embed.py "$library.texts.c" kernels/*/*.cu
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared -I../../include -I.. -Wl,-z,defs -o "$library" \
    $(find . -name '*.c' ! -name ahead.c ! -name report.c ! -name none.c) \
    "$library.texts.c" ../dtypes.c ../problem.c ../problem_axes.c ../problem_checks.c ../problem_layouts.c ../problem_stages.c ../roles.c ../stages_modulated.c ../stages_sum.c ../steps.c ../status.c ../../tests/cuda/shim.c ../../tests/cuda/ceiling.c -ldl -lpthread -lm
rm "$library.texts.c"
