"""Random configurations have equal bits however they run: the short form of tools/faults/equal_bits.py."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compare_runs import compare_runs, find_unequal
from equal_bits import BitCheck, draw_numbered, start_servers
from forked_runs import ForkedRuns
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from polled_stops import POLLS, STOP_AT_POLL
from random_configurations import FAMILIES, draw_configuration

from hyrt.nn.models.model_kind import MODELS
from hyrt.sampling.sampler_settings import SAMPLERS

EACH = 2
"""The number of configurations of each family; together ten."""


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BitCheck]:
    folder = tmp_path_factory.mktemp("bits")
    with start_servers(folder) as (here, there):
        yield BitCheck(folder, here, there)


# The time for kernels that a new checkout compiles, and for shrinking a configuration that fails.
@pytest.mark.limit(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_configurations_have_equal_bits(check: BitCheck, family: str) -> None:
    refusals = []

    @settings(
        max_examples=EACH,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.randoms(use_true_random=False))
    def train(draw: random.Random) -> None:
        configuration = draw_configuration(draw, family)
        outcome = check.check(configuration)
        if outcome.refusal:
            refusals.append(outcome.refusal)
        assume(not outcome.refusal)
        assert outcome.problems == [], str(configuration)

    train()
    assert len(refusals) <= EACH, refusals


IN_TILES = [
    *(
        "run",
        "--name",
        "run",
        "--quiet",
        "--data",
        "synthetic:tiny,vertices=301,features=5",
        "--model",
        "gcn",
    ),
    *("--devices", "cpu", "--full-graph", "fullgraph.chunks=6", "train.epochs=3", "model.layers=3"),
]


def test_a_poll_is_a_place_within_a_step(runs: ForkedRuns, tmp_path: Path) -> None:
    """The place is the same in every process, and the run resumes there with the same bits."""
    folders = [tmp_path / name for name in ("whole", "stopped", "stopped again")]
    for folder in folders:
        folder.mkdir()
    code, _ = runs.call(IN_TILES, folders[0], **{POLLS: str(folders[0] / "polls")})
    assert code == 0
    polls = int((folders[0] / "polls").read_text())
    # Three steps of five passes over six columns.
    assert polls > 3 * 5 * 6
    for folder in folders[1:]:
        more = {POLLS: str(folder / "polls"), STOP_AT_POLL: str(polls // 2)}
        code, _ = runs.call(IN_TILES, folder, **more)
        assert code == 128 + signal.SIGINT
    unfinished = [list((folder / "runs" / "run" / "checkpoints").glob("unfinished-*")) for folder in folders]
    assert [len(files) for files in unfinished] == [0, 1, 1]
    assert unfinished[1][0].name == unfinished[2][0].name
    code, _ = runs.call(["run", "--quiet", "--resume", "runs/run"], folders[1])
    assert code == 0
    assert compare_runs(folders[1] / "runs" / "run", folders[0] / "runs" / "run") == []


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "num_unequal"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), 0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 1),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), 1),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), 1),
        (torch.ones(2, 3), torch.ones(3, 2), 1),
        (torch.ones(2, 3).t(), torch.ones(3, 2), 0),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), 0),
        ({"a": [1.0, NAN]}, {"a": [1.0, NAN]}, 0),
        ({"a": [1.0, 0.0], "b": "c"}, {"a": [1.0 + 2**-52, -0.0], "b": "d"}, 3),
        ({"a": 1}, {"b": 1}, 1),
        ([1, 2], [1], 1),
        (1, 1.0, 1),
        (None, 0.0, 1),
    ],
)
def test_values_are_compared_in_their_bits(one: object, other: object, num_unequal: int) -> None:
    assert len(find_unequal(one, other)) == num_unequal


def test_numbered_configurations_are_reproducible_and_cover_every_choice() -> None:
    drawn = [draw_numbered(0, number) for number in range(400)]
    assert drawn == [draw_numbered(0, number) for number in range(400)]
    kinds = {kind for each in drawn for kind in each.kinds}
    expected = {*FAMILIES, *(f"model {name}" for name in MODELS.entries_by_name())}
    expected |= {f"sampler {name}" for name in SAMPLERS.entries_by_name()}
    assert expected <= kinds
