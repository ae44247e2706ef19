"""How FPGAs are predicted: by the cycles of hyrt's kernels where these run the model, else by rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.prediction.stage_times import is_plain

if TYPE_CHECKING:
    from hyrt_perfmodel.platforms.platform import Accelerator, Platform
    from hyrt_perfmodel.prediction.predict import Prediction
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

    from hyrt.config import Config


def why_no_kernels(config: Config) -> str:
    """Why the FPGA kernels do not run a configured model, in the device's words; empty where they do.

    Parameters
    ----------
    config
        All settings. How wide the dataset's rows may be depends on its sizes, and is not asked here.

    Raises
    ------
    ConfigError
        If there is no such model.
    """
    from hyrt.device.discovery import BACKENDS
    from hyrt.errors import ConfigError
    from hyrt.predict.bare_model import bare_model

    try:
        model = bare_model(config, num_features=1, num_classes=1)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return str(BACKENDS.entry("fpga").load().why_unsupported(model))


def with_kernels(
    machine: Platform, work: TrainingWorkload, config: Config | None, *, paper: bool
) -> tuple[Platform, list[str]]:
    """The platform, with FPGA designs only where these count, and a sentence on those that do not.

    Parameters
    ----------
    machine, work
        The machine and the work to predict.
    config
        The settings of the work; None where it was given in sizes, which tell less of the model.
    paper
        Whether the paper's form is wanted, which knows no designs.
    """
    designed = [each.kind for each in machine.accelerators if each.design is not None]
    if not designed:
        return machine, []
    why = "" if paper or config is None else why_no_kernels(config)
    if not (why or paper) and not is_plain(work.at(1.0)):
        why = "they have one product per layer, and read a row once for each edge"
    if not (why or paper):
        return machine, []
    rated = replace(machine, accelerators=tuple(replace(each, design=None) for each in machine.accelerators))
    if paper:
        return rated, []
    return rated, [
        f"hyrt's kernels do not run this model on {', '.join(designed)}; the prediction uses rates as "
        f"if they did: {why}"
    ]


def kernel_sentences(machine: Platform, now: Prediction, unit: str = "target") -> list[str]:
    """What is assumed of FPGAs that the cycle model predicts, one sentence each.

    Parameters
    ----------
    machine
        The machine, with the sizes of tasks (`hyrt_hls.task.arena_limits`).
    now
        The prediction for the machine.
    unit
        What the sampler's split moves.
    """
    return [_sentence(each, now, unit) for each in machine.accelerators if each.design is not None]


def _sentence(each: Accelerator, now: Prediction, unit: str) -> str:
    assert each.design is not None
    units = [
        count
        for name, count in zip(now.trainers, now.assignment.split, strict=True)
        if name.rpartition(":")[0] == each.kind
    ]
    assumed = ", ".join(sorted(each.design.assumed))
    return (
        f"{each.kind} runs hyrt's kernels, {each.design.pes} PEs and {each.design.macs} MACs, "
        f"{_tasks(units, each.task_targets, unit)}; no build has confirmed {assumed}"
    )


def _tasks(units: Sequence[int], task_units: int | None, unit: str) -> str:
    """`its 84 targets per step as 1 task (a task has up to 256)`."""
    most = max(units, default=0)
    if not most:
        return "and it gets no targets"
    its = f"its {most} targets" if unit == "target" else f"its {most} x 1 {unit}"
    if task_units is None:
        return f"{its} per step as 1 task (whether they fit is unknown without arena_words)"
    count = math.ceil(most / task_units)
    return f"{its} per step as {count} task{'s' * (count > 1)} (a task has up to {task_units})"
