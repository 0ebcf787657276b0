"""The kernel that puts together what parts of rows sent (kernels/common/merge.cu): it compiles for
every architecture without a spill, and its own text, run on the host, has the numbers of the
formula and the bits of the CPU's operator."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gpu_shim import BUILT, lib

KERNELS = Path(__file__).parents[2] / "src/cuda/kernels"
COMPILER = shutil.which(os.environ.get("CXX", "c++").split()[-1])

#: A block's threads one after the other: they do not meet.
HOST = f"""
#include <math.h>
typedef long long i64;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
static struct {{ unsigned x; }} blockIdx, threadIdx;
#include "{KERNELS}/common/merge.cu"
extern "C" void launch(const merge_args *args) {{
    for (blockIdx.x = 0; blockIdx.x <= args->rows / MERGE_THREADS; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < MERGE_THREADS; threadIdx.x++)
            planish_merge(*args);
}}
"""


class MergeArgs(ctypes.Structure):
    """kernels/arguments/merge_args.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("sent", "shares", "made_shares", "first", "second")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("parts", "stride", "rows", "l2")),
    ]


@pytest.mark.parametrize("arch", [80, 89, 90, 100, 120])
def test_it_compiles_without_a_spill(arch: int) -> None:
    if not os.environ.get("PLANISH_GPU_SHIM") and not BUILT.exists():
        pytest.skip(f"{BUILT} is not built; make test builds it")
    log, text = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(2000)
    status = lib().shim_compile_merge(arch, log, len(log), text, len(text))
    if status == 12:
        pytest.skip(f"no NVRTC here (pip install nvidia-cuda-nvrtc): {text.value.decode()}")
    assert status == 0, text.value.decode()
    found = re.findall(r"(\d+) bytes (?:stack|spill)", log.value.decode())
    assert found, log.value
    assert set(found) == {"0"}, log.value


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run the kernel's text with")
@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
@pytest.mark.parametrize("rows", [1, 127, 128, 300])
def test_its_text_has_the_bits_of_the_cpus_operator(tmp_path: Path, rows: int, kind: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("planish")
    from planish.operators import call

    source, library = tmp_path / "merge.cpp", tmp_path / "merge.so"
    source.write_text(HOST)
    flags = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
    subprocess.run([COMPILER, *flags, source, "-o", library], check=True)
    launch = ctypes.CDLL(str(library)).launch

    rms, l2, eps = kind != "layer", kind == "l2", 1.5 if kind == "l2" else 1e-5
    parts, kinds = 5, 1 if rms else 2
    make = torch.Generator().manual_seed(rows)
    room = torch.rand(parts, 3 + kinds * rows, generator=make, dtype=torch.float64)
    sent = room[:, : 1 + kinds * rows]  # rows that do not follow each other
    sent[:, 0] = torch.tensor([3.0, 0.0, 8.0, 1.0, 100.0])
    x, axes = torch.empty(rows, 4), call.pack_axes([1], [1])
    options = call.pack_options(rms=rms, more=call.L2 * l2)

    def made(message: torch.Tensor, shares: torch.Tensor | None) -> list[torch.Tensor]:
        results = [torch.full((count,), torch.nan).double() for count in (rows, rows, parts)]
        first, second, of_parts = (result.data_ptr() for result in results)
        launch(
            ctypes.byref(
                MergeArgs(
                    sent=message.data_ptr(),
                    shares=None if shares is None else shares.data_ptr(),
                    made_shares=None if shares is not None else of_parts,
                    first=None if rms else first,
                    second=second,
                    eps=eps,
                    parts=len(message),
                    stride=message.stride(0),
                    rows=rows,
                    l2=l2,
                )
            )
        )
        return results

    ops = torch.ops.planish
    _, mean, rstd, shares = ops.norm_part_apply(x, sent, None, None, axes, options, eps)
    found = made(sent, None)
    assert torch.equal(found[1], rstd.flatten())
    if l2:
        squares = sum(sent[:, 1:])  # in the order of the parts
        torch.testing.assert_close(found[1], 1 / squares.sqrt().clamp(min=eps), rtol=1e-15, atol=0)
    assert torch.equal(found[2], shares)
    assert rms or torch.equal(found[0], mean.flatten())
    sums = made(sent[:, 1:], shares)
    wanted = torch.zeros(kinds * rows, dtype=torch.float64)
    for share, of_part in zip(shares, sent[:, 1:], strict=True):
        wanted += share * of_part
    assert torch.equal(sums[1], wanted[-rows:])
    assert rms or torch.equal(sums[0], wanted[:rows])
    if rms:  # what a dx without a weight makes of dy = 0 and xhat = 1
        one = torch.ones_like(rstd)
        dy, ones = torch.zeros(rows, 4).double(), torch.ones(rows, 4).double()
        beside = sent[:, 1:], shares, one, None, None, axes, options
        dx = ops.norm_part_backward_apply(dy, ones, *beside)
        assert torch.equal(dx, -sums[1][:, None].expand(rows, 4))
    nothing = made(sent[:0], None)
    assert torch.equal(nothing[1], torch.full((rows,), eps, dtype=torch.float64))
    assert nothing[0].isnan().all()
    assert nothing[2].isnan().all()
