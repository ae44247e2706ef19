"""How large a task may be, against words counted by hand and by brute force over the steps of a launch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_devices.fpga.tasks import Shortage, lay_out
from hyrt_hls.arena_limits import bank_words, layer_records, needed_words, num_tasks
from hyrt_perfmodel.workload import Workload, proportional_workload


def test_one_layer_by_hand() -> None:
    """100 targets of 40 -> 7 values, concatenated, on 4 banks: 200 rows of 3 words, 100 rows of 1."""
    work = Workload(vertices=(500.0, 100.0), edges=(300.0,), features=(40, 7), concat=True)
    # Sums: combined and the gradient of the output until the weights' gradient; rows: the output.
    assert needed_words(work, 4) == (50 * 3 + 25, 25)


def brute_force(work: Workload, pes: int) -> tuple[int, int]:
    """Walk through a launch and count what is held at each step."""
    parts = 2 if work.concat else 1

    def words(rows: float, width: int) -> int:
        return -(-int(rows) // pes) * -(-width // 16)

    layers = range(1, work.layers + 1)
    combined = {layer: words(work.vertices[layer] * parts, work.features[layer - 1]) for layer in layers}
    output = {layer: words(work.vertices[layer], work.features[layer]) for layer in layers}
    sums: dict[str, int] = {}
    rows: dict[str, int] = {}
    most = [0, 0]

    def look() -> None:
        most[0] = max(most[0], sum(sums.values()))
        most[1] = max(most[1], sum(rows.values()))

    for layer in layers:
        sums[f"combined {layer}"] = combined[layer]
        look()
        rows[f"output {layer}"] = output[layer]
        look()
    last = work.layers
    sums[f"gradient {last}"] = output[last]
    look()
    del rows[f"output {last}"]
    for layer in reversed(layers):
        look()
        rows.pop(f"output {layer}", None)  # the mask was its last use
        look()
        del sums[f"combined {layer}"]  # after the gradient of the weights
        if layer > 1:
            rows[f"combined gradient {layer}"] = combined[layer]
            look()
            del sums[f"gradient {layer}"]
            sums[f"gradient {layer - 1}"] = output[layer - 1]
            look()
            del rows[f"combined gradient {layer}"]
    return most[0], most[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=4),
    st.lists(st.integers(1, 100), min_size=4, max_size=4),
    st.booleans(),
    st.sampled_from([1, 2, 3, 8]),
)
def test_words_are_those_of_a_launch(counts: list[int], widths: list[int], concat: bool, pes: int) -> None:
    vertices = tuple(float(count) for count in sorted(counts, reverse=True))
    layers = len(vertices) - 1
    work = Workload(
        vertices=vertices, edges=(1.0,) * layers, features=tuple(widths[: layers + 1]), concat=concat
    )
    assert needed_words(work, pes) == brute_force(work, pes)


WORK = Workload(
    vertices=(40_000.0, 8_000.0, 1024.0), edges=(80_000.0, 10_000.0), features=(100, 256, 47), concat=True
)
AT = proportional_workload(WORK, 1024)


def test_tasks_are_halved_until_they_fit() -> None:
    for arena_words in (4096, 16_384, 65_536, 2**20):
        count = num_tasks(AT, 1024, 8, arena_words)
        room = bank_words(8, arena_words)
        sums, rows = needed_words(AT(1024 / count), 8)
        assert sums <= room.sums
        assert rows <= room.rows
        if count > 1:
            sums, rows = needed_words(AT(1024 / count * 2), 8)
            assert sums > room.sums or rows > room.rows
    assert count == 1


def test_one_target_that_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"one target needs [\d,]+ words of sums and [\d,]+ of rows in each of 8 banks"
    ):
        num_tasks(AT, 1024, 8, 16)


def test_limits() -> None:
    found = bank_words(8, 32_768)
    assert (found.sums, found.rows) == (20_480, 12_288)


@dataclass(frozen=True)
class Arena:
    pes: int
    arena_words: int


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4000), min_size=2, max_size=4),
    st.lists(st.integers(1, 300), min_size=4, max_size=4),
    st.booleans(),
    st.integers(1, 8),
    st.integers(2, 20_000),
)
def test_the_devices_layout(
    counts: list[int], widths: list[int], concat: bool, pes: int, arena_words: int
) -> None:
    """What the devices lay out has room here; and what has a quarter of room to spare here, they lay out."""
    vertices = tuple(float(count) for count in sorted(counts, reverse=True))
    layers = len(vertices) - 1
    work = Workload(
        vertices=vertices, edges=(1.0,) * layers, features=tuple(widths[: layers + 1]), concat=concat
    )
    sums, rows = needed_words(work, pes)
    room = bank_words(pes, arena_words)
    placed = not isinstance(lay_out(layer_records(work), Arena(pes, arena_words)), Shortage)
    if placed:
        assert sums <= room.sums
        assert rows <= room.rows
    else:
        assert sums * 1.25 > room.sums or rows * 1.25 > room.rows


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (
            Workload(vertices=(9, 1), edges=(9,), features=(8193, 4), concat=False),
            "support rows of at most 8192",
        ),
        (
            Workload(vertices=(9, 1), edges=(9,), features=(4, 8193), concat=False),
            "support rows of at most 8192",
        ),
        (
            Workload(vertices=(9, 1), edges=(9,), features=(4097, 4), concat=True),
            "weights of at most 8192 rows",
        ),
        (Workload(vertices=(9,) * 10, edges=(9,) * 9, features=(4,) * 10, concat=True), "at most 8 layers"),
    ],
)
def test_models_beyond_a_trainer(work: Workload, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        needed_words(work, 8)


def test_no_design() -> None:
    with pytest.raises(ValueError, match="pes and arena_words must be at least 1, got 0 and 5"):
        bank_words(0, 5)
