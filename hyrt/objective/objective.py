"""The objective protocol: the loss of a mini-batch, what is counted beside it, and the metrics of both."""

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
    """What a run trains for; a subclass is declared in the entry-point group `hyrt.objectives`.

    Trainers compute the loss sum and the counts of their mini-batches. The synchronizer adds both over all
    trainers and divides the loss sum once, by the sum of the mini-batches' normalizers
    (`MiniBatch.normalizer`). So both must be sums over targets: no target's term may depend on another target
    of its mini-batch.

    The constructor takes the options of `train.objective_options`, and `class_weights` and `label_smoothing`
    where `train` sets them, as keyword arguments; it raises TypeError or ValueError for those that do not
    fit.
    """

    name: ClassVar[str]
    """The name that the entry-point group declares."""
    labels: ClassVar[TargetKind] = "classes"
    """The kind of labels that it trains for: `classes` ([n] int64), `flags` ([n, K] int8 of 0 and 1, -1 for
    not known) or `numbers` ([n, K] float32, nan for not known). `links` is of `hyrt.objective.links` alone,
    which looks at no labels."""
    counts: ClassVar[tuple[str, ...]] = ("targets",)
    """Names of what `count` returns. `targets`, the number of targets, is always one of them."""
    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics of `evaluate` that may choose the best epoch (`train.metric`); `auto` takes
    the first."""
    lowest_is_best: ClassVar[tuple[str, ...]] = ()
    """Those of `metrics` whose lowest value is the best one; of the others it is the highest."""

    @abstractmethod
    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Sum of the targets' losses, each times its weight.

        It runs on the trainer's torch device under autograd, or on the host for a device with kernels of its
        own.

        Parameters
        ----------
        scores
            [n, C] float32, what the model gives for the targets.
        labels
            The targets', as `labels` of the class says.
        weights
            [n] float32; None where each is 1.

        Returns
        -------
        A scalar that can be differentiated by `scores`.
        """

    @abstractmethod
    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        """What is counted over the targets, by the names of `counts`.

        Parameters
        ----------
        scores
            [n, C] float32, without gradient.
        labels
            The targets', as `labels` of the class says.

        Returns
        -------
        Numbers, or scalar tensors on the device of `scores`, so that nothing waits for the device. Integers
        come to the host exactly up to 2^31 - 1.
        """

    @abstractmethod
    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Metrics of training steps from the added counts of all their trainers, empty ones included."""

    @abstractmethod
    def evaluate(self, scores: NDArray[Any], labels: Any) -> dict[str, float]:
        """All metrics of one split.

        Parameters
        ----------
        scores
            [n, C] float32.
        labels
            The vertices', as `labels` of the class says.
        """

    def with_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        """The same objective, or a copy that knows what it needs of the training targets.

        A run asks once, before its sampler is made and its devices load the model; every rank asks with the
        labels of the whole run.

        Parameters
        ----------
        labels
            Those of all training targets, as `labels` of the class says.
        num_outputs
            How many classes, flags or numbers there are.
        """
        return self

    def num_scores(self, num_classes: int) -> int | None:
        """How many scores a model must return for each target at least; None for any number.

        Parameters
        ----------
        num_classes
            The number of classes, flags or numbers of the dataset.
        """
        return None

    @property
    def scores_pairs(self) -> bool:
        """Whether a loss looks at the scores of two vertices, so that all targets' are computed first."""
        return self.labels == "links"

    @property
    def is_plain_classification(self) -> bool:
        """Whether loss sum and counts are those that kernel devices know: softmax cross entropy and hits."""
        return False

    def why_not(self, metric: str, labels: Any, num_classes: int) -> str:
        """Why one of `metrics` cannot choose the best epoch, with the remedy; empty where it can.

        Parameters
        ----------
        metric
            The name of the metric.
        labels
            The validation vertices', as `labels` of the class says; there may be none.
        num_classes
            The number of classes of the dataset.
        """
        return ""

    def class_weights(self, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32] | None:
        """What samplers weigh the targets with, by label; they hand it on as `MiniBatch.target_weights`.

        Parameters
        ----------
        labels
            [n] integer, the training targets'.
        num_classes
            The number of classes of the dataset.

        Returns
        -------
        [num_classes] float32, with mean 1 over the training targets; None where every target counts the same.
        """
        return None


def added(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The counts of several mini-batches, added by name."""
    total: dict[str, float] = {}
    for each in counts:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total
