"""Events that a run emits to its listeners in chronological order, and the prediction of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyrt_perfmodel.policy import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Prediction of a run by the performance model, for the run's trainers and stages."""

    stages_s: Mapping[str, float]
    """Predicted seconds per step of each stage: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    """Predicted time of an epoch with `split` and `threads`; `iteration_s` is the time of a step."""
    relative_error: float | None
    """Relative error of the prediction (0.1 is 10 %); None if unknown."""
    bottleneck: str
    """Stage that determines the time of a step."""
    split: Mapping[str, int]
    """Units of a step by trainer name: as configured, or otherwise with the best prediction."""
    threads: Threads
    """Thread counts: as configured, or otherwise with the best prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Event before the first step."""

    data: str
    """One-line description of the dataset."""
    model: str
    """One-line description of the model, its training and its batches."""
    devices: str
    """One-line description of the trainers and the split of a step."""
    epochs: int
    steps_per_epoch: int
    first_step: int
    """First step of this process, counted from 0 over the whole run; above 0 if the run is resumed."""
    simulated: tuple[str, ...] = ()
    """Names of simulated devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionMade:
    """Event with the prediction of the performance model, before the first step."""

    step: int
    """Number of finished steps of the whole run; above 0 if the run is resumed."""
    stages_s: Mapping[str, float]
    """Predicted seconds per step of each stage: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    relative_error: float | None
    """Expected relative error of the prediction (0.1 is 10 %); None if unknown."""
    bottleneck: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanged:
    """Event after the split or the number of threads has changed."""

    step: int
    """Number of finished steps of the whole run at the time of the decision."""
    acts_from: int
    """First step with the new assignment, counted from 0."""
    policy: str
    split_before: Mapping[str, int]
    """Number of targets (or units) per step of each trainer before the change."""
    split: Mapping[str, int]
    threads_before: Mapping[str, int]
    """Number of CPU threads for `sample`, `load` and `train` before the change."""
    threads: Mapping[str, int]
    reason: str
    """Sentence with the reason for the decision, including numbers."""
    expected_s: float | None
    """Step time in seconds that the policy expects; None if unknown."""
    is_trial: bool = False
    """Whether the assignment is only tried to measure its times, and not expected to be faster."""


def steps_per_window(steps_per_epoch: int) -> int:
    """Return about a tenth of an epoch, in steps."""
    return max(1, min(100, steps_per_epoch // 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Event with the metrics of a window of steps, frequent enough to follow a run at negligible cost."""

    epoch: int
    """Number of the epoch, counted from 1."""
    step: int
    """Number of finished steps of the whole run."""
    steps_done: int
    """Number of finished steps of this epoch."""
    steps_per_epoch: int
    loss: float
    """Mean loss over the targets of the window."""
    losses: tuple[float, ...]
    """Mean loss over the targets of each step in the window."""
    training_metrics: Mapping[str, float]
    """Metrics of the objective over the targets of the window; `train_<name>` in `metrics.jsonl`."""
    mteps: float
    step_s: float
    """Mean wall time per step, in seconds."""
    stage_s: Mapping[str, float]
    """Mean busy seconds per step of each stage: sample, load, transfer, propagate, synchronize."""
    busy_s: Mapping[str, float]
    """Mean seconds per step that each trainer spends on propagation."""
    blocked_s: Mapping[str, float]
    """Mean blocked seconds per step of each stage, with keys `<stage>.input` and `<stage>.output`."""
    queued: Mapping[str, float] = field(default_factory=dict)
    """Mean number of mini-batches in each channel: `sampled`, and for each trainer `loaded.<trainer>`,
    `staged.<trainer>` and `done.<trainer>`.
    """
    queue_depth: Mapping[str, int] = field(default_factory=dict)
    """Capacity of each channel."""
    bottleneck: str
    split: Mapping[str, int]
    """Number of targets (or units) per step of each trainer."""
    threads: Mapping[str, int]
    """Number of CPU threads for `sample`, `load` and `train`."""
    lr: float
    memory_bytes: int
    """Resident memory of the process in bytes."""
    chunks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Statistics of the latest step for each trainer that uses chunks of a full graph: see `ChunkedStep`."""
    cache_hits: Mapping[str, float] = field(default_factory=dict)
    """Hit rate so far of each trainer's feature cache: fraction of needed rows that were in the cache."""
    num_ranks: int = 1
    """Number of processes that these metrics cover. If there are several, stage times are from the slowest
    process, memory is the sum, and trainer names have a prefix, such as `rank 1 cpu:0`.
    """
    slowest_rank: int | None = None
    """Rank that is slowest in the bottleneck stage; None in a run of one process."""

    @property
    def is_regular(self) -> bool:
        """Whether the window ends at a boundary that all processes share, regardless of settings."""
        return self.steps_done % self.steps_per_epoch % steps_per_window(self.steps_per_epoch) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished:
    """Event with the metrics on the data splits after an epoch."""

    epoch: int
    step: int
    metrics: Mapping[str, Mapping[str, float]]
    """Metrics of each split (`val`, `test`): accuracy, macro_f1, roc_auc (two classes), loss."""
    chosen_by: str
    """Name of the metric by which the best epoch is selected."""
    is_best: bool
    seconds: float
    confusion: Sequence[Sequence[int]] | None = None
    """Confusion matrix [C][C] if this is the best evaluation so far: number of test vertices of class i that
    are predicted as class j. None for other evaluations and for objectives without a small number of classes.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    epoch: int
    step: int
    seconds: float
    """Wall time of training in seconds, without evaluation and checkpoints."""
    loss: float
    mteps: float
    predicted_s: float | None = None
    """Predicted value of `seconds`; None without a prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Event with information for the user: a decision and its reason, or a warning and its remedy."""

    kind: str
    """Kind of the notice: `info` or `warning`."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Event after the last step, or after the run was stopped."""

    status: str
    """Result of the run: `finished`, `early-stopped` or `interrupted`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Content of `summary.json`."""


Event = (
    RunStarted
    | PredictionMade
    | AssignmentChanged
    | StepMetrics
    | EvaluationFinished
    | EpochEnded
    | CheckpointWritten
    | Notice
    | RunEnded
)
Emit = Callable[[Event], None]
