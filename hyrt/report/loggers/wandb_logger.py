"""Weights & Biases logger, which writes to the run folder and is offline unless WANDB_MODE is set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hyrt.report.loggers.logger import LoggedRun

PROJECT = "hyrt"
"""Name of the project if WANDB_PROJECT is not set."""


class WandbLogger:
    """Logger of settings as the configuration of a wandb run and of metrics by step."""

    _run: Any

    def start(self, run: LoggedRun, previous_id: str | None) -> str:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            config=dict(run.settings),
            dir=str(run.folder),
            id=previous_id,
            resume=None if previous_id is None else "allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # The steps of wandb must increase, but a resumed run may start before the last step.
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        self._run.log({**metrics, "step": step, **({} if epoch is None else {"epoch": epoch})})

    def end(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status == "failed"))
