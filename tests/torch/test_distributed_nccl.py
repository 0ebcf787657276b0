"""The tests of several processes, over NCCL with a GPU for each rank: norms of which each rank has
a part, all_reduce_add_rms_norm, batch norms over ranks and DTensors. Their text is that of the
other files, whose processes meet by gloo; PLANISH_TEST_BACKEND=gloo has these meet by it, too. With
fewer than two GPUs they are skipped, and the reason says how many there are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from distributed_support import over, run
from test_distributed_batch import (
    test_dtensors_gather_no_batch,
    test_parts_make_the_norm_of_the_whole_batch,
)
from test_distributed_norms import (
    test_add_rms_norm,
    test_all_reduce_add_rms_norm,
    test_group_norm_of_sharded_pixels_and_channels,
    test_parts_make_the_norm_of_the_whole_row,
    test_queries_and_keys_across_heads,
    test_the_same_bits_again,
    test_weight_offset,
)
from test_distributed_tensors import (
    test_a_sharded_normalised_axis_costs_one_exchange_each_way,
    test_a_weight_norm_is_sharded_without_a_gather,
    test_group_norm_by_batch_groups_and_pixels,
    test_sharded_heads_and_quantised_rows_need_no_collective,
    test_sharded_rows_need_no_collective,
)
from test_sync_batch_norm import test_several_processes_differ_from_one as test_sync_batch_norm
from test_sync_batch_operators import (
    test_several_processes_differ_from_one as test_sync_batch_norm_of_torchs,
)

import torch

__all__ = [
    "test_a_sharded_normalised_axis_costs_one_exchange_each_way",
    "test_a_weight_norm_is_sharded_without_a_gather",
    "test_add_rms_norm",
    "test_all_reduce_add_rms_norm",
    "test_dtensors_gather_no_batch",
    "test_group_norm_by_batch_groups_and_pixels",
    "test_group_norm_of_sharded_pixels_and_channels",
    "test_parts_make_the_norm_of_the_whole_batch",
    "test_parts_make_the_norm_of_the_whole_row",
    "test_queries_and_keys_across_heads",
    "test_sharded_heads_and_quantised_rows_need_no_collective",
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
