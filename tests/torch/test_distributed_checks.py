"""planish.distributed: what is refused, ranks that disagree, torch.compile."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import run

import planish
import torch
from torch import Tensor, nn


def _error_of(call: Any) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


# ---- What is refused -----------------------------------------------------------------------------


def _refused() -> dict[str, tuple[str, str]]:
    x, weight = torch.randn(4, 8), torch.ones(8)
    pd = planish.distributed
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
    other = dist.new_group([0])
    calls: dict[str, Any] = {
        "no tensor": lambda: pd.layer_norm([1.0]),
        "weight": lambda: pd.layer_norm(x, torch.ones(7)),
        "dtype": lambda: pd.rms_norm(x.int()),
        "dims": lambda: pd.rms_norm(x, dims=5),
        "group": lambda: pd.rms_norm(x, group="tp"),
        "mesh": lambda: pd.rms_norm(x, group=mesh),
        "shards": lambda: pd.rms_norm(x, reproducible_shards=3),
        "pieces": lambda: pd.rms_norm(x, reproducible_shards=6),
        "groups": lambda: pd.group_norm(torch.randn(2, 6, 4), 4),
        "kind": lambda: pd.qk_norm(x, x, None, None, 1e-6, kind="l2"),
        "own rows": lambda: pd.all_reduce_add_rms_norm(x, x, weight),
        "own dtype": lambda: pd.all_reduce_add_rms_norm(x, x[:2].int(), weight),
        "own weight": lambda: pd.all_reduce_add_rms_norm(x, x[:2], torch.ones(7)),
        "last axis": lambda: pd.all_reduce_add_rms_norm(x, x[:2], weight, dim=1),
    }
    found = {name: _error_of(call) for name, call in calls.items()}
    if dist.get_rank() == 1:
        found["not in the group"] = _error_of(lambda: pd.rms_norm(x, group=other))
    return found


WANTED = {
    "no tensor": ("TypeError", "layer_norm: Expected x to be a tensor"),
    "weight": ("RuntimeError", "layer_norm: Expected weight to have the sizes [8]"),
    "dtype": ("NotImplementedError", "rms_norm: not implemented for x of torch.int32"),
    "dims": ("IndexError", "rms_norm, dims: Dimension out of range"),
    "group": ("TypeError", "Expected group to be a torch.distributed.ProcessGroup"),
    "mesh": ("ValueError", "group is a mesh of 2 axes"),
    "shards": ("ValueError", "reproducible_shards is 3; wanted a multiple of the group's 2 ranks"),
    "pieces": ("ValueError", "do not divide this rank's size of 8"),
    "groups": ("RuntimeError", "divisible by num_groups"),
    "kind": ("ValueError", "kind is 'l2'"),
    "own rows": ("RuntimeError", "Expected residual to have this rank's own rows, of shape [2, 8]"),
    "own dtype": ("NotImplementedError", "not implemented for residual of torch.int32"),
    "own weight": ("RuntimeError", "Expected weight to have the size of x's last axis"),
    "last axis": ("IndexError", "dim is 1"),
    "not in the group": ("ValueError", "this rank is not in the group"),
}


def test_bad_arguments_raise_on_the_rank_that_makes_them() -> None:
    found = run(2, _refused)[1]
    assert found.keys() == WANTED.keys()
    for name, (kind, words) in WANTED.items():
        assert found[name][0] == kind, (name, found[name])
        assert words in found[name][1], (name, found[name])


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="Default process group has not been initialized"):
        planish.distributed.rms_norm(torch.randn(2, 4))


# ---- Ranks that disagree -------------------------------------------------------------------------


def _disagreeing(what: str, how: str) -> tuple[str, str]:
    rank = dist.get_rank()
    x, eps, wants = torch.randn(4, 8), 1e-5, False
    if rank == 1:
        if what == "rows":
            x = torch.randn(5, 8)
        if what == "dtype":
            x = x.bfloat16()
        if what == "eps":
            eps = 1e-6
        if what == "gradient":
            wants = True
    x.requires_grad_(wants)
    weight = torch.ones(8) if what == "weight" and rank == 0 else None
    planish.distributed.rms_norm(x[:4].float().detach(), weight, eps)  # a call that is known
    levels: Any = dist.DebugLevel  # type: ignore[attr-defined]
    if how == "TORCH_DISTRIBUTED_DEBUG":
        dist.set_debug_level(levels.DETAIL)  # type: ignore[attr-defined]
        found = _error_of(lambda: planish.distributed.rms_norm(x, weight, eps))
        dist.set_debug_level(levels.OFF)  # type: ignore[attr-defined]
    else:
        with planish.distributed.checked():
            found = _error_of(lambda: planish.distributed.rms_norm(x, weight, eps))
    y = planish.distributed.rms_norm(torch.randn(4, 8 + rank))  # the group is as it was
    assert y.shape == (4, 8 + rank)
    return found


@pytest.mark.parametrize("how", ["checked", "TORCH_DISTRIBUTED_DEBUG"])
@pytest.mark.parametrize("what", ["rows", "dtype", "eps", "gradient", "weight"])
def test_ranks_that_disagree_raise_the_same_sentence_on_every_rank(what: str, how: str) -> None:
    first, second = run(2, _disagreeing, what, how)
    assert first == second
    assert first[0] == "RuntimeError"
    assert "the ranks of the group disagree" in first[1]
    assert "rank 0: rms_norm; x: (4, *)" in first[1]


def _agreeing() -> int:
    with planish.distributed.checked():
        planish.distributed.rms_norm(torch.randn(4, 3 + dist.get_rank()))
        planish.distributed.group_norm(torch.randn(2, 6, 4 - dist.get_rank()), 3)
    return 1


def test_ranks_that_agree_go_on() -> None:
    assert run(2, _agreeing) == [1, 1]


def _one_fails() -> None:
    if dist.get_rank() == 1:
        os._exit(1)
    planish.distributed.rms_norm(torch.randn(4, 8))


def test_where_a_rank_failed_the_others_raise() -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        run(2, _one_fails, limit=60)
    said = str(failed.value)
    assert "rank 1 ended without a word" in said
    assert "RuntimeError" in said.partition("rank 1 ended")[0], said
    assert "did nothing" not in said


# ---- torch.compile -------------------------------------------------------------------------------


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))
        self.bias = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = planish.distributed.layer_norm(x.relu(), self.weight, self.bias)
        y, total = planish.distributed.add_rms_norm(y, x, self.weight, 1e-6)
        return y.sin() + total


def _compiled(backend: str) -> bool:
    block, x = _Block(), torch.randn(4, 8, requires_grad=True)
    results = []
    for call in (block, torch.compile(block, backend=backend, fullgraph=True)):
        y = call(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *block.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    return True


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_graph_has_no_break_and_the_same_results(backend: str) -> None:
    assert all(run(2, _compiled, backend, limit=300))


def _fakes() -> bool:
    check: Any = torch.library.opcheck
    ops = torch.ops.planish
    from planish.operators import call

    x, dy, weight = torch.randn(4, 6), torch.randn(4, 6), torch.rand(6)
    rstd, mean = torch.rand(4, 1).double(), torch.rand(4, 1).double()
    axes = call.pack_axes([1], [1])
    tests = ("test_schema", "test_faketensor")
    for rms in (False, True):
        options = call.pack_options(rms=rms, wanted=12)
        m = None if rms else mean
        check(ops.norm_part_statistics, (x, axes, options), test_utils=tests)
        for ranks in (0, 3):
            check(ops.norm_part_message, (x, axes, options, ranks), test_utils=tests)
            given = (dy, x, rstd, m, weight, axes, options, ranks, 1e-5)
            check(ops.norm_backward_statistics, given, test_utils=tests)
        check(
            ops.norm_apply,
            (x, rstd, m, None, weight, None, axes, options, 1e-5),
            test_utils=tests,
        )
        options = call.pack_options(rms=rms, wanted=1)
        rest = (dy, x, rstd, m, m, rstd, None, None, weight, None, axes, options, 1e-5)
        check(ops.norm_backward_apply, rest, test_utils=tests)
        sent = torch.rand(3, 1 + (1 if rms else 2) * x.numel() // x.shape[-1]).double()
        shares = torch.rand(3).double()
        given = (x, sent, weight, None if rms else weight, axes, options, 1e-5)
        check(ops.norm_part_apply, given, test_utils=tests)
        given = (dy, x, sent[:, 1:], shares, rstd, m, weight, axes, options)
        check(ops.norm_part_backward_apply, given, test_utils=tests)
    return True


def test_fake_results_are_those_of_the_kernels() -> None:
    assert _fakes()


# ---- Merging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_what_parts_sent_is_merged_by_their_sizes(rms: bool) -> None:
    from planish.operators import call

    ops, axes, options = torch.ops.planish, call.pack_axes([1], [1]), call.pack_options(rms=rms)
    make = torch.Generator().manual_seed(1)
    whole = torch.randn(5, 12, generator=make, dtype=torch.float64) * 3 + 1e6
    sent = []
    for part in whole.split([3, 0, 8, 1], 1):
        mean = torch.zeros(5, dtype=torch.float64) if rms or not part.numel() else part.mean(1)
        statistics = [] if rms else [mean]
        m2 = (part - mean[:, None]).square().sum(1)
        sent.append(torch.cat([mean.new_tensor([part.shape[1]]), *statistics, m2]))
    messages = torch.stack(sent)
    y, mean, rstd, shares = ops.norm_part_apply(whole, messages, None, None, axes, options, 0.5)
    center = torch.zeros(5, 1) if rms else whole.mean(1, True)
    wanted = ((whole - center).square().mean(1, True) + 0.5).rsqrt()
    torch.testing.assert_close(rstd, wanted, rtol=1e-13 if rms else 1e-8, atol=0)
    assert (mean is None) == rms
    if not rms:
        torch.testing.assert_close(mean, center, rtol=1e-15, atol=0)
    assert shares.tolist() == pytest.approx([3 / 12, 0, 8 / 12, 1 / 12])
    torch.testing.assert_close(y, (whole - center) * rstd)
    sums = (shares[:, None] * messages[:, 1:]).sum(0).view(-1, 5, 1)
    c1, c2 = 0 if rms else sums[0], sums[-1]
    dy = torch.randn(5, 12, generator=make, dtype=torch.float64)
    known = shares, rstd, mean, None
    dx = ops.norm_part_backward_apply(dy, whole, messages[:, 1:], *known, axes, options)
    torch.testing.assert_close(dx, rstd * (dy - c1 - y * c2))


def test_messages_that_are_no_statistics_of_these_rows_are_refused() -> None:
    from planish.operators import call

    x, axes = torch.randn(5, 8), call.pack_axes([1], [1])
    ops, options = torch.ops.planish, call.pack_options(rms=True)
    sent = torch.rand(2, 6, dtype=torch.float64)
    for wrong in (sent.float(), sent[:, :5], sent.flatten(), sent.T.contiguous().T, sent[:0]):
        with pytest.raises(RuntimeError, match="a dense row of f64 for each part"):
            ops.norm_part_apply(x, wrong, None, None, axes, options, 1e-5)
    rstd = torch.ones(5, 1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="one f64 for each part"):
        known = sent[0], rstd, None, None
        ops.norm_part_backward_apply(x, x, sent[:, 1:], *known, axes, options)
