"""Timed runs of hyrt, in this process or in a child, and the records that benchmarks keep of them."""

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
    from hyrt.observe.events import EpochEnded, Event, StepGroup
    from hyrt.observe.hook import Hook
    from hyrt.training.train import TrainResult

KINDS = {"sage": "graphsage", "gcn": "gcn", "gat": "gat", "gin": "gin"}
"""The model kinds, by the names that the peers' scripts have for them."""
FANOUT = [25, 10]
BATCH = 1024
LR = 3e-3


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with a tool's own text."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_second_device(found: argparse.ArgumentParser, steps: int) -> None:
    """The arguments of tools that train on the CPU and a second device over several rounds."""
    found.add_argument("--second", default="opencl:0", help="the trainer beside the CPU")
    found.add_argument("--hidden", type=int, default=256)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--steps", type=int, default=steps, help="steps of a run that count")
    found.add_argument("--table", type=Path, help="also write the result to this file, as Markdown")


def prepared() -> None:
    """Set what `hyrt` sets for its own process; call it before torch is imported."""
    from hyrt.machine.this_process.process_settings import prepare_process

    prepare_process()


def settings(
    kind: str, epochs: int, *, hidden: int = 256, batch: int = BATCH, **sections: Any
) -> dict[str, Any]:
    """The settings of a benchmark's run: two layers, and nothing evaluated or saved before its end.

    Parameters
    ----------
    kind, hidden
        The model's.
    epochs
        How many there are at most.
    batch
        The targets of a step.
    **sections
        Further sections; those that are also set here are joined, key by key.
    """
    found: dict[str, Any] = {
        "model": {"kind": kind, "hidden": hidden, "layers": 2, "dropout": 0.0, "norm": "none"},
        "sampler": {"fanout": FANOUT},
        "data": {"batch_size": batch},
        "train": {"epochs": epochs, "lr": LR, "weight_decay": 0.0},
        "evaluate": {"every": 0},
        "checkpoint": {"every_epochs": 0},
    }
    for name, section in sections.items():
        found[name] = {**found[name], **section} if name in found else section
    return found


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What a run said of itself: its groups of steps, its epochs and its result."""

    groups: Sequence[StepGroup]
    epochs: Sequence[EpochEnded]
    result: TrainResult

    def step_s(self) -> list[float]:
        """The wall time of every step; of steps that were told together, their mean."""
        return [group.step_s for group in self.groups for _ in group.losses]


def timed_run(
    config: Config,
    graph: Graph,
    *,
    steps: int | None = None,
    hear: Callable[[Event], None] | None = None,
    checkpoints: Path | None = None,
    hooks: Sequence[Hook] = (),
) -> TimedRun:
    """Train in this process.

    Parameters
    ----------
    config
        The settings. Where `steps` is given they must ask for more epochs than are needed.
    graph
        The graph, opened.
    steps
        Stop the run after so many steps; None lets it end by itself.
    hear
        Called with every event, after it was noted here.
    checkpoints
        The folder of the run's checkpoints, beside which its trace is written; None writes nothing.
    hooks
        Called around every stage's work.
    """
    from hyrt.observe.events import EpochEnded, StepGroup
    from hyrt.predict.this_run import predict_run
    from hyrt.training.compose import compose_run
    from hyrt.training.train import Training

    groups: list[StepGroup] = []
    epochs: list[EpochEnded] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepGroup):
            groups.append(event)
        elif isinstance(event, EpochEnded):
            epochs.append(event)
        if hear is not None:
            hear(event)

    def is_enough() -> bool:
        return steps is not None and bool(groups) and groups[-1].step >= steps

    training = Training(
        compose_run(
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


def step_mean(groups: Sequence[StepGroup], value: Callable[[StepGroup], float]) -> float:
    """The mean over steps of what a group of steps gives as their mean."""
    return sum(value(group) * len(group.losses) for group in groups) / sum(
        len(group.losses) for group in groups
    )


def stage_ms(groups: Sequence[StepGroup]) -> dict[str, float]:
    """Milliseconds of work a step in each stage."""
    return {
        stage: round(1e3 * step_mean(groups, lambda group, stage=stage: group.stage_s[stage]), 2)
        for stage in groups[0].stage_s
    }


class ChildFailed(SystemExit):
    """A run in a process of its own failed; nobody need catch it."""


def child_record(
    command: Sequence[str | Path], name: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object that a child prints as its last line.

    Raises
    ------
    ChildFailed
        With the name and the end of what it said, where its exit code is not 0.
    """
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildFailed(f"{name} failed:\n{done.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def show(text: str, table: Path | None) -> None:
    """Print a result, and write it to a file where one was asked for."""
    print(text)
    if table is not None:
        table.write_text(text + "\n", encoding="utf-8")


def append_records(path: Path | None, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records to a file of JSON lines, where one was asked for."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def open_workload(folder: Path) -> Graph:
    """The peers' files as a graph: the same arrays, in memory, as the peers load them."""
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
    return Graph.of_arrays(
        folder.name, read("indptr"), read("indices"), DenseFeatures(read("x")), labels, masks
    )
