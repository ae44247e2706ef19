"""The training loop, stopped at its odd places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from graphs import random_graph

from hyrt.api import load
from hyrt.config import build_config
from hyrt.errors import CheckpointError, ConfigError, DataWarning, StageError, UnsupportedModelError
from hyrt.graph.graph import Graph, VertexTable
from hyrt.graph.row_source import DenseFeatures
from hyrt.runtime.workers import current_workers
from hyrt.telemetry.events import (
    CheckpointWritten,
    EpochEnded,
    EvaluationFinished,
    Event,
    Notice,
    StepMetrics,
)
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import Checkpoint, load_newest_checkpoint
from hyrt.training.learner import TrainingState, build_optimizer
from hyrt.training.train import Training, TrainResult

GRAPH = load("synthetic:tiny")
STEPS = 5


class Run:
    """One process's part of a run, stopped when `stop_at` is heard."""

    def __init__(
        self,
        folder: Path | None,
        stop_at: type | None = None,
        resume: bool = False,
        graph: Graph = GRAPH,
        **train: Any,
    ) -> None:
        config = build_config({"data": {"batch_size": 240}, "train": {"epochs": 4, **train}})
        self.heard: list[Event] = []
        training = Training(
            build_run(
                config,
                graph,
                emit=self.heard.append,
                checkpoints=folder,
                should_stop=lambda: any(type(event) is stop_at for event in self.heard),
            )
        )
        if resume:
            assert folder is not None
            training.resume(newest(folder))
        self.result: TrainResult = training.run()

    def told(self) -> list[Any]:
        """Losses, epochs and evaluations, in order."""
        found: list[Any] = []
        for event in self.heard:
            match event:
                case StepMetrics():
                    found += event.losses
                case EpochEnded():
                    found.append((event.epoch, event.loss))
                case EvaluationFinished():
                    found.append((event.epoch, event.metrics, event.is_best))
        return found


def newest(folder: Path) -> Checkpoint:
    return load_newest_checkpoint(folder, pytest.fail)


def equal_models(one: Run, other: Run) -> bool:
    mine, yours = one.result.model.state_dict(), other.result.model.state_dict()
    return all(torch.equal(mine[key], yours[key]) for key in mine)


@pytest.mark.parametrize("stop_at", [StepMetrics, EpochEnded, EvaluationFinished, CheckpointWritten])
def test_stopped_at_any_event(stop_at: type, tmp_path: Path) -> None:
    whole = Run(None)
    first = Run(tmp_path, stop_at)
    assert first.result.status == "interrupted"
    evaluated = any(isinstance(event, EvaluationFinished) for event in first.heard)
    assert evaluated == (stop_at in (EvaluationFinished, CheckpointWritten))
    second = Run(tmp_path, resume=True)
    assert second.result.status == "finished"
    assert first.told() + second.told() == whole.told()
    assert equal_models(second, whole)
    assert second.result.metrics == whole.result.metrics


def test_other_feature_rows_are_refused(tmp_path: Path) -> None:
    Run(tmp_path, StepMetrics)
    values = np.zeros((GRAPH.num_vertices, GRAPH.num_features), np.float32)
    GRAPH.features.rows(np.arange(GRAPH.num_vertices, dtype=np.int32), values, current_workers())
    Run(tmp_path, StepMetrics, resume=True, graph=GRAPH.with_features(DenseFeatures(values * (1 + 1e-7))))
    for others in (values[:, ::-1].copy(), values[:, :-1].copy(), values * 1.001):
        with pytest.raises(CheckpointError, match="different feature rows"):
            Run(tmp_path, resume=True, graph=GRAPH.with_features(DenseFeatures(others)))


def test_each_step_in_a_process_of_its_own(tmp_path: Path) -> None:
    whole, told = Run(None), []
    for part in range(100):
        run = Run(tmp_path, StepMetrics, resume=part > 0)
        told += run.told()
        if run.result.status == "finished":
            break
    assert told == whole.told()
    assert equal_models(run, whole)


def test_the_loss_of_an_epoch_is_the_mean_over_its_targets() -> None:
    heard: list[Event] = []
    config = build_config({"data": {"batch_size": 500}, "train": {"epochs": 1}})
    Training(build_run(config, GRAPH, emit=heard.append)).run()
    losses = [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]
    # The last step is a short one.
    num_targets = len(GRAPH.split("train"))
    counts = [min(500, num_targets - start) for start in range(0, num_targets, 500)]
    assert 0 < counts[-1] < 500
    (ended,) = [event for event in heard if isinstance(event, EpochEnded)]
    assert ended.loss == pytest.approx(sum(map(float.__mul__, losses, map(float, counts))) / num_targets)


def rates(run: Run) -> list[float]:
    return [event.lr for event in run.heard if isinstance(event, StepMetrics)]


@pytest.mark.parametrize("given", [{"warmup_steps": 8}, {"warmup_epochs": 8 / STEPS}])
def test_the_learning_rate_warms_up_over_interruptions(tmp_path: Path, given: dict[str, float]) -> None:
    settings = {**given, "lr": 0.02, "clip_norm": 0.05, "schedule": "StepLR", "label_smoothing": 0.1}
    settings["schedule_options"] = {"step_size": 2, "gamma": 0.5}
    whole, told, heard = Run(None, **settings), [], []
    for part in range(100):
        run = Run(tmp_path, StepMetrics, resume=part > 0, **settings)
        told += run.told()
        heard += rates(run)
        if run.result.status == "finished":
            break
    assert told == whole.told()
    assert equal_models(run, whole)
    # A step group is a step here; the schedule halves the rate after two epochs, warm-up or not.
    wanted = [0.02 * 0.5 ** (step // STEPS // 2) * min(1, (step + 1) / 8) for step in range(4 * STEPS)]
    assert heard == rates(whole) == pytest.approx(wanted)


def test_the_schedule_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = {
        "lr": 0.02,
        "schedule": "ReduceLROnPlateau",
        "schedule_options": {"patience": 0, "threshold": 0.9999},
    }
    whole = Run(None, **settings)
    first = Run(tmp_path, CheckpointWritten, **settings)
    second = Run(tmp_path, resume=True, **settings)
    # The second epoch and those after it are no better by that much: the rate falls, but not after the first.
    assert rates(whole)[::STEPS] == pytest.approx([0.02, 0.02, 0.002, 2e-4])
    assert rates(first) + rates(second) == rates(whole)


def test_warm_up_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps and train\.warmup_epochs are both set"):
        build_config({"train": {"warmup_steps": 3, "warmup_epochs": 1}})


def warnings(run: Run) -> list[str]:
    return [event.text for event in run.heard if isinstance(event, Notice) and event.kind == "warning"]


def test_a_loss_that_has_diverged_is_warned_of_once(tmp_path: Path) -> None:
    settings = {"optimizer": "Adam", "lr": 30.0}
    run = Run(tmp_path, StepMetrics, **settings)
    assert warnings(run) == []
    # Also after a checkpoint the first loss is known.
    (text,) = warnings(Run(tmp_path, resume=True, **settings))
    assert "at step 1" in text
    assert "train.lr" in text
    assert "train.clip_norm" in text
    assert warnings(Run(None)) == []


@pytest.mark.parametrize(("scale", "is_too_large"), [(1e8, False), (1e15, True)])
def test_a_first_loss_may_be_large_but_not_beyond_all_bounds(scale: float, is_too_large: bool) -> None:
    assert isinstance(GRAPH.features, DenseFeatures)
    rows = DenseFeatures(np.full_like(GRAPH.features.values, scale))
    heard: list[Event] = []
    # Nothing is learned: the loss stays what it was at first.
    settings = {"train": {"epochs": 1, "lr": 1e-30, "optimizer": "SGD"}, "model": {"norm": "none"}}
    config = build_config({**settings, "data": {"batch_size": 240, "normalize": "none"}})
    Training(
        build_run(config, replace(GRAPH, vertices=replace(GRAPH.vertices, features=rows)), emit=heard.append)
    ).run()
    first = next(event for event in heard if isinstance(event, StepMetrics)).losses[0]
    assert scale / 100 < first < scale * 100
    said = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert [text for text in said if "at step 0, in the very first" in text] == (said if is_too_large else [])
    assert bool(said) == is_too_large


def test_the_default_number_of_epochs_stays_over_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyrt.config.settings._MIN_STEPS", 7 * STEPS)
    whole, told, parts = Run(None, epochs=None), [], 0
    while (
        run := Run(tmp_path, CheckpointWritten, resume=parts > 0, epochs=None)
    ).result.status != "finished":
        told += run.told()
        parts += 1
    assert told + run.told() == whole.told()
    assert [event.epoch for event in whole.heard if isinstance(event, EpochEnded)] == [*range(1, 8)]
    assert 1 < parts <= 7
    assert equal_models(run, whole)


def test_an_early_stop_stays_one(tmp_path: Path) -> None:
    # With this rate nothing is learned after the first step.
    settings = {"epochs": 30, "optimizer": "SGD", "lr": 1e-9, "patience": 3}
    first = Run(tmp_path, **settings)
    assert first.result.status == "early-stopped"
    assert first.result.summary["epochs"] == 4
    # As after a kill between the last checkpoint and summary.json.
    second = Run(tmp_path, resume=True, **settings)
    assert second.result.status == "early-stopped"
    assert second.told() == []
    assert second.result.metrics == first.result.metrics


def test_a_checkpoint_at_the_end_is_always_there(tmp_path: Path) -> None:
    config = build_config({"train": {"epochs": 2}, "checkpoint": {"every_epochs": 0}})
    training = Training(build_run(config, GRAPH, checkpoints=tmp_path))
    steps = training.run().summary["steps"]
    assert newest(tmp_path).step == steps
    assert len(list(tmp_path.iterdir())) == 1


def test_resuming_says_where(tmp_path: Path) -> None:
    Run(tmp_path, StepMetrics)
    notices = [event.text for event in Run(tmp_path, resume=True).heard if isinstance(event, Notice)]
    assert notices == ["continuing after step 1"]


def test_a_run_that_has_more_epochs_than_it_is_resumed_for_says_so(tmp_path: Path) -> None:
    ended = Run(tmp_path, CheckpointWritten, epochs=3)
    assert [event.epoch for event in ended.heard if isinstance(event, EpochEnded)] == [1]
    again = Run(tmp_path, resume=True, epochs=1)
    assert again.result.status == "finished"
    assert again.told() == []
    steps = newest(tmp_path).step
    left = f"nothing is left to train: train.epochs=1 ends after step {steps}"
    assert [event.text for event in again.heard if isinstance(event, Notice)] == [
        f"continuing after step {steps}",
        f"{left}. Resume with a larger train.epochs to continue training",
    ]


@pytest.mark.parametrize("classes", [1, 2])
def test_labels_of_one_class_are_warned_of(classes: int) -> None:
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        build_run(build_config({"train": {"epochs": 1}}), random_graph(60, classes=classes))
    said = [str(each.message) for each in caught if each.category is DataWarning]
    text = "random: all labels are of class 0, so there is nothing to learn: check the labels"
    assert said == ([text] if classes == 1 else [])


@pytest.mark.parametrize(
    ("trained", "text"),
    [
        ([0, 1, 2, 3], ""),
        (
            [0, 1, 3],
            "random: no training vertex is of class 2, so the model cannot learn to predict it: check "
            "train_mask, or choose another data.split",
        ),
        (
            [1, 2],
            "random: no training vertex is of classes 0, 3, so the model cannot learn to predict them: check "
            "train_mask, or choose another data.split",
        ),
        (
            [2],
            "random: all training vertices are of class 2, so there is nothing to learn: check "
            "train_mask, or choose another data.split",
        ),
    ],
)
def test_classes_without_training_vertices_are_told(trained: list[int], text: str) -> None:
    graph = random_graph(80, classes=4)
    masks = {**graph.masks, "train": graph.masks["train"] & np.isin(graph.labels, trained)}
    heard: list[Event] = []
    table = VertexTable(graph.features, graph.labels, masks)
    build_run(
        build_config({"train": {"epochs": 1}}), Graph("random", graph.topology, table), emit=heard.append
    )
    warned = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert warned == ([text] if text else [])


class Custom(torch.nn.Module):
    """One linear layer over the targets' own rows, behind a layer of the test's choice."""

    def __init__(self, extra: torch.nn.Module) -> None:
        super().__init__()
        self.extra = extra
        self.out = torch.nn.Linear(GRAPH.num_features, GRAPH.num_classes)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.extra(x[: blocks[-1].num_dst]))
        return scores


def train_custom(extra: torch.nn.Module, **settings: Any) -> None:
    config = build_config({"data": {"batch_size": 240}, "train": {"epochs": 1}, **settings})
    Training(build_run(config, GRAPH, model=Custom(extra))).run()


def test_batch_statistics_are_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"cpu:0 cannot train layer 'extra' \(BatchNorm1d\), .*use torch.nn.LayerNorm",
    ):
        train_custom(torch.nn.BatchNorm1d(GRAPH.num_features))


def test_a_global_dropout_is_refused_where_it_would_depend_on_the_split() -> None:
    train_custom(torch.nn.Dropout(0.5))
    with pytest.raises(
        ConfigError, match=r"layer 'extra' \(Dropout\) draws its mask from one random generator"
    ):
        train_custom(torch.nn.Dropout(0.5), devices=["cpu:0", "cpu:1"])


class DropsByFunction(torch.nn.Module):
    """Drops without a layer that says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=self.training)


def test_numbers_drawn_inside_forward_are_refused_where_they_would_depend_on_the_split() -> None:
    train_custom(DropsByFunction())
    with pytest.raises(
        StageError,
        match=r"Custom draws random numbers .* \(test_training\.py, line \d+, in forward\).* one device",
    ):
        train_custom(DropsByFunction(), devices=["cpu:0", "cpu:1"])
    train_custom(torch.nn.ELU(), devices=["cpu:0", "cpu:1"])


def test_the_callers_generator_and_thread_count_are_left_alone() -> None:
    model = Custom(torch.nn.Dropout(0.5))
    config = build_config({"data": {"batch_size": 240}, "train": {"epochs": 1}})
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    Training(build_run(config, GRAPH, model=model)).run()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_optimizers_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"train.optimizer='{name}'"):
        Training(build_run(build_config({"train": {"optimizer": name}}), GRAPH))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"optimizer": "Adamm"}, r"^train\.optimizer='Adamm' is not in torch\.optim: did you mean 'Adam'\?$"),
        (
            {"optimizer": "zz"},
            r"^train\.optimizer='zz' is not in torch\.optim: choose one of (?!.*(LBFGS|Sparse)).*SGD",
        ),
        (
            {"optimizer_options": {"beta": 1}},
            r"^train\.optimizer=Adam has no option 'beta': did you mean 'betas'",
        ),
        (
            {"optimizer_options": {"eps": -1.0}},
            r"^train\.optimizer=Adam cannot be created with lr=.*, eps=-1.0.*: Invalid",
        ),
        (
            {"optimizer_options": {"betas": 3}},
            r"^train\.optimizer=Adam cannot be created with .*betas=3.*; by default .*betas=\(0\.9, 0\.999\)",
        ),
        (
            # The model's kind brings the weight decay.
            {"optimizer": "Rprop"},
            r"^train\.optimizer=Rprop has no weight decay, but .* is 0\.0005: set train\.weight_decay=0$",
        ),
        (
            {"optimizer": "Optimizer"},
            r"^train\.optimizer='Optimizer' is not in torch\.optim: choose one of .*Adam",
        ),
        ({"schedule": "LRScheduler"}, r"^train\.schedule='LRScheduler' is not in torch\.optim\.lr_"),
        ({"schedule": "steplr"}, r"did you mean 'StepLR'\?$"),
        (
            {"schedule": "StepL"},
            r"^train\.schedule='StepL' is not in torch\.optim\.lr_.*did you mean 'StepLR'\?$",
        ),
        (
            {"schedule": "StepLR"},
            r"^train\.schedule=StepLR needs an option: set train\.schedule_options\.step_size$",
        ),
    ],
)
def test_wrong_optimizers_and_schedules_say_what_to_give(train: dict[str, Any], message: str) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=message):
        build_optimizer(build_config({"train": train}), list(model.parameters()))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            {"schedule": "OneCycleLR", "schedule_options": {"max_lr": 0.1, "total_steps": 3}},
            r"^train\.schedule=OneCycleLR with train\.schedule_options=.* fails after epoch 4 of 6 "
            r"\(.*\): set options for more than 6 steps \(one per epoch\), or lower train\.epochs",
        ),
        (
            {"optimizer_options": {"capturable": True}},
            r"^train\.optimizer=Adam cannot make a step with train\.optimizer_options=.*capturable",
        ),
        (
            {"schedule": "ExponentialLR", "schedule_options": {"gamma": -1}},
            r"sets the learning rate to -0\.01 after epoch 1 of 6: set options that keep it at 0 or above$",
        ),
        (
            {"schedule": "CosineAnnealingLR", "schedule_options": {"T_max": "x"}},
            "cannot use train.schedule_options=.*: use values of the types that torch.optim.lr_scheduler",
        ),
        ({"schedule_options": {"step_size": 3}}, "has no effect without a schedule: set train.schedule"),
    ],
)
def test_what_would_fail_in_the_run_fails_at_its_start(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_run(build_config({"train": {"epochs": 6, **train}}), GRAPH)


def test_schedules_that_last_for_the_run_are_let_through() -> None:
    model = torch.nn.Linear(2, 2)
    for name, options in {
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 7},
        "StepLR": {"step_size": 1},
        "ReduceLROnPlateau": {},
        "CosineAnnealingLR": {"T_max": 3},
    }.items():
        train = {"schedule": name, "schedule_options": options, "lr": 0.01}
        learner = TrainingState(build_config({"train": train}), model)
        before = learner.lr
        learner.check_schedule(6)
        assert learner.lr == before


def test_plateau_schedule_follows_the_loss_alone() -> None:
    """With evaluations in some epochs only, nothing but the loss may count."""
    schedule = {
        "schedule": "ReduceLROnPlateau",
        "schedule_options": {"patience": 1, "factor": 0.5},
        "epochs": 8,
        "lr": 3e-3,
    }
    rates = []
    config = build_config(
        {
            "data": {"batch_size": 240},
            "model": {"dropout": 0.0},
            "evaluate": {"every": 3},
            "train": schedule,
        }
    )
    losses: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepMetrics):
            rates.append(event.lr)
        elif isinstance(event, EpochEnded):
            losses.append(event.loss)

    Training(build_run(config, GRAPH, emit=emit)).run()
    assert losses == sorted(losses, reverse=True)
    assert set(rates) == {3e-3}


def test_a_checkpoint_is_due_so_long_after_the_last_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clock is at 61 s after the second epoch and at 62 s after the third: only the first is due."""
    at = {0: 0.0, 1: 30.0, 2: 61.0, 3: 62.0, 4: 122.0, 5: 122.5}
    heard: list[Event] = []

    def clock() -> float:
        return at[max((event.epoch for event in heard if isinstance(event, EpochEnded)), default=0)]

    monkeypatch.setattr("hyrt.training.epoch_end.time", SimpleNamespace(perf_counter=clock))
    config = build_config({"sampler": {"kind": "full"}, "train": {"epochs": 5}})
    Training(build_run(config, GRAPH, emit=heard.append, checkpoints=tmp_path / "checkpoints")).run()
    assert [event.step for event in heard if isinstance(event, CheckpointWritten)] == [2, 4, 5]


def test_a_run_whose_scores_are_no_numbers_says_so_once_and_has_metrics() -> None:
    class Wrong(torch.nn.Module):
        """Right in training, and no number in evaluations."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(GRAPH.num_features, GRAPH.num_classes)

        def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x[: blocks[-1].num_dst])
            return out if self.training else out * float("nan")

    heard: list[Event] = []
    config = build_config({"train": {"epochs": 3}, "data": {"batch_size": 240}}, custom_model=True)
    result = Training(build_run(config, GRAPH, model=Wrong(), emit=heard.append)).run()
    assert np.isnan(result.metrics["test"]["accuracy"])
    assert result.summary["best_epoch"] == 1
    told = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    (line,) = [text for text in told if "are not finite" in text]
    assert line.startswith("evaluation after epoch 1, step 5: the scores of ")
