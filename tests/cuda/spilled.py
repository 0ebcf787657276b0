"""Which kernels may keep how many bytes on the stack: what test_compile.py finds at most."""

from __future__ import annotations

#: Bytes that are spilled all the same, by architecture and case: once for a block, and with fewer
#: threads or another text for the address they take 2 to 8% longer (docs/notebook/034).
SPILLED = {
    (90, "forward 1024 f16"): 8,
    (90, "forward 1024 bf16"): 8,
    # Elements that are read one by one.
    (90, "batch forward (512, 2048, 49) f16 0"): 12,
    (100, "batch forward (512, 2048, 49) f16 0"): 76,
    (90, "batch apply (64, 256, 3136) f16 1 last"): 20,
}
#: Many steps at once, as they were measured (bench/results/gpu-33).
ADDED = "bf16 2 addend running_mean running_var"
SPILLED |= {
    (arch, f"batch forward {shape} {what}"): most
    for arch, what, most, shapes in (
        (90, ADDED, 148, ((64, 256, 3136), (64, 64, 12544), (32, 96, 784))),
        (90, "f16 1 last", 24, ((64, 256, 3136), (64, 64, 12544), (64, 2048, 49), (64, 512, 49))),
        (100, ADDED, 28, ((64, 256, 3136), (64, 64, 12544))),
        (100, "bf16 0 last", 56, ((64, 256, 3136), (64, 64, 12544), (32, 96, 784), (64, 2048, 49))),
    )
    for shape in shapes
}
#: Slopes that jump, behind rows of 4096, and in one case behind groups: not timed.
SPILLED |= {
    (100, "gelu 5 1 (16384, 4096) f16"): 8,
    (100, "gelu 6 1 (16384, 4096) f16"): 16,
    (120, "gelu 5 1 (16384, 4096) f16"): 8,
    (120, "gelu 6 1 (16384, 4096) f16"): 20,
    (120, "gelu 5 1 (64, 32, 8, 784) bf16"): 8,
    (80, "gelu 5 0 (16384, 4096) bf16"): 28,
    (80, "gelu 6 1 (16384, 4096) f16"): 32,
    (89, "gelu 5 0 (16384, 4096) bf16"): 28,
    (89, "gelu 6 1 (16384, 4096) f16"): 40,
    (90, "gelu 5 1 (16384, 4096) bf16"): 116,
    (90, "gelu 5 1 (16384, 4096) f16"): 40,
    (90, "gelu 6 1 (16384, 4096) f16"): 128,
}
#: Backwards of the general kernels, whose arithmetic is f64: not timed, as no such GPU was at hand.
SPILLED |= {
    (120, f"general {direction} {kind} {dtype}"): 24 if direction == 2 and kind == 0 else 8
    for direction in (1, 2)
    for kind in (0, 1, 2)
    for dtype in ("f16", "f64")
}
