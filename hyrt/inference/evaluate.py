"""Evaluation of a model on the validation and test targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.inference.judged import judged_links, judged_vertices
from hyrt.inference.score_vertices import score_vertices
from hyrt.inference.shared_scores import ScoresAt, SharedScores
from hyrt.machine.workers import Workers
from hyrt.nn.model import torch_threads_for
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective import Objective
from hyrt.objective.metrics import confusion_matrix
from hyrt.objective.registry import OBJECTIVES, check_metric
from hyrt.objective.returned import check_numbers, refusal
from hyrt.sampling.block import Ids

# A larger confusion matrix would not be readable.
_MAX_CLASSES = 20


class StopRequested(Exception):
    """The run was stopped during an evaluation."""


class Evaluator:
    """Evaluator of a dataset's splits.

    Parameters
    ----------
    config
        Settings; uses `evaluate` and `train.metric`, among others.
    graph
        Graph with features and labels.
    scratch
        Folder for temporary files; the system's default if None.
    objective
        Objective that computes the metrics; built from the settings by default.
    shared
        Scorer for several processes; None computes all scores in this process.

    Raises
    ------
    ConfigError
        If the metric that selects the best epoch cannot be computed on the validation targets.
    """

    def __init__(
        self,
        config: Config,
        graph: Graph,
        scratch: Path | None,
        objective: Objective | None = None,
        shared: SharedScores | None = None,
    ) -> None:
        self._config = config
        self._graph = graph
        self._scratch = scratch
        self._shared = shared
        self._confusion: NDArray[np.int64] | None = None
        self.not_finite: str | None = None
        """Warning about scores of the latest evaluation that are not finite; None if all are finite."""
        self.objective = objective or config.build_objective(graph.labels)
        metric = config.train.metric
        self.metric = self.objective.metrics[0] if metric == "auto" else metric
        links = graph.links
        self._targets = (
            judged_vertices(config, graph) if links is None else judged_links(config, graph, links)
        )
        if self.metric not in self.objective.metrics:
            check_metric(self.objective.name, self.metric)
        validation = self._targets.labels.get("val", graph.vertices.labels_of(np.empty(0, np.int64)))
        with OBJECTIVES.blamed(self.objective.name, "why_not"):
            reason = self.objective.why_not(self.metric, validation, graph.num_outputs)
        if not isinstance(reason, str):
            raise refusal(
                self.objective.name, f"why_not returns {show(reason)}: return a text, empty for none"
            )
        if reason:
            raise ConfigError(f"{graph.name}, split {config.data.split}: train.metric={self.metric} {reason}")

    @property
    def warning(self) -> str | None:
        """Return a warning for the start of a run without validation targets; None if there are some."""
        if "val" in self._targets.labels:
            return None
        patience = " and train.patience has no effect" if self._config.train.patience else ""
        split, noun, remedy = f": split {self._config.data.split} has", "vertices", "add a val_mask"
        if self._graph.links is not None:
            split, noun, remedy = " has", "links", "hold some out (links.val)"
        return (
            f"{self._graph.name}{split} no validation {noun}, so the weights of the last evaluation count as "
            f"the best{patience}: {remedy} to choose by {self.metric}"
        )

    def evaluate(
        self,
        model: torch.nn.Module,
        workers: Workers,
        should_stop: Callable[[], bool] = lambda: False,
        scores_at: ScoresAt = lambda vertices: None,
    ) -> dict[str, dict[str, float]]:
        """Return the objective's metrics per split; splits without targets are omitted.

        With `evaluate.mode=full`, `scores_at` may provide the scores [n, C] of vertices; if it returns None,
        they are computed here.

        Raises
        ------
        StopRequested
            If `should_stop` returns true during the evaluation.
        """

        def check() -> None:
            if should_stop():
                raise StopRequested

        if not self._targets.labels:
            return {}
        vertices = self._targets.vertices
        # Summation order depends on the thread count: evaluating a trained model must round the loss like the
        # run did.
        with torch_threads(torch_threads_for(model, workers.count)):
            if self._shared is not None:
                scores = self._shared.scores(model, vertices, workers, check, scores_at)
                return self._shared.tell(None if scores is None else self._metrics(scores))
            scores = scores_at(vertices) if self._config.evaluate.mode == "full" else None
            if scores is None:
                scores = self._scores(model, vertices, workers, check)
            return self._metrics(scores)

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """Return the [C, C] confusion matrix of the latest evaluation (row: test label, column: prediction).

        None before the first evaluation, in a process without scores, without test vertices, with too many
        classes, and for objectives without one score per class.
        """
        return self._confusion

    def _metrics(self, scores: NDArray[np.float32]) -> dict[str, dict[str, float]]:
        """Return the metrics of each split, from the scores of all evaluated vertices."""
        num_classes = self._graph.num_outputs
        self.not_finite = self._name_not_finite(scores)
        if (
            self.objective.labels == "classes"
            and "test" in self._targets.labels
            and num_classes == self.objective.num_scores(num_classes) == scores.shape[1] <= _MAX_CLASSES
        ):
            self._confusion = confusion_matrix(
                scores[self._targets.rows["test"]], self._targets.labels["test"]
            )
        metrics = {}
        for name, labels in self._targets.labels.items():
            with OBJECTIVES.blamed(self.objective.name, "evaluate"):
                returned = self.objective.evaluate(scores[self._targets.rows[name]], labels)
            metrics[name] = check_numbers(self.objective.name, "evaluate", returned)
        return metrics

    def _name_not_finite(self, scores: NDArray[np.float32]) -> str | None:
        """Return a warning that names the first vertex with a score that is not finite; None if there is
        none.
        """
        bad_rows = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        if not len(bad_rows):
            return None
        vertex, ids = self._targets.vertices[bad_rows[0]], self._graph.vertices.vertex_ids
        noun = "scores" if self._graph.links is None else "embeddings"
        return (
            f"the {noun} of {len(bad_rows):,} of {len(scores):,} vertices are not finite numbers, first of "
            f"vertex {vertex if ids is None else ids[vertex]}, so that metrics of these are nan: the model "
            "has diverged, or makes such numbers in evaluation mode: lower train.lr, or check the model and "
            "the features"
        )

    def _scores(
        self, model: torch.nn.Module, vertices: Ids, workers: Workers, check: Callable[[], None]
    ) -> NDArray[np.float32]:
        """Return [n, C] scores from all neighbours (`evaluate.mode=full`) or from sampled neighbours."""
        return score_vertices(
            model,
            self._graph,
            vertices,
            self._config,
            workers,
            full=self._config.evaluate.mode == "full",
            scratch=self._scratch,
            check=check,
        )

    def worth(self, metrics: Mapping[str, Mapping[str, float]], epoch: int) -> float:
        """Return a value to compare evaluations by: higher is better; the epoch without validation targets.

        A NaN metric is the worst.
        """
        if "val" not in metrics:
            return float(epoch)
        with OBJECTIVES.blamed(self.objective.name, "evaluate of the validation vertices"):
            value = metrics["val"][self.metric]
        if math.isnan(value):
            return -math.inf
        return -value if self.metric in self.objective.lowest_is_best else value
