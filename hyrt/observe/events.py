"""What a run tells its listeners: values, in the order they happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Before the first step."""

    data: str
    """One line on the dataset."""
    model: str
    """One line on the model, its training and its batches."""
    devices: str
    """One line on the trainers and their share of a step."""
    epochs: int
    steps_per_epoch: int
    first_step: int
    """Counted from 0 over the whole run; above 0 where a run resumes."""
    simulated: tuple[str, ...] = ()
    """The names of the devices that do not do their work on the hardware they are named after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the performance model expects of the run, before its first step."""

    step: int
    """Steps done in the whole run: above 0 where a run resumes."""
    stages_s: Mapping[str, float]
    """Seconds a step: sample, load, transfer, propagate, synchronize."""
    iteration_s: float
    epoch_s: float
    relative_error: float | None
    """How far off it may be: 0.1 is 10 %."""
    bottleneck: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """Targets or threads were moved."""

    step: int
    """Steps done in the whole run when it was decided."""
    acts_from: int
    """The first step that runs under it, counted from 0."""
    policy: str
    split_before: Mapping[str, int]
    """Targets (or units) of a step for each trainer."""
    split: Mapping[str, int]
    threads_before: Mapping[str, int]
    """CPU threads that `sample`, `load` and `train`."""
    threads: Mapping[str, int]
    reason: str
    """One sentence with its figures."""
    expected_s: float | None
    """The step's time that the policy expects from it."""
    is_trial: bool = False
    """Whether it is tried for what its times tell, and not because it is expected to be better."""


def steps_per_group(steps_per_epoch: int) -> int:
    """About a tenth of an epoch."""
    return max(1, min(100, steps_per_epoch // 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """A few steps together: often enough to watch, seldom enough to cost nothing."""

    epoch: int
    """The number of the epoch, from 1."""
    step: int
    """Steps done in the whole run."""
    steps_done: int
    """Steps done in this epoch."""
    steps_per_epoch: int
    loss: float
    """Mean over the group's targets."""
    losses: tuple[float, ...]
    """One a step, mean over its targets."""
    training_metrics: Mapping[str, float]
    """The objective's metrics of the group's targets; `train_<name>` in `metrics.jsonl`."""
    mteps: float
    step_s: float
    """Mean wall time of a step."""
    stage_s: Mapping[str, float]
    """Mean seconds of work a step: sample, load, transfer, propagate, synchronize."""
    busy_s: Mapping[str, float]
    """Mean seconds a step that each trainer propagates."""
    blocked_s: Mapping[str, float]
    """Mean seconds a step that each stage waited, keyed `<stage>.input` and `<stage>.output`."""
    queued: Mapping[str, float] = field(default_factory=dict)
    """Mean number of mini-batches in each channel: `sampled`, and for each trainer `loaded.<trainer>`,
    `staged.<trainer>` and `done.<trainer>`."""
    queue_depth: Mapping[str, int] = field(default_factory=dict)
    """How many fit into each."""
    bottleneck: str
    split: Mapping[str, int]
    """Targets (or units) of a step for each trainer."""
    threads: Mapping[str, int]
    """CPU threads that `sample`, `load` and `train`."""
    lr: float
    memory_bytes: int
    """Resident memory of the process."""
    chunks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of each trainer that holds chunks of a whole graph, the figures of `ChunkedStep` of the newest step."""
    cache_hits: Mapping[str, float] = field(default_factory=dict)
    """Of each trainer that keeps feature rows, which part of the rows that it has needed so far those were.
    """
    num_ranks: int = 1
    """The processes that these figures are of. Of several, a stage's time is that of the slowest, memory is
    the sum, and trainers have names such as `rank 1 cpu:0`."""
    slowest_rank: int | None = None
    """The one that takes longest for the bottleneck; None of one process."""

    @property
    def is_regular(self) -> bool:
        """Whether the group ends where groups end in every process, whatever its own settings are."""
        return self.steps_done % self.steps_per_epoch % steps_per_group(self.steps_per_epoch) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics on a split, after an epoch."""

    epoch: int
    step: int
    metrics: Mapping[str, Mapping[str, float]]
    """Per split (`val`, `test`) the metrics: accuracy, macro_f1, roc_auc (two classes), loss."""
    chosen_by: str
    """Name of the metric that chooses the best epoch."""
    is_best: bool
    seconds: float
    confusion: Sequence[Sequence[int]] | None = None
    """[C][C] of the best evaluation so far: how many test vertices of class i are taken for class j. None of
    others, and where there are no few classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    epoch: int
    step: int
    seconds: float
    """Wall time of training, without evaluation and checkpoints."""
    loss: float
    mteps: float
    predicted_s: float | None = None
    """What was predicted of `seconds`; None where nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the user should know: a decision with its reason, or a warning with its remedy."""

    kind: str
    """`info` or `warning`."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """After the last step, or when the run was stopped."""

    status: str
    """`finished`, `early-stopped` or `interrupted`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """What summary.json holds."""


Event = (
    RunStarted | Predicted | Balanced | StepGroup | Evaluated | EpochEnded | Checkpointed | Notice | RunEnded
)
Emit = Callable[[Event], None]
