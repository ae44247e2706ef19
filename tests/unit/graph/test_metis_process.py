"""METIS in its process: what it finds, and that nothing wrong comes back where it is interrupted."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from graphs import random_graph

from hyrt.errors import DataError
from hyrt.graph.partition import metis_parts, metis_process
from hyrt.graph.partition.metis_parts import MetisParts, fill_empty_parts
from hyrt.graph.partition.metis_process import run_metis
from hyrt.graph.topology import Topology

pymetis = pytest.importorskip("pymetis")

ANSWER = "run_metis_child()\n"


def test_parts_are_those_that_metis_finds_here() -> None:
    topology = random_graph(300, seed=3, symmetric=True).topology
    loops = topology.indices == np.repeat(np.arange(300), topology.in_degrees)
    assert not loops.any()
    weights = topology.in_degrees + 1
    adjacency = pymetis.CSRAdjacency(topology.indptr, topology.indices.astype(np.int64))
    options = pymetis.Options(seed=5, niter=10)
    _, found = pymetis.part_graph(6, adjacency, vweights=weights, recursive=False, options=options)
    ours = run_metis(topology.indptr, topology.indices, weights, 6, seed=5, niter=10)
    np.testing.assert_array_equal(ours, found)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        # METIS itself would take the signal, and give back what it has.
        (
            "import os; os.kill(os.getpid(), signal.SIGTERM)",
            r"METIS failed before .* \(interrupted\)",
        ),
        ("import os; os.kill(os.getpid(), signal.SIGKILL)", "METIS was killed by signal SIGKILL before"),
        ("raise SystemExit('no room')", r"METIS failed before .* \(no room\)"),
    ],
)
def test_what_interrupts_metis_is_an_error(
    before: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metis_process._START.endswith(ANSWER)
    monkeypatch.setattr(metis_process, "_START", metis_process._START.replace(ANSWER, f"{before}\n{ANSWER}"))
    handler = signal.getsignal(signal.SIGTERM)
    # More than a pipe holds.
    count = 20_000
    ring = (np.arange(count)[:, None] + [-1, 1]) % count
    with pytest.raises(DataError, match=message):
        run_metis(np.arange(0, 2 * count + 1, 2), ring.ravel(), np.ones(count, np.int64), 4)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_empty_parts_get_halves_of_the_heaviest() -> None:
    homes = np.array([0, 0, 0, 3, 0, 0, 3, 0])
    weights = np.array([1, 9, 1, 2, 1, 1, 2, 5])
    found = fill_empty_parts(homes, weights, 5)
    # Of 18 part 0 gives 8 to part 1 and of the rest 9 to part 2, in a vertex; part 1 gives 5 to part 4.
    np.testing.assert_array_equal(found, [0, 2, 1, 3, 1, 1, 3, 4])
    for num_parts in (1, 5, 8):
        found = fill_empty_parts(np.zeros(8, np.int32), weights, num_parts)
        assert np.bincount(found, minlength=num_parts).min() >= 1
        assert len(np.unique(found)) == num_parts


def test_each_seed_gives_parts_of_its_own() -> None:
    """The C library's generator draws the same from 0 and 1, and METIS takes 32 bits of a seed."""
    topology = random_graph(300, seed=3, symmetric=True).topology
    nobody = np.zeros(topology.num_vertices, np.bool_)
    found = {MetisParts().homes(topology, nobody, 8, seed).tobytes() for seed in (0, 1, 2, 2**40 + 7)}
    assert len(found) == 4
    assert np.array_equal(*(MetisParts().homes(topology, nobody, 8, 1) for _ in range(2)))


def in_two(*first: range) -> np.ndarray:
    """Which of two parts each of 12 vertices is in."""
    homes = np.ones(12, np.int32)
    for each in first:
        homes[each] = 0
    return homes


# Four of twelve vertices of a ring are to be trained on, and this is how much the larger part has over the
# mean of them, and of edges.
ALL_TRAINING = in_two(range(4))  # 1, and 1/3
EVEN_ENOUGH = in_two(range(3), range(4, 7))  # 1/2, and 0
TEN = in_two(range(3), range(4, 11))  # 1/2, and 2/3
ELEVEN = in_two(range(3), range(4, 12))  # 1/2, and 5/6
ALL_BUT_ONE = in_two(range(11))  # 1, and 5/6


ONE_OF_ONE = in_two(range(6))  # 1, of which no parts could be without any, and 0


@pytest.mark.parametrize(
    ("answers", "num_training", "taken"),
    [
        ([EVEN_ENOUGH], 4, 0),
        ([ALL_TRAINING, EVEN_ENOUGH], 4, 1),
        ([ALL_TRAINING, ELEVEN, TEN, ALL_BUT_ONE], 4, 2),
        ([ALL_BUT_ONE], 0, 0),
        ([ONE_OF_ONE], 1, 0),
    ],
)
def test_training_vertices_weigh_less_until_parts_are_even(
    answers: list[np.ndarray], num_training: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = np.sort((np.arange(12)[:, None] + [-1, 1]) % 12)
    topology = Topology(np.arange(0, 25, 2), ring.ravel().astype(np.int32))
    asked: list[list[int]] = []

    def answer(
        pointers: np.ndarray, neighbors: np.ndarray, weights: np.ndarray, num_parts: int, **options: int
    ) -> np.ndarray:
        asked.append([int(weights[0]), int(weights[-1])])
        return answers[len(asked) - 1]

    monkeypatch.setattr(metis_parts, "run_metis", answer)
    found = MetisParts().homes(topology, np.arange(12) < num_training, 2, seed=0)
    np.testing.assert_array_equal(found, answers[taken])
    # 1024 for its edges. Training vertices share as much as all edges weigh, then a quarter of it, and so on.
    together = 12 * 1024
    shares = (together, together // 4, together // 16, 0) if num_training else (0,)
    of_training = [1024 + share // max(1, num_training) for share in shares]
    assert asked == [[each, 1024] for each in of_training[: len(answers)]]


@pytest.mark.parametrize(
    ("amounts", "homes", "over"),
    [
        ([9, 1, 1, 1], [0, 1, 1, 1], 0.0),  # The first cannot be divided,
        ([9, 1, 1, 1], [0, 0, 0, 0], 0.5),  # and need not have company: 12 for 9, where the mean is 6.
        ([1, 1, 1, 0], [0, 0, 1, 1], 0.0),  # One of two parts has two of three,
        ([1, 1, 1, 0], [0, 0, 0, 1], 2 / 3),  # and here has all of them: 3 for 2, where the mean is 1.5.
        ([0, 0, 0, 0], [0, 0, 1, 1], 0.0),
    ],
)
def test_what_no_parts_could_have_evenly_does_not_count(
    amounts: list[int], homes: list[int], over: float
) -> None:
    found = metis_parts._needlessly_over(np.array(homes), np.array(amounts), 2)
    assert found == pytest.approx(over)
