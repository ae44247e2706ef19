"""A module in the place of mlflow where that is not installed: its documented calls, in memory.

`MlflowClient` and the entities have the signatures of mlflow 3. What is logged stays as long as the module.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class RunTag(NamedTuple):
    key: str
    value: str


def stand_in_mlflow() -> dict[str, ModuleType]:
    """The modules `mlflow` and `mlflow.entities`, by name."""
    experiments: dict[str, str] = {}
    runs: dict[str, Any] = {}
    numbers = itertools.count(1)

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
            pass

        def get_experiment_by_name(self, name: str) -> Any:
            return (
                SimpleNamespace(experiment_id=experiments[name], name=name) if name in experiments else None
            )

        def create_experiment(
            self, name: str, artifact_location: str | None = None, tags: dict[str, Any] | None = None
        ) -> str:
            assert name not in experiments
            return experiments.setdefault(name, str(next(numbers)))

        def create_run(
            self,
            experiment_id: str,
            start_time: int | None = None,
            tags: dict[str, Any] | None = None,
            run_name: str | None = None,
        ) -> Any:
            assert experiment_id in experiments.values()
            info = SimpleNamespace(run_id=f"run{next(numbers)}", run_name=run_name, status="RUNNING")
            data = SimpleNamespace(params={}, metrics={}, tags={})
            runs[info.run_id] = SimpleNamespace(info=info, data=data, history=[])
            return runs[info.run_id]

        def get_run(self, run_id: str) -> Any:
            return runs[run_id]

        def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
            runs[run_id].info.status = status

        def log_batch(
            self,
            run_id: str,
            metrics: Sequence[Any] = (),
            params: Sequence[Any] = (),
            tags: Sequence[Any] = (),
            synchronous: bool | None = None,
        ) -> None:
            run = runs[run_id]
            assert len(params) <= 100
            for param in params:
                assert run.data.params.setdefault(param.key, param.value) == param.value
            keys = {metric.key for metric in (*run.history, *metrics)}
            # A store of files has a folder for what stands before a slash.
            assert not any(other.startswith(f"{key}/") for key in keys for other in keys)
            run.history += metrics
            run.data.metrics |= {metric.key: metric.value for metric in metrics}
            run.data.tags |= {tag.key: tag.value for tag in tags}

        def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
            runs[run_id].info.status = status or "FINISHED"

        def get_metric_history(self, run_id: str, key: str) -> list[Any]:
            return [metric for metric in runs[run_id].history if metric.key == key]

        def search_runs(self, experiment_ids: list[str]) -> list[Any]:
            return list(runs.values())

    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    mlflow.__spec__ = ModuleSpec("mlflow", None)
    entities.__dict__.update(Metric=Metric, Param=Param, RunTag=RunTag)
    mlflow.__dict__.update(MlflowClient=MlflowClient, entities=entities)
    return {"mlflow": mlflow, "mlflow.entities": entities}
