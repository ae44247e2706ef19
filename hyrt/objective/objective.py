"""Objective protocol: loss and counts of a mini-batch, and the metrics computed from counts or scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hyrt.graph.labels.label_kind import TargetKind


class Objective(ABC):
    """Training objective; subclasses are declared in the entry-point group `hyrt.objectives`.

    Trainers compute the loss sum and the counts of their mini-batches. The synchronizer adds both over all
    trainers, and divides the loss sum once by the sum of all normalizers (`MiniBatch.normalizer`). Both must
    therefore be sums over targets: the term of a target must not depend on other targets of its mini-batch.

    The constructor takes the options of `train.objective_options` as keyword arguments, and also
    `class_weights` and `label_smoothing` if `train` sets them. It raises TypeError or ValueError for invalid
    options.
    """

    name: ClassVar[str]
    """The name in the entry-point group."""
    labels: ClassVar[TargetKind] = "classes"
    """Kind of the labels: `classes` ([n] int64), `flags` ([n, K] int8 of 0 and 1, -1 for unknown) or
    `numbers` ([n, K] float32, NaN for unknown). `links` is reserved for `hyrt.objective.links`, which does
    not use labels.
    """
    counts: ClassVar[tuple[str, ...]] = ("targets",)
    """Keys of the result of `count`. `targets`, the number of targets, is always one of the keys."""
    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics from `evaluate` that may select the best epoch (`train.metric`); `auto` uses the
    first.
    """
    lowest_is_best: ClassVar[tuple[str, ...]] = ()
    """Metrics whose lowest value is best; for all other `metrics`, the highest is best."""

    @abstractmethod
    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the sum of the targets' losses, each multiplied by its weight.

        Runs on the trainer's torch device under autograd, or on the host if the device uses its own kernels.

        Parameters
        ----------
        scores
            [n, C] float32, the model output for the targets.
        labels
            Labels of the targets; see the class attribute `labels`.
        weights
            [n] float32; None if each weight is 1.

        Returns
        -------
        A scalar that is differentiable with respect to `scores`.
        """

    @abstractmethod
    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        """Count over the targets, with the keys `counts`.

        Parameters
        ----------
        scores
            [n, C] float32, without gradient.
        labels
            Labels of the targets; see the class attribute `labels`.

        Returns
        -------
        Numbers, or scalar tensors on the device of `scores` (which avoid waiting for the device). Integers
        are transferred exactly up to 2^31 - 1.
        """

    @abstractmethod
    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of training steps from counts summed over all trainers; counts may be 0."""

    @abstractmethod
    def evaluate(self, scores: NDArray[Any], labels: Any) -> dict[str, float]:
        """Return all metrics of one split.

        Parameters
        ----------
        scores
            [n, C] float32.
        labels
            Labels of the vertices; see the class attribute `labels`.
        """

    def with_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        """Return the objective fitted to the training targets: itself, or a copy with statistics of the
        labels.

        Called once per run, before the sampler is built and the devices load the model. Every rank passes the
        labels of the whole run.

        Parameters
        ----------
        labels
            Labels of all training targets; see the class attribute `labels`.
        num_outputs
            Number of classes, flags or regression values.
        """
        return self

    def num_scores(self, num_classes: int) -> int | None:
        """Return the minimum number of scores per target that a model must return; None for any number.

        Parameters
        ----------
        num_classes
            Number of classes, flags or regression values of the dataset.
        """
        return None

    @property
    def scores_pairs(self) -> bool:
        """Return whether the loss needs pairs of vertices, so that all targets' scores are computed first."""
        return self.labels == "links"

    @property
    def is_plain_classification(self) -> bool:
        """Return whether loss and counts are the built-in softmax cross entropy that kernel devices
        implement.
        """
        return False

    def why_not(self, metric: str, labels: Any, num_classes: int) -> str:
        """Return why a metric cannot select the best epoch, with the remedy; "" if it can.

        Parameters
        ----------
        metric
            Name of one of the `metrics`.
        labels
            Labels of the validation vertices (see the class attribute `labels`); may be empty.
        num_classes
            Number of classes of the dataset.
        """
        return ""

    def class_weights(self, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32] | None:
        """Return the weights of targets by class; samplers forward them as `MiniBatch.target_weights`.

        Parameters
        ----------
        labels
            [n] integer labels of the training targets.
        num_classes
            Number of classes of the dataset.

        Returns
        -------
        [num_classes] float32 with mean 1 over the training targets; None if all targets have equal weight.
        """
        return None


def added(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add the counts of several mini-batches by name."""
    total: dict[str, float] = {}
    for each in counts:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total
