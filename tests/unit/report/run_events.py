"""Events of a small run, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from hyrt.telemetry.events import (
    AssignmentChanged,
    EpochEnded,
    EvaluationFinished,
    PredictionMade,
    RunStarted,
    StepMetrics,
)

STARTED = RunStarted(
    data="synthetic:community  100,000 vertices · 2.0 M edges · 64 features · 16 classes",
    model="GraphSAGE 64-128-16, 2 layers, fan-out 25,10, batch 1024, Adam 3e-3",
    devices="cpu (2 cores) 1024 targets",
    epochs=5,
    steps_per_epoch=59,
    first_step=0,
)

PREDICTED = PredictionMade(
    step=0,
    stages_s={"sample": 0.006, "load": 0.009, "transfer": 0.0, "propagate": 0.04, "synchronize": 0.0004},
    iteration_s=0.0576,
    epoch_s=3.4,
    relative_error=0.12,
    bottleneck="propagate",
)
BALANCED = AssignmentChanged(
    step=20,
    acts_from=23,
    policy="model",
    split_before={"cpu:0": 624, "cuda:0": 400},
    split={"cpu:0": 528, "cuda:0": 496},
    threads_before={"sample": 1, "load": 2, "train": 2},
    threads={"sample": 1, "load": 2, "train": 2},
    reason="moved 96 targets cpu:0 → cuda:0: cpu:0 31.0 ms, cuda:0 19.0 ms; a step should take 24.0 ms",
    expected_s=0.024,
)


def steps(step: int, **changes: Any) -> StepMetrics:
    fields: dict[str, Any] = {
        "epoch": 1 + (step - 1) // 59,
        "step": step,
        "steps_done": 1 + (step - 1) % 59,
        "steps_per_epoch": 59,
        "loss": 1.0234,
        "losses": (1.1, 0.9468),
        "training_metrics": {"accuracy": 0.7},
        "mteps": 3.91,
        "step_s": 0.0412,
        "stage_s": {
            "sample": 0.0061,
            "load": 0.009,
            "transfer": 0.0,
            "propagate": 0.0409,
            "synchronize": 0.0004,
        },
        "busy_s": {"cpu:0": 0.030},
        "blocked_s": {"load.input": 0.03},
        "bottleneck": "propagate",
        "split": {"cpu": 1024},
        "threads": {"sample": 1, "train": 2},
        "lr": 0.003,
        "memory_bytes": 734003200,
    }
    return StepMetrics(**(fields | changes))


def evaluated(epoch: int, *, best: bool = True, test: float = 0.9134) -> EvaluationFinished:
    metrics = {"val": {"accuracy": 0.92, "loss": 0.3}, "test": {"accuracy": test, "loss": 0.31}}
    return EvaluationFinished(
        epoch=epoch, step=59 * epoch, metrics=metrics, chosen_by="accuracy", is_best=best, seconds=0.42
    )


def epoch_ended(epoch: int) -> EpochEnded:
    return EpochEnded(epoch=epoch, step=59 * epoch, seconds=3.5, loss=0.51, mteps=4.2)
