"""Ranks on one machine find each other's rows in the files of their parts, and read them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from unit.distributed.ranks_in_threads import results_of

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.local_rows import SameHostRows, map_same_host_rows
from hyrt.graph.partition.read_parts import open_part
from hyrt.graph.partition.write_parts import PartitionJob, write_parts

RANKS = 3


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    write_parts(PartitionJob("synthetic:tiny", folder, num_parts=RANKS, method="random"))
    return folder


def found(folder_of: Callable[[int], Path], then: Callable[[], None] = lambda: None) -> list[SameHostRows]:
    """What each rank finds; `then` is called when all have opened their parts."""
    opened = [open_part(folder_of(rank), rank) for rank in range(RANKS)]
    then()

    def work(ranks: DistributedContext) -> SameHostRows:
        return map_same_host_rows(str(folder_of(ranks.rank)), opened[ranks.rank], ranks)

    return results_of(RANKS, work)


def test_ranks_on_one_machine_map_the_rows_of_all(parts: Path) -> None:
    rows = [np.load(parts / f"part-000{number}" / "features.npy", "r+") for number in range(RANKS)]
    for rank, each in enumerate(found(lambda rank: parts)):
        assert list(each.group_leaders) == [0, 0, 0]
        assert each.rows.keys() == set(range(RANKS)) - {rank}
        for other, its in each.rows.items():
            np.testing.assert_array_equal(its.values, rows[other])
            # In the file's memory, and not in a copy of it.
            rows[other][0, 0] = rank + 10
            assert its.values[0, 0] == rank + 10
        assert "(0, 1 and 2)" in each.notices[0]


def test_a_rank_with_a_copy_of_the_parts_is_asked_for_its_rows(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "copy")
    each = found(lambda rank: parts if rank < 2 else tmp_path / "copy")
    assert [list(one.group_leaders) for one in each] == [[0, 0, 2]] * RANKS
    assert [sorted(one.rows) for one in each] == [[1], [0], []]


def test_where_one_file_cannot_be_mapped_all_ranks_send(parts: Path) -> None:
    def cut() -> None:
        os.truncate(parts / "part-0001" / "features.npy", 20)

    for each in found(lambda rank: parts, cut):
        assert list(each.group_leaders) == [0, 1, 2]
        assert not each.rows
        assert not each.notices


def test_parts_that_make_a_block_are_in_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    write_parts(PartitionJob("synthetic:tiny", folder, num_parts=4, method="random"))

    def work(ranks: DistributedContext) -> SameHostRows:
        return map_same_host_rows(str(folder), open_part(folder, ranks.rank, num_blocks=2), ranks)

    for each in results_of(2, work):
        assert list(each.group_leaders) == [0, 1]
        assert not each.rows
