"""Devices that hand rows on: who gets which from whom, that none waits for ever, and what is copied once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hyrt_perfmodel.chunk_schedule import assign_columns

from hyrt.fullgraph.chunk_kernels import DeviceGroup, MemberDeviceError
from hyrt.fullgraph.device_relay import DeviceRelay, RelayedRows, RowReader, build_relays, plan_forwarding
from hyrt.fullgraph.matrix_pool import HostMemoryBudget, MatrixPool

grids = st.integers(1, 4).flatmap(
    lambda devices: st.tuples(
        st.just(devices),
        st.lists(st.integers(1, 3), min_size=devices, max_size=devices),
        st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=7, max_size=7),
    )
)


def test_devices_that_reach_each_other_are_chains_in_their_order() -> None:
    near = {(1, 0), (3, 1), (4, 2)}
    assert build_relays(5, lambda one, other: (one, other) in near) == ((0, 1, 3), (2, 4))
    assert build_relays(2, lambda one, other: False) == ((0,), (1,))
    assert build_relays(0, lambda one, other: True) == ()


@given(grids)
def test_the_host_is_read_once_by_devices_that_need_the_same_rows_at_the_same_time(
    drawn: tuple[int, list[int], list[list[bool]]],
) -> None:
    devices, shares, wanted = drawn
    columns = assign_columns(len(wanted), tuple(map(float, shares)))
    found = plan_forwarding(range(devices), columns, range(5), lambda column, read: wanted[column][read])
    owner = {column: device for device, mine in enumerate(columns) for column in mine}
    for together in zip_longest(*columns):
        there = [column for column in together if column is not None]
        for read in range(5):
            needing = [column for column in there if wanted[column][read]]
            from_host = [column for column in needing if (column, read) not in found]
            assert from_host == needing[:1]
            for column in needing[1:]:
                source, same = found[column, read]
                assert same == read
                assert source in needing
                assert owner[source] < owner[column]
    assert all(wanted[column][read] for column, read in found)
    # A device hands rows on to one other device.
    assert len(set(found.values())) == len(found)


class Kernels:
    """The calls of `ChunkKernels` that bring and offer rows, over arrays of numpy."""

    def __init__(self) -> None:
        self.read = np.zeros(0, np.float32)
        self.calls: list[str] = []

    def put(self, place: str, rows: np.ndarray) -> None:
        self.calls.append("put")
        self.read = rows.copy()

    def publish_rows(self) -> np.ndarray:
        return self.read

    def copy_published_rows(self, offered: np.ndarray, num_rows: int, width: int) -> str:
        self.calls.append("take")
        self.read = offered[:num_rows, :width].copy()
        return "through"

    def hold_rows(self, until: str) -> None:
        self.calls.append(f"kept until {until}")

    def wait(self) -> None:
        self.calls.append("wait")


ROWS = [np.full((3, 2), number, np.float32) for number in range(4)]
DEALT = [[0, 3], [1], [2, 5]]
SOURCES = plan_forwarding((0, 1, 2), DEALT, range(4), lambda column, read: True)


@contextmanager
def entered(fails: bool) -> Iterator[None]:
    if fails:
        raise OSError("unplugged")
    yield


def three(failing: int = -1, entering: int = -1) -> tuple[list[Kernels], list[RowReader]]:
    """Three devices; one may fail in a column, or as soon as it is to begin."""
    kernels, chain = [Kernels() for _ in range(3)], DeviceRelay(SOURCES)
    readers = [RowReader(0, MatrixPool(HostMemoryBudget())) for _ in range(3)]

    def work(member: int, each: Kernels) -> None:
        rows = RelayedRows(chain, each, readers[member])  # type: ignore[arg-type]
        for column in DEALT[member]:
            for read in range(4):
                if (column, read) == (failing, 2):
                    raise OSError("unplugged")
                bring = partial(readers[member].read, each, ROWS[read], None)  # type: ignore[arg-type]
                rows.fetch((column, read), bring, 3, 2)
                assert np.array_equal(each.read, ROWS[read])
            rows.wait_until_copied()

    together = DeviceGroup(
        kernels,  # type: ignore[arg-type]
        [partial(entered, member == entering) for member in range(3)],
    )
    together.run(work, chain.part)  # type: ignore[arg-type]
    return kernels, readers


def test_three_devices_hand_rows_on_and_the_first_alone_copies_them_from_the_host() -> None:
    kernels, readers = three()
    assert [each.calls.count("put") for each in kernels] == [8, 0, 0]
    assert [each.calls.count("take") for each in kernels] == [0, 4, 8]
    # Of two that compute second columns, the first hands on to the third.
    assert [each.calls.count("kept until through") for each in kernels] == [8, 4, 0]
    assert [reader.handed_bytes for reader in readers] == [0, 4 * 24, 8 * 24]
    assert [reader.reads for reader in readers] == [8, 4, 8]


@pytest.mark.parametrize(("column", "member"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_a_device_that_fails_is_lost_and_those_that_wait_for_it_are_not(column: int, member: int) -> None:
    with pytest.raises(MemberDeviceError) as lost:
        three(failing=column)
    assert lost.value.member == member
    assert isinstance(lost.value.error, OSError)


@pytest.mark.parametrize("member", range(3))
def test_a_device_that_fails_before_it_begins_is_not_waited_for(member: int) -> None:
    with pytest.raises(MemberDeviceError) as lost:
        three(entering=member)
    assert lost.value.member == member
