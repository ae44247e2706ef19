"""`checkpoint.every_steps` keeps its word in every way to train, and changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import trained_on
from unit.distributed.test_full_graph_on_ranks import trained_on as trained_full_on
from unit.training.test_full_graph_runs import Sums

from hyrt.config import build_config
from hyrt.telemetry.events import CheckpointWritten, EpochEnded, EvaluationFinished, Event, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.open_graph import link_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

GRAPH = random_graph(120, features=12)
STEPS = 12
# Four steps per epoch: steps 4, 8 and 12 end epochs.
BATCHES = {
    "data": {"batch_size": -(-len(GRAPH.split("train")) // 4)},
    "train": {"epochs": 3},
    "sampler": {"fanout": [3, 2]},
}
WHOLE = {"sampler": {"kind": "full"}, "train": {"epochs": STEPS}}
LINKS = {"objective": "links", "lr": 0.01}
MODES: dict[str, dict[str, Any]] = {
    "mini-batches": BATCHES,
    "full graph": WHOLE,
    "full graph in tiles": {**WHOLE, "fullgraph": {"chunks": 3}},
    "links": {**BATCHES, "train": {"epochs": 3, **LINKS}},
    "links of a full graph": {**WHOLE, "train": {"epochs": STEPS, **LINKS}},
    "own module": BATCHES,
    "own module, full graph": WHOLE,
    "ranks": BATCHES,
    "ranks in time steps": {**BATCHES, "distributed": {"strategy": "hopgnn", "time_steps": 2}},
    "ranks, full graph": WHOLE,
    "ranks, full graph in tiles": {**WHOLE, "fullgraph": {"chunks": 2}},
}


def train(
    mode: str,
    folder: Path | None = None,
    *,
    should_stop: Callable[[list[Event]], bool] = lambda heard: False,
    **checkpoint: Any,
) -> tuple[list[Event], Any]:
    """Begin a run, or continue from the newest checkpoint in the folder."""
    own = Sums() if mode.startswith("own module") else None
    settings = {
        "model": {"kind": "gcn", "hidden": 8, "layers": 2, "dropout": 0.3},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        "evaluate": {"every": 2},
        **MODES[mode],
        "checkpoint": checkpoint,
    }
    graph = GRAPH
    if mode.startswith("links"):
        graph = link_graph(build_config(settings), GRAPH)
        assert graph.links is not None
        if mode == "links":
            settings["data"] = {"batch_size": -(-len(graph.links.split.train) // 4)}
    if mode.startswith("ranks"):
        homes = np.arange(GRAPH.num_vertices) % 2
        work = trained_full_on if "full graph" in mode else trained_on
        found = results_of(2, lambda ranks: work(ranks, GRAPH, homes, settings, checkpoints=folder))
        return found[0][1], found[0][0]
    heard: list[Event] = []
    config = build_config(settings, custom_model=own is not None)
    training = Training(
        build_run(
            config,
            graph,
            prepared=PreparedRun(config, graph, own),
            emit=heard.append,
            checkpoints=folder,
            should_stop=lambda: should_stop(heard),
        )
    )
    if folder is not None and any(folder.glob("step-*")):
        training.resume(load_newest_checkpoint(folder, pytest.fail))
    return heard, training.run()


def saved(heard: list[Event]) -> list[int]:
    return [event.step for event in heard if isinstance(event, CheckpointWritten)]


def kept(folder: Path) -> list[int]:
    return sorted(int(path.name[5:13]) for path in folder.glob("step-*"))


def losses(heard: list[Event]) -> list[float]:
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


def weights(result: Any) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in result.model.state_dict().values()])


@pytest.mark.parametrize("mode", MODES)
def test_due_steps_have_checkpoints_from_which_runs_resume(mode: str, tmp_path: Path) -> None:
    plain, wanted = train(mode)
    heard, found = train(mode, tmp_path, every_steps=3, every_epochs=0, keep=4)
    assert len(losses(plain)) == STEPS
    # 12 ends an epoch of mini-batches, and every step one of a full graph.
    assert saved(heard) == kept(tmp_path) == [3, 6, 9, 12]
    assert losses(heard) == losses(plain)
    assert torch.equal(weights(found), weights(wanted))
    for path in tmp_path.glob("step-*"):
        # The run was killed in step 8.
        if int(path.name[5:13]) > 6:
            path.unlink()
    heard, found = train(mode, tmp_path, every_steps=3, every_epochs=0, keep=2)
    assert saved(heard) == [9, 12]
    assert kept(tmp_path) == [9, 12]
    assert losses(heard) == losses(plain)[6:]
    assert torch.equal(weights(found), weights(wanted))
    assert found.metrics == wanted.metrics


@pytest.mark.parametrize("mode", ["mini-batches", "full graph"])
def test_due_steps_are_counted_from_the_start_of_the_run(mode: str, tmp_path: Path) -> None:
    for count, wanted in ((4, [3, 4]), (3, [6, 7]), (12, [9, 12])):

        def stops(heard: list[Event], count: int = count) -> bool:
            return len(losses(heard)) >= count

        heard, _ = train(mode, tmp_path, should_stop=stops, every_steps=3, every_epochs=0, keep=99)
        assert saved(heard) == wanted
    assert kept(tmp_path) == [3, 4, 6, 7, 9, 12]


@pytest.mark.parametrize(
    ("every_steps", "every_epochs", "wanted"),
    [
        (4, 1, [4, 8, 12]),
        (2, 1, [2, 4, 6, 8, 10, 12]),
        (3, 2, [3, 6, 8, 9, 12]),
        (8, 0, [8, 12]),
        (5, 1, [4, 5, 8, 10, 12]),
        (0, 2, [8, 12]),
        (100, 0, [12]),
    ],
)
def test_one_checkpoint_serves_a_due_step_and_the_end_of_an_epoch(
    every_steps: int, every_epochs: int, wanted: list[int], tmp_path: Path
) -> None:
    settings = {"every_steps": every_steps, "every_epochs": every_epochs, "keep": 2}
    heard, _ = train("mini-batches", tmp_path, **settings)
    assert saved(heard) == wanted
    assert kept(tmp_path) == wanted[-2:]
    # What is due after the epoch's evaluation knows what it came to.
    for at, event in enumerate(heard):
        if isinstance(event, CheckpointWritten) and event.step in (8, 12):
            assert isinstance(heard[at - 1], EvaluationFinished)


@pytest.mark.parametrize("stop_at", [EpochEnded, CheckpointWritten])
@pytest.mark.parametrize("every_epochs", [0, 1])
def test_a_run_that_is_stopped_writes_no_step_twice(
    stop_at: type[Event], every_epochs: int, tmp_path: Path
) -> None:
    def stops(heard: list[Event]) -> bool:
        return any(isinstance(event, stop_at) and event.step == 8 for event in heard)

    written: list[int] = []
    settings = {"every_steps": 2, "every_epochs": every_epochs, "keep": 99}
    for should_stop in (stops, lambda heard: False):
        heard, _ = train("mini-batches", tmp_path, should_stop=should_stop, **settings)
        written += saved(heard)
    # A run that is stopped before the evaluation of an epoch adds what that comes to.
    again = [8] if stop_at is EpochEnded else []
    assert written == sorted([2, 4, *again, 6, 8, 10, 12])
    assert kept(tmp_path) == [2, 4, 6, 8, 10, 12]
