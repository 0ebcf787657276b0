"""Norms with what stands around them in plain Triton: one program for a row, or for a tile of rows.

Written from what such kernels are published to do (flash-attn's layer_norm_fn, Mamba's gated norm,
quack's residual RMSNorm, vLLM's fused_add_rms_norm), not from their text. Imports Triton: only
imported where there is one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    x, residual, weight, bias, scale, shift, gate, y, total, scales, mean_out, rstd_out,
    rows, cols, token_stride, sample_rows, eps, static, p, seed,
    RMS: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, MODULATE: tl.constexpr, GATE: tl.constexpr, QUANT: tl.constexpr,
    HEADS: tl.constexpr, SAVE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows, each held as a whole. QUANT: 0 no, 1 a scale for each row, 2 static, 3 for each
    128 columns. HEADS: rows of a token that lie behind each other."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (col[None, :] < cols)
    wide = row.to(tl.int64)
    at = wide[:, None] * cols + col[None, :]
    if HEADS > 1:
        start = (wide // HEADS) * token_stride + (wide % HEADS) * cols
        s = tl.load(x + start[:, None] + col[None, :], mask=inside, other=0.0).to(tl.float32)
    else:
        s = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        keep = tl.rand(seed, at.to(tl.int32)) >= p
        s = tl.where(keep, s / (1 - p), 0.0)
    if ADD:
        s += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, s, mask=inside)
    centred = s
    if not RMS:
        mean = tl.sum(s, axis=1) / cols
        centred = tl.where(inside, s - mean[:, None], 0.0)
        if SAVE:
            tl.store(mean_out + row, mean, mask=row < rows)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / cols + eps)
    if SAVE:
        tl.store(rstd_out + row, rstd, mask=row < rows)
    z = centred * rstd[:, None]
    if WEIGHT:
        z = z * tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        z = z + tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)[None, :]
    if MODULATE:
        of = (wide // sample_rows)[:, None] * cols + col[None, :]
        factor = 1 + tl.load(scale + of, mask=inside, other=0.0).to(tl.float32)
        z = z * factor + tl.load(shift + of, mask=inside, other=0.0).to(tl.float32)
    if GATE:
        g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
        z = z * g * tl.sigmoid(g)
    if QUANT == 1:
        found = tl.maximum(tl.max(tl.abs(z), axis=1), 1e-10) / 448.0
        tl.store(scales + row, found, mask=row < rows)
        z = z / found[:, None]
    if QUANT == 2:
        z = z / static
    if QUANT == 3:
        blocks = tl.reshape(z, (ROWS, BLOCK // 128, 128))
        found = tl.maximum(tl.max(tl.abs(blocks), axis=2), 1e-10) / 448.0
        count = (cols + 127) // 128
        block = tl.arange(0, BLOCK // 128)
        to = row[:, None] * count + block[None, :]
        tl.store(scales + to, found, mask=(row[:, None] < rows) & (block[None, :] < count))
        z = tl.reshape(blocks / found[:, :, None], (ROWS, BLOCK))
    if QUANT > 0:
        z = tl.minimum(tl.maximum(z, -448.0), 448.0)
    tl.store(y + at, z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def in_place_kernel(
    x, residual, weight, rows, cols, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: residual += x, x = RMSNorm(residual), as inference engines have it."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    at = row * cols + col
    s = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    s += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + at, s, mask=inside)
    rstd = 1 / tl.sqrt(tl.sum(s * s, axis=0) / cols + eps)
    w = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at, s * rstd * w, mask=inside)


@triton.jit
def backward_kernel(
    dy, s_in, weight, scale, gate, dsum, mean_in, rstd_in, dx, dresidual, dgate, part_weight,
    part_bias, sample_rows, steps, cols, token_stride, p, seed,
    RMS: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, MODULATE: tl.constexpr, GATE: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every so many tiles of a sample's rows; the sums over them (dweight and dbias, or dscale and
    dshift) are kept in registers and written once, for another kernel to add up."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    sample = tl.program_id(1).to(tl.int64)
    col = tl.arange(0, BLOCK)
    present = col < cols
    own_weight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    own_bias = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    factor = tl.full([BLOCK], 1.0, dtype=tl.float32)
    if WEIGHT:
        factor = tl.load(weight + col, mask=present, other=0.0).to(tl.float32)
    if MODULATE:
        factor = 1 + tl.load(scale + sample * cols + col, mask=present, other=0.0).to(tl.float32)
    for step in range(steps):
        local = (step * programs + program) * ROWS + tl.arange(0, ROWS)
        inside = (local[:, None] < sample_rows) & present[None, :]
        row = sample * sample_rows + local
        at = row[:, None] * cols + col[None, :]
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if HEADS > 1:
            start = (row // HEADS) * token_stride + (row % HEADS) * cols
            s = tl.load(s_in + start[:, None] + col[None, :], mask=inside, other=0.0)
            s = s.to(tl.float32)
        else:
            s = tl.load(s_in + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_in + row, mask=local < sample_rows, other=0.0)
        if not RMS:
            s -= tl.load(mean_in + row, mask=local < sample_rows, other=0.0)[:, None]
        xhat = tl.where(inside, s * rstd[:, None], 0.0)
        if GATE:
            a = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
            share = tl.sigmoid(a)
            da = g * xhat * factor[None, :] * share * (1 + a * (1 - share))
            tl.store(dgate + at, da, mask=inside)
            g = g * a * share
        own_weight += g * xhat
        if BIAS:
            own_bias += g
        g = g * factor[None, :]
        ds = g - xhat * (tl.sum(g * xhat, axis=1) / cols)[:, None]
        if not RMS:
            ds -= (tl.sum(g, axis=1) / cols)[:, None]
        ds = ds * rstd[:, None]
        if ADD:
            ds += tl.load(dsum + at, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            tl.store(dresidual + at, ds, mask=inside)
            keep = tl.rand(seed, at.to(tl.int32)) >= p
            ds = tl.where(keep, ds / (1 - p), 0.0)
        tl.store(dx + at, ds, mask=inside)
    to = (sample * programs + program) * cols + col
    tl.store(part_weight + to, tl.sum(own_weight, axis=0), mask=present)
    if BIAS:
        tl.store(part_bias + to, tl.sum(own_bias, axis=0), mask=present)
