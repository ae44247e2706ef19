"""Scores of vertices for any model, and evaluation of a model on the validation and test targets, by one or
several processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.config import Config
from hyrt.device import HOST_FORMS
from hyrt.errors import ConfigError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_split import LinkGraph
from hyrt.graph.links.negative_sampling import sample_candidates
from hyrt.inference.infer import infer_full_graph, infer_layerwise, infer_sampled
from hyrt.nn.description import overrides_only
from hyrt.nn.model import GNN, num_torch_threads
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective import Objective
from hyrt.objective.link_prediction import LinkQueries
from hyrt.objective.metrics import check_numbers, confusion_matrix, objective_error
from hyrt.objective.objective import OBJECTIVES, check_metric
from hyrt.pipeline.trainer import plan_input
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids

Metrics = Mapping[str, Mapping[str, float]]


ScoresAt = Callable[[Ids], "NDArray[np.float32] | None"]
"""Function that returns the scores [n, C] of vertices [n], or None."""


class DistributedScorer(Protocol):
    """Scorer that several processes use together. All processes call the same methods in the same order."""

    def compute_scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        """Return the scores of vertices.

        Parameters
        ----------
        model
            Model, with equal weights in all processes.
        vertices
            [n] vertices, equal in all processes.
        workers
            Thread team.
        check
            Function that is called regularly, and may raise an exception in all processes at once.
        scores_at
            Returns scores that a device of this process has computed, or None.

        Returns
        -------
        [n, C] float32 in the process that computes the metrics; None in all others.
        """
        ...

    def broadcast_metrics(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        """Broadcast the metrics; `metrics` is None except in the process that computed them."""
        ...


def computes_by_layers(config: Config, model: torch.nn.Module) -> bool:
    """Return whether evaluations use layer-wise inference."""
    return config.evaluate.mode == "full" and _is_chain(model)


def _is_chain(model: torch.nn.Module) -> bool:
    return isinstance(model, GNN) and not overrides_only(type(model), "forward", "layer")


def score_vertices(
    model: torch.nn.Module,
    graph: Graph,
    vertices: Ids,
    config: Config,
    workers: Workers,
    *,
    full: bool,
    scratch: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Apply a model to vertices, with all neighbours if `full`, otherwise with sampled neighbours.

    Returns [n, C] float32 in the order of `vertices`. A module that overrides `forward` does not support
    layer-wise inference. With all neighbours, it gets small mini-batches (neighbourhoods grow with depth), or
    the full graph if it trains on full graphs. `check` is called between pieces of the work, and may raise an
    exception to stop.
    """
    if full and isinstance(model, GNN) and _is_chain(model):
        return infer_layerwise(
            model,
            graph,
            vertices,
            workers,
            memory_bytes=int(config.evaluate.memory_gib * 2**30),
            scratch=scratch,
            between_chunks=check,
        )
    full_graph = full and config.sampler.is_full_graph
    plan = plan_input(model, graph, HOST_FORMS, fuse=config.runtime.fuse_load, whole=full_graph)
    if full_graph:
        check()
        return infer_full_graph(model, graph, vertices, workers, layers=len(config.fanouts), plan=plan)
    return infer_sampled(
        model,
        graph,
        vertices,
        workers,
        fanouts=[-1] * len(config.fanouts) if full else config.fanouts,
        batch_size=min(config.data.batch_size, 256) if full else config.data.batch_size,
        seed=config.seed,
        plan=plan,
        between_chunks=check,
    )


@dataclass(frozen=True, slots=True, eq=False)
class EvalTargets:
    """Targets of an evaluation. Splits without targets are omitted."""

    vertices: NDArray[np.int64]
    """Vertices to score, [n]."""
    rows: Mapping[str, slice]
    """Slice of each split in the scores of `vertices`."""
    labels: Mapping[str, Any]
    """Argument `labels` of `hyrt.objective.Objective.evaluate` for each split."""

    __repr__ = short_repr


def eval_vertices(config: Config, graph: Graph) -> EvalTargets:
    """Return the validation vertices followed by the test vertices."""
    splits = {name: graph.split(name, config.data.split) for name in ("val", "test")}
    splits = {name: vertices for name, vertices in splits.items() if len(vertices)}
    ends = np.cumsum([0, *(len(vertices) for vertices in splits.values())])
    return EvalTargets(
        vertices=np.concatenate([np.empty(0, np.int64), *splits.values()]),
        rows={name: slice(ends[i], ends[i + 1]) for i, name in enumerate(splits)},
        labels={name: graph.vertices.select_labels(vertices) for name, vertices in splits.items()},
    )


def eval_links(config: Config, graph: Graph, links: LinkGraph) -> EvalTargets:
    """Return the held-out links, with their negatives and ranking candidates."""
    held_out, num_candidates = links.split.held_out, config.links.candidates
    candidates: dict[str, NDArray[np.int64] | None] = {
        name: None
        if num_candidates == "all"
        else sample_candidates(links.known_edges, part.links, config.seed, name, num_candidates, links.ends)
        for name, part in held_out.items()
    }
    if num_candidates == "all":
        vertices = np.arange(graph.num_vertices)
    else:
        ends = [part for each in held_out.values() for part in (each.links.ravel(), each.negatives.ravel())]
        sampled = [each[each >= 0] for each in candidates.values() if each is not None]
        vertices = np.unique(np.concatenate([np.empty(0, np.int64), *ends, *sampled]))

    def rows_of(ids: NDArray[Any]) -> NDArray[np.int64]:
        return np.where(ids < 0, -1, np.searchsorted(vertices, ids)).astype(np.int64)

    return EvalTargets(
        vertices=vertices,
        rows={name: slice(None) for name in held_out},
        labels={
            name: LinkQueries(
                links=rows_of(part.links),
                negatives=rows_of(part.negatives),
                candidates=None if (sampled_pairs := candidates[name]) is None else rows_of(sampled_pairs),
                known_edges=links.known_edges if num_candidates == "all" else None,
                ends=links.ends if num_candidates == "all" else None,
            )
            for name, part in held_out.items()
        },
    )


# A larger confusion matrix would not be readable.
_MAX_CLASSES = 20


class EvaluationStoppedError(Exception):
    """Exception if the run is stopped during an evaluation."""


class Evaluator:
    """Evaluator of models on the splits of a dataset.

    `scratch` is the folder for temporary files; None selects the system's default. By default, `objective` is
    built from the settings. Without a `scorer`, this process computes all scores.

    Raises ConfigError if the metric that selects the best epoch cannot be computed on the validation targets.
    """

    def __init__(
        self,
        config: Config,
        graph: Graph,
        scratch: Path | None,
        objective: Objective | None = None,
        scorer: DistributedScorer | None = None,
    ) -> None:
        self._config = config
        self._graph = graph
        self._scratch = scratch
        self._shared = scorer
        self._confusion: NDArray[np.int64] | None = None
        self.not_finite: str | None = None
        """Warning about non-finite scores in the latest evaluation; None if all are finite."""
        self.objective = objective or config.build_objective(graph.labels)
        metric = config.train.metric
        self.metric = self.objective.metrics[0] if metric == "auto" else metric
        links = graph.links
        self._targets = eval_vertices(config, graph) if links is None else eval_links(config, graph, links)
        if self.metric not in self.objective.metrics:
            check_metric(self.objective.name, self.metric)
        validation = self._targets.labels.get("val", graph.vertices.select_labels(np.empty(0, np.int64)))
        with OBJECTIVES.wrap_errors(self.objective.name, "metric_problem"):
            reason = self.objective.metric_problem(self.metric, validation, graph.num_outputs)
        if not isinstance(reason, str):
            raise objective_error(
                self.objective.name,
                f"metric_problem returned {show(reason)}: return a string, empty for no problem",
            )
        if reason:
            raise ConfigError(f"{graph.name}, split {config.data.split}: train.metric={self.metric} {reason}")

    @property
    def warning(self) -> str | None:
        """Return a warning at the start of a run if there are no validation targets, otherwise None."""
        if "val" in self._targets.labels:
            return None
        patience = " and train.patience has no effect" if self._config.train.patience else ""
        split, noun, remedy = f" in split {self._config.data.split}", "vertices", "add a val_mask"
        if self._graph.links is not None:
            split, noun, remedy = "", "links", "hold out some (links.val)"
        return (
            f"{self._graph.name} has no validation {noun}{split}, so the weights of the last evaluation "
            f"count as the best{patience}: {remedy} to select the weights by {self.metric}"
        )

    def evaluate(
        self,
        model: torch.nn.Module,
        workers: Workers,
        should_stop: Callable[[], bool] = lambda: False,
        scores_at: ScoresAt = lambda vertices: None,
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of the objective for each split with targets.

        With `evaluate.mode=full`, `scores_at` may return the scores [n, C] of vertices; if it returns None,
        this process computes the scores. Raises EvaluationStoppedError if `should_stop` returns true during
        the evaluation.
        """

        def check() -> None:
            if should_stop():
                raise EvaluationStoppedError

        if not self._targets.labels:
            return {}
        vertices = self._targets.vertices
        # The order of sums depends on the number of threads: later evaluations of the model must round alike.
        with torch_threads(num_torch_threads(model, workers.count)):
            if self._shared is not None:
                scores = self._shared.compute_scores(model, vertices, workers, check, scores_at)
                return self._shared.broadcast_metrics(None if scores is None else self._metrics(scores))
            scores = scores_at(vertices) if self._config.evaluate.mode == "full" else None
            if scores is None:
                scores = self._scores(model, vertices, workers, check)
            return self._metrics(scores)

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """Return the confusion matrix [C, C] of the latest evaluation (row: test label, column: prediction).

        Returns None before the first evaluation, in a process without scores, without test vertices, with
        more than `_MAX_CLASSES` classes, and for objectives without a score per class.
        """
        return self._confusion

    def _metrics(self, scores: NDArray[np.float32]) -> dict[str, dict[str, float]]:
        """Return the metrics of each split from the scores of all evaluated vertices."""
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
            with OBJECTIVES.wrap_errors(self.objective.name, "evaluate"):
                returned = self.objective.evaluate(scores[self._targets.rows[name]], labels)
            metrics[name] = check_numbers(self.objective.name, "evaluate", returned)
        return metrics

    def _name_not_finite(self, scores: NDArray[np.float32]) -> str | None:
        """Return a warning that names the first vertex with a non-finite score, or None."""
        bad_rows = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        if not len(bad_rows):
            return None
        vertex, ids = self._targets.vertices[bad_rows[0]], self._graph.vertices.vertex_ids
        noun = "scores" if self._graph.links is None else "embeddings"
        return (
            f"the {noun} of {len(bad_rows):,} of {len(scores):,} vertices are not finite, starting at vertex "
            f"{vertex if ids is None else ids[vertex]}, so their metrics are nan: lower train.lr in case the "
            "model has diverged, or check the features, and the model in evaluation mode"
        )

    def _scores(
        self, model: torch.nn.Module, vertices: Ids, workers: Workers, check: Callable[[], None]
    ) -> NDArray[np.float32]:
        """Return scores [n, C] from all neighbours (`evaluate.mode=full`) or from sampled neighbours."""
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

    def ranking_value(self, metrics: Mapping[str, Mapping[str, float]], epoch: int) -> float:
        """Return a value by which evaluations are ranked: higher is better, and NaN metrics are the worst.

        Without validation targets, the value is the epoch.
        """
        if "val" not in metrics:
            return float(epoch)
        with OBJECTIVES.wrap_errors(self.objective.name, "evaluate of the validation vertices"):
            value = metrics["val"][self.metric]
        if math.isnan(value):
            return -math.inf
        return -value if self.metric in self.objective.lowest_is_best else value
