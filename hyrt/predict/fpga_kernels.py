"""Prediction of FPGAs: by kernel cycles if the kernels support the model, otherwise by rates."""

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
    """Return why the FPGA kernels do not support a configured model, in the device's words; empty if they do.

    Parameters
    ----------
    config
        All settings. Row width limits depend on the dataset's sizes and are not checked here.

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
    """Return the platform with FPGA designs only if they apply, and a sentence about designs that do not.

    Parameters
    ----------
    machine, work
        The machine and the work to predict.
    config
        Settings of the work; None if the work was given as sizes, which do not determine the model.
    paper
        Whether the paper's form is used, which has no designs.
    """
    designed = [accelerator.kind for accelerator in machine.accelerators if accelerator.design is not None]
    if not designed:
        return machine, []
    reason = "" if paper or config is None else why_no_kernels(config)
    if not (reason or paper) and not is_plain(work.at(1.0)):
        reason = "they have one product per layer, and read a row once for each edge"
    if not (reason or paper):
        return machine, []
    rated = replace(
        machine, accelerators=tuple(replace(accelerator, design=None) for accelerator in machine.accelerators)
    )
    if paper:
        return rated, []
    return rated, [
        f"hyrt's kernels do not run this model on {', '.join(designed)}; the prediction uses rates as "
        f"if they did: {reason}"
    ]


def kernel_sentences(machine: Platform, now: Prediction, unit: str = "target") -> list[str]:
    """Return the assumptions about FPGAs predicted by the cycle model, one sentence each.

    Parameters
    ----------
    machine
        The machine, with the sizes of tasks (`hyrt_hls.task.arena_limits`).
    now
        The prediction for the machine.
    unit
        Unit of the sampler's split.
    """
    return [
        _describe_accelerator(accelerator, now, unit)
        for accelerator in machine.accelerators
        if accelerator.design is not None
    ]


def _describe_accelerator(accelerator: Accelerator, now: Prediction, unit: str) -> str:
    assert accelerator.design is not None
    units = [
        count
        for name, count in zip(now.trainers, now.assignment.split, strict=True)
        if name.rpartition(":")[0] == accelerator.kind
    ]
    design, assumed = accelerator.design, ", ".join(sorted(accelerator.design.assumed))
    return (
        f"{accelerator.kind} runs hyrt's kernels, {design.pes} PEs and {design.macs} MACs, "
        f"{_describe_tasks(units, accelerator.task_targets, unit)}; no build has confirmed {assumed}"
    )


def _describe_tasks(units: Sequence[int], task_units: int | None, unit: str) -> str:
    """Format `its 84 targets per step as 1 task (a task has up to 256)`."""
    max_units = max(units, default=0)
    if not max_units:
        return "and it gets no targets"
    share = f"its {max_units} targets" if unit == "target" else f"its {max_units} x 1 {unit}"
    if task_units is None:
        return f"{share} per step as 1 task (whether they fit is unknown without arena_words)"
    count = math.ceil(max_units / task_units)
    return f"{share} per step as {count} task{'s' * (count > 1)} (a task has up to {task_units})"
