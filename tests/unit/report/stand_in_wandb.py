"""A module in the place of wandb where that is not installed: its documented calls, in memory."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Settings:
    def __init__(self, *, silent: bool = False, console: str = "auto") -> None:
        self.silent, self.console = silent, console


class StandInRun:
    """A run with what was logged to it."""

    def __init__(self, run_id: str, given: dict[str, Any]) -> None:
        self.id = run_id
        self.given = given
        self.logged: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.step_metric: str | None = None
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        assert name == "*"
        self.step_metric = step_metric

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.append(data)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        self.exit_code = exit_code


def stand_in_wandb() -> tuple[ModuleType, list[StandInRun]]:
    """The module `wandb`, and the list of runs that are begun with it."""
    runs: list[StandInRun] = []

    def init(
        *,
        project: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        dir: str | None = None,
        id: str | None = None,
        resume: str | None = None,
        mode: str | None = None,
        settings: Settings | None = None,
    ) -> StandInRun:
        given = {
            "project": project,
            "name": name,
            "config": config,
            "dir": dir,
            "resume": resume,
            "mode": mode,
        }
        runs.append(StandInRun(id or f"id{len(runs)}", given))
        return runs[-1]

    wandb = ModuleType("wandb")
    wandb.__dict__.update(init=init, Settings=Settings)
    return wandb, runs
