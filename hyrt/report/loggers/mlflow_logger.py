"""MLflow logger, configured by MLflow's environment variables; by default it writes to the current folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from hyrt.report.loggers.logger import LoggedRun

EXPERIMENT = "hyrt"
"""Name of the experiment if MLFLOW_EXPERIMENT_NAME is not set."""
_BATCH_SIZE = 100
_MAX_PARAM_LENGTH = 500
_STATUS = {"finished": "FINISHED", "early-stopped": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowLogger:
    """Logger of settings as MLflow parameters and of metrics by step."""

    _client: Any
    _run: str

    def start(self, run: LoggedRun, previous_id: str | None) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if previous_id is not None:
            self._client.update_run(previous_id, status="RUNNING")
            self._run = previous_id
            return previous_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        existing = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if existing is None else existing.experiment_id
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in run.settings.items()]
        for start in range(0, len(params), _BATCH_SIZE):
            self._client.log_batch(self._run, params=params[start : start + _BATCH_SIZE])
        return self._run

    def log(self, metrics: Mapping[str, float], step: int, epoch: int | None) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1e3)
        # File stores cannot have a metric `epoch`, because `epoch/seconds` needs a folder of this name.
        logged = {**metrics, **({} if epoch is None else {"train/epoch": float(epoch)})}
        self._client.log_batch(
            self._run, metrics=[Metric(name, value, now_ms, step) for name, value in logged.items()]
        )

    def end(self, status: str) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._run, tags=[RunTag("status", status)])
        self._client.set_terminated(self._run, _STATUS[status])
