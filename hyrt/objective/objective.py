"""Base class of training objectives, and the registry of the entry-point group `hyrt.objectives`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.errors import ConfigError, join_names
from hyrt.runtime.entry_points import EntryPointGroup

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hyrt.graph.labels import LabelKind, TargetKind


class Objective(ABC):
    """Training objective. Subclasses are declared in the entry-point group `hyrt.objectives`.

    Trainers compute the loss sum and the counts of their mini-batches. The synchronizer adds both over all
    trainers, then divides the loss sum by the sum of all normalizers (`MiniBatch.normalizer`). Both must
    therefore be sums over targets: the term of a target must not depend on other targets of its mini-batch.

    The constructor gets the options of `train.objective_options` as keyword arguments, and also
    `class_weights` and `label_smoothing` if `train` sets them. It raises TypeError or ValueError if an option
    is invalid.
    """

    name: ClassVar[str]
    """Name of the objective in the entry-point group."""
    labels: ClassVar[TargetKind] = "classes"
    """Kind of the labels: `classes` ([n] int64), `flags` ([n, K] int8 of 0 and 1, -1 for unknown) or
    `numbers` ([n, K] float32, NaN for unknown). `links` is reserved for `hyrt.objective`.
    """
    counts: ClassVar[tuple[str, ...]] = ("targets",)
    """Keys of the result of `count`, which must include `targets`, the number of targets."""
    metrics: ClassVar[tuple[str, ...]]
    """Metrics of `evaluate` that may select the best epoch (`train.metric`); `auto` selects the first."""
    lowest_is_best: ClassVar[tuple[str, ...]] = ()
    """Metrics for which the lowest value is best. For all other `metrics`, the highest value is best."""

    @abstractmethod
    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the sum of the losses of all targets, each multiplied by the target's weight.

        This runs on the trainer's torch device under autograd, or on the host if the device has its own
        kernels.

        Parameters
        ----------
        scores
            Scores [n, C] float32, which are the model output for the targets.
        labels
            Labels of the targets, in the format of the class attribute `labels`.
        weights
            Weights of the targets [n], float32; None if all are 1.

        Returns
        -------
        Scalar that is differentiable with respect to `scores`.
        """

    @abstractmethod
    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        """Compute counts over the targets, with the names in `counts` as keys.

        Parameters
        ----------
        scores
            Scores [n, C], float32, without gradient.
        labels
            Labels of the targets.

        Returns
        -------
        Numbers, or scalar tensors on the device of `scores`, which avoid waiting for the device. Integers up
        to 2^31 - 1 are transferred exactly.
        """

    @abstractmethod
    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of training steps from counts that are summed over all trainers and may be 0."""

    @abstractmethod
    def evaluate(self, scores: NDArray[Any], labels: Any) -> dict[str, float]:
        """Return all metrics of a split.

        Parameters
        ----------
        scores
            Scores [n, C], float32.
        labels
            Labels of the vertices, in the format of the class attribute `labels`.
        """

    def fit_to_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        """Return the objective fitted to the training targets: the objective itself, or a copy with
        statistics of the labels.

        This is called once per run, before the sampler is built and before devices load the model. Every rank
        passes the labels of the whole run.

        Parameters
        ----------
        labels
            Labels of all training targets.
        num_outputs
            Number of classes, flags or regression values.
        """
        return self

    def num_scores(self, num_classes: int) -> int | None:
        """Return the minimum number of scores per target that a model must return; None for any.

        Parameters
        ----------
        num_classes
            Number of classes, flags or regression values of the dataset.
        """
        return None

    @property
    def scores_pairs(self) -> bool:
        """Return whether the loss scores pairs of vertices, which needs the rows of all targets first."""
        return self.labels == "links"

    @property
    def is_plain_classification(self) -> bool:
        """Return whether loss and counts are those of softmax cross entropy, which devices with their own
        kernels implement.
        """
        return False

    def metric_problem(self, metric: str, labels: Any, num_classes: int) -> str:
        """Return why a metric cannot select the best epoch, and the remedy; "" if it can.

        Parameters
        ----------
        metric
            Name in `metrics`.
        labels
            Labels of the validation vertices, possibly empty.
        num_classes
            Number of classes of the dataset.
        """
        return ""

    def class_weights(self, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32] | None:
        """Return the weight of each class; samplers pass target weights on as `MiniBatch.target_weights`.

        Parameters
        ----------
        labels
            Integer labels [n] of the training targets.
        num_classes
            Number of classes of the dataset.

        Returns
        -------
        Weights [num_classes] float32 with mean 1 over the training targets; None if all weights are equal.
        """
        return None


def sum_counts(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up the counts of several mini-batches by name."""
    total: dict[str, float] = {}
    for each in counts:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total


OBJECTIVES = EntryPointGroup("hyrt.objectives", "objective")

AUTO_OBJECTIVE = "auto"
"""Value of `train.objective` that selects the objective by the kind of the dataset's labels."""
DEFAULT_OBJECTIVES: dict[LabelKind, str] = {
    "classes": "classification",
    "flags": "multilabel",
    "numbers": "regression",
}
"""Objective that `auto` selects for each kind of labels."""


def find_objective(name: str) -> type[Objective]:
    """Load the objective class named `name`; raise the errors of `EntryPointGroup.load_class`."""
    # Import this late, because reading settings must not import numpy.
    from hyrt.graph.labels import LABEL_SHAPES

    kind = OBJECTIVES.load_class(name, Objective)  # type: ignore[type-abstract]
    if getattr(kind, "name", None) != name:
        raise ConfigError(
            f"objective {name!r}: {OBJECTIVES.find_entry(name).value} must derive from Objective and set "
            f"name = {name!r}"
        )
    if not getattr(kind, "metrics", ()):
        raise ConfigError(
            f"{OBJECTIVES.describe(name)}: its attribute metrics is empty: list at least one metric that "
            "evaluate returns"
        )
    if getattr(kind, "labels", None) not in (*LABEL_SHAPES, "links"):
        raise ConfigError(
            f"{OBJECTIVES.describe(name)}: its attribute labels must be one of "
            f"{join_names(tuple(LABEL_SHAPES))}"
        )
    return kind


def build_objective(name: str, options: Mapping[str, Any], labels: NDArray[Any] | None = None) -> Objective:
    """Build an objective by its declared name, or by the kind of the labels if the name is `auto`.

    `options` are keyword arguments of the constructor. Without a dataset, `labels` is None and `auto` selects
    `classification`. Raises ConfigError or PluginConflictError if the objective cannot be found, rejects its
    options, or does not support the kind of labels.
    """
    from hyrt.graph.labels import LABEL_SHAPES, get_label_kind

    found_kind = None if labels is None else get_label_kind(labels)
    name = DEFAULT_OBJECTIVES[found_kind or "classes"] if name == AUTO_OBJECTIVE else name
    kind = find_objective(name)
    if labels is not None and found_kind is not None and kind.labels != "links" and kind.labels != found_kind:
        raise ConfigError(
            f"train.objective={name} needs labels that are {LABEL_SHAPES[kind.labels]}, but they are "
            f"{labels.dtype.name} {list(labels.shape)}, read as {LABEL_SHAPES[found_kind]}: remove "
            f"train.objective to use {DEFAULT_OBJECTIVES[found_kind]}, or convert the labels"
        )
    for option in ("class_weights", "label_smoothing"):
        if option in options and not _accepts_keyword(kind, option):
            raise ConfigError(
                f"train.{option}={options[option]} is not supported by objective {name}: remove "
                f"train.{option}"
            )
    try:
        with OBJECTIVES.wrap_errors(name, "creating it", passing=(TypeError, ValueError)):
            return kind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train.objective={name!r} rejects the options {dict(options)}: {error}") from error


def _accepts_keyword(kind: type[Objective], option: str) -> bool:
    """Return whether a constructor accepts a keyword argument."""
    parameters = inspect.signature(kind).parameters.values()
    return any(each.name == option or each.kind is each.VAR_KEYWORD for each in parameters)


def check_metric(name: str, metric: str) -> None:
    """Check that an objective exists and has the metric (or `auto`) that selects the best epoch.

    If the objective is `auto`, it suffices that one of the possible objectives has the metric. Raises
    ConfigError or PluginConflictError if the objective cannot be found or lacks the metric.
    """
    if name == AUTO_OBJECTIVE:
        kinds = [
            find_objective(each)
            for each in DEFAULT_OBJECTIVES.values()
            if each in OBJECTIVES.entries_by_name()
        ]
        metrics = tuple(dict.fromkeys(metric for kind in kinds for metric in kind.metrics))
        name = "the objectives"
    else:
        metrics = find_objective(name).metrics
    if metric not in ("auto", *metrics):
        near = nearest_name(metric, metrics)
        hint = f" (did you mean {near!r}?)" if near else ""
        choices = join_names(("auto", *metrics), "or")
        raise ConfigError(f"train.metric={metric!r} is not a metric of {name}: choose {choices}{hint}")
