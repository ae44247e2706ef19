"""Timed runs of hyrt in this process or in a child process, and records of their results."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyrt.config import Config
    from hyrt.graph.graph import Graph
    from hyrt.telemetry.events import EpochEnded, Event, StepMetrics
    from hyrt.telemetry.hooks import Hook
    from hyrt.training.train import TrainResult

KINDS = {"sage": "graphsage", "gcn": "gcn", "gat": "gat", "gin": "gin"}
"""Model kinds by their names in the baselines' scripts."""
FANOUT = [25, 10]
BATCH = 1024
LR = 3e-3


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return an argument parser whose help begins with the docstring of the tool."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_second_device(parser: argparse.ArgumentParser, steps: int) -> None:
    """Add the arguments for training on the CPU and a second device over several rounds."""
    parser.add_argument("--second", default="opencl:0", help="second device, in addition to the CPU")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=steps, help="measured steps per run")
    parser.add_argument("--table", type=Path, help="also write the result to this file, as Markdown")


def prepared() -> None:
    """Apply the process settings of `hyrt`. Must be called before torch is imported."""
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()


def settings(
    kind: str, epochs: int, *, hidden: int = 256, batch: int = BATCH, **sections: Any
) -> dict[str, Any]:
    """Return the settings of a benchmark run: two layers, and no evaluation or checkpoint before the end.

    Parameters
    ----------
    kind, hidden
        Kind of the model and width of its hidden layers.
    epochs
        Maximum number of epochs.
    batch
        Number of targets per step.
    **sections
        Further sections, whose keys are merged into the sections set here.
    """
    merged: dict[str, Any] = {
        "model": {"kind": kind, "hidden": hidden, "layers": 2, "dropout": 0.0, "norm": "none"},
        "sampler": {"fanout": FANOUT},
        "data": {"batch_size": batch},
        "train": {"epochs": epochs, "lr": LR, "weight_decay": 0.0},
        "evaluate": {"every": 0},
        "checkpoint": {"every_epochs": 0},
    }
    for name, section in sections.items():
        merged[name] = {**merged[name], **section} if name in merged else section
    return merged


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Events of a run: groups of steps, epochs and the final result."""

    groups: Sequence[StepMetrics]
    epochs: Sequence[EpochEnded]
    result: TrainResult

    def step_s(self) -> list[float]:
        """Return the wall time of every step, which is the mean of its group of steps."""
        return [group.step_s for group in self.groups for _ in group.losses]


def timed_run(
    config: Config,
    graph: Graph,
    *,
    steps: int | None = None,
    on_event: Callable[[Event], None] | None = None,
    checkpoints: Path | None = None,
    hooks: Sequence[Hook] = (),
) -> TimedRun:
    """Train in this process, and return the recorded events.

    Parameters
    ----------
    config
        Configuration of the run. With `steps`, it must allow more epochs than necessary.
    graph
        The opened graph.
    steps
        Number of steps after which the run is stopped; None runs all epochs.
    on_event
        Callback that is called with every event after it was recorded.
    checkpoints
        Folder for checkpoints; the trace is written to its parent. None disables both.
    hooks
        Hooks around the work of every stage.
    """
    from hyrt.predict.predict_run import predict_run
    from hyrt.telemetry.events import EpochEnded, StepMetrics
    from hyrt.training.build_run import build_run
    from hyrt.training.train import Training

    groups: list[StepMetrics] = []
    epochs: list[EpochEnded] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepMetrics):
            groups.append(event)
        elif isinstance(event, EpochEnded):
            epochs.append(event)
        if on_event is not None:
            on_event(event)

    def is_enough() -> bool:
        return steps is not None and bool(groups) and groups[-1].step >= steps

    training = Training(
        build_run(
            config,
            graph,
            emit=emit,
            should_stop=is_enough,
            checkpoints=checkpoints,
            predict=predict_run,
            hooks=hooks,
        )
    )
    return TimedRun(groups, epochs, training.run())


def step_mean(groups: Sequence[StepMetrics], value: Callable[[StepMetrics], float]) -> float:
    """Return the mean over steps of a value that is known as the mean of each group."""
    return sum(value(group) * len(group.losses) for group in groups) / sum(
        len(group.losses) for group in groups
    )


def stage_ms(groups: Sequence[StepMetrics]) -> dict[str, float]:
    """Return the milliseconds of work per step of each stage."""
    return {
        stage: round(1e3 * step_mean(groups, lambda group, stage=stage: group.stage_s[stage]), 2)
        for stage in groups[0].stage_s
    }


class ChildFailed(SystemExit):
    """Failure of a run in a separate process."""


def child_record(
    command: Sequence[str | Path], name: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a command and return the JSON object in the last line of its output.

    Raises
    ------
    ChildFailed
        If the exit code is not 0. The message contains the name and the end of the error output.
    """
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ChildFailed(f"{name} failed:\n{process.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return record


def show(text: str, table: Path | None) -> None:
    """Print a text, and write it to the file `table` if it is not None."""
    print(text)
    if table is not None:
        table.write_text(text + "\n", encoding="utf-8")


def append_records(path: Path | None, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records to a file of JSON lines, if `path` is not None."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def open_workload(folder: Path) -> Graph:
    """Load the files of the baselines as a graph with arrays in memory, as the baselines do."""
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.graph.row_source import DenseFeatures

    def read(key: str) -> Any:
        return np.load(folder / f"{key}.npy")

    labels = read("y").astype(np.int16)
    masks = {}
    for split in ("train", "val", "test"):
        masks[split] = np.zeros(len(labels), np.bool_)
        masks[split][read(split)] = True
    return Graph.from_arrays(
        folder.name, read("indptr"), read("indices"), DenseFeatures(read("x")), labels, masks
    )
