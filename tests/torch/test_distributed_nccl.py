"""The tests of several processes, over NCCL with a GPU for each rank: norms of which each rank has
a part, ShardedNorm, all_reduce_add_rms_norm, batch norms over ranks, DTensors, and small models
trained in the ways torch has. Their text is that of the other files, whose processes meet by gloo;
PLANISH_TEST_BACKEND=gloo has these meet by it, too. With fewer than two GPUs they are skipped, and
the reason says how many there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import draw, over, run
from test_distributed_batch import (
    test_dtensors_gather_no_batch,
    test_parts_make_the_norm_of_the_whole_batch,
)
from test_distributed_norms import (
    test_add_rms_norm,
    test_group_norm_of_sharded_pixels_and_channels,
    test_parts_make_the_norm_of_the_whole_row,
    test_queries_and_keys_across_heads,
    test_the_same_bits_again,
    test_weight_offset,
)
from test_distributed_reduced import (
    test_a_second_derivative_of_a_reduced_norm_raises,
    test_all_reduce_add_rms_norm,
)
from test_distributed_styles import (
    test_a_compiled_model_has_its_sharded_norm_in_one_graph,
    test_an_olmo_2_with_sharded_heads,
    test_distributed_checkpoints_of_a_sharded_norm,
    test_sharded_norm_behind_a_column_parallel_projection,
)
from test_distributed_tensors import (
    test_a_sharded_normalised_axis_costs_one_exchange_each_way,
    test_a_weight_norm_is_sharded_without_a_gather,
    test_group_norm_by_batch_groups_and_pixels,
    test_sharded_heads_and_quantised_rows_need_no_collective,
    test_sharded_rows_need_no_collective,
)
from test_distributed_training import (
    test_gradients_of_replicated_parameters_are_equal_bit_for_bit,
    test_losses_are_those_of_one_process,
)
from test_sync_batch_norm import test_several_processes_differ_from_one as test_sync_batch_norm
from test_sync_batch_operators import (
    test_several_processes_differ_from_one as test_sync_batch_norm_of_torchs,
)

import planish
import torch
from torch import Tensor

__all__ = [
    "test_a_compiled_model_has_its_sharded_norm_in_one_graph",
    "test_a_second_derivative_of_a_reduced_norm_raises",
    "test_a_sharded_normalised_axis_costs_one_exchange_each_way",
    "test_a_weight_norm_is_sharded_without_a_gather",
    "test_add_rms_norm",
    "test_all_reduce_add_rms_norm",
    "test_an_olmo_2_with_sharded_heads",
    "test_distributed_checkpoints_of_a_sharded_norm",
    "test_dtensors_gather_no_batch",
    "test_gradients_of_replicated_parameters_are_equal_bit_for_bit",
    "test_group_norm_by_batch_groups_and_pixels",
    "test_group_norm_of_sharded_pixels_and_channels",
    "test_losses_are_those_of_one_process",
    "test_parts_make_the_norm_of_the_whole_batch",
    "test_parts_make_the_norm_of_the_whole_row",
    "test_queries_and_keys_across_heads",
    "test_sharded_heads_and_quantised_rows_need_no_collective",
    "test_sharded_norm_behind_a_column_parallel_projection",
    "test_sharded_rows_need_no_collective",
    "test_sync_batch_norm",
    "test_sync_batch_norm_of_torchs",
    "test_the_same_bits_again",
    "test_weight_offset",
]

BACKEND = os.environ.get("PLANISH_TEST_BACKEND", "nccl")
GPUS = torch.cuda.device_count()

if BACKEND == "nccl":
    if not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL", allow_module_level=True)
    if GPUS < 2:
        pytest.skip(f"two GPUs are needed; there are {GPUS}", allow_module_level=True)


@pytest.fixture(autouse=True)
def over_nccl() -> Iterator[None]:
    with over(BACKEND):
        yield


def test_ranks_meet_by_this_backend() -> None:
    assert run(2, dist.get_backend) == [BACKEND] * 2


# ---- CUDA graphs ---------------------------------------------------------------------------------


def _calls() -> dict[str, tuple[Any, ...]]:
    """Each with the sizes of its tensors."""
    pd, x, weight, images = planish.distributed, (64, 48), (48,), (2, 8, 6, 5)
    return {
        "layer_norm": (pd.layer_norm, x, weight, weight),
        "rms_norm": (pd.rms_norm, x, weight),
        "add_rms_norm": (pd.add_rms_norm, x, x, weight),
        "qk_norm": (lambda *given: pd.qk_norm(*given, 1e-6), x, x, weight, weight),
        "group_norm": (lambda x, *w: pd.group_norm(x, 2, *w), images, (8,), (8,)),
        "batch_norm": (lambda x, *w: pd.batch_norm(x, None, None, *w, True), images, (8,), (8,)),
        "all_reduce_add_rms_norm": (pd.all_reduce_add_rms_norm, x, (32, 48), weight),
    }


def _captured(name: str) -> bool:
    """Whether a CUDA graph of a forward and backward has the bits of eager calls, for tensors that
    came after it was captured."""
    function, *sizes = _calls()[name]
    given = [draw(*size).cuda() for size in sizes]

    def step() -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in given]
        found = function(*leaves)
        results = found if isinstance(found, tuple) else (found,)
        loss = sum((y * y).sum() for y in results)
        return [*(y.detach() for y in results), *torch.autograd.grad(loss, leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = step()
    for t in given:
        t.mul_(1.5)
    graph.replay()
    return all(map(torch.equal, kept, step()))


@pytest.mark.skipif(BACKEND != "nccl", reason="CUDA graphs capture what NCCL does")
@pytest.mark.parametrize("name", _calls())
def test_cuda_graphs_capture_sharded_calls(name: str) -> None:
    assert run(2, _captured, name) == [True] * 2
