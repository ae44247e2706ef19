"""The sizes a training step has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hyrt_perfmodel.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One trainer's mini-batch, layer by layer.

    Parameters
    ----------
    vertices
        |V^0| .. |V^L|, the input vertices first and the targets last.
    edges
        |E^1| .. |E^L|, sampled edges of each layer.
    features
        f^0 .. f^L, widths of the rows.
    concat
        Whether a layer concatenates the own row and the aggregate, so that its f_in is 2 f.
    bytes_per_value
        S.

    Raises
    ------
    ValueError
        If the lists' lengths do not belong together, or a size is negative.
    """

    vertices: tuple[float, ...]
    edges: tuple[float, ...]
    features: tuple[int, ...]
    concat: bool
    bytes_per_value: int = 4

    def __post_init__(self) -> None:
        layers = len(self.edges)
        if len(self.vertices) != layers + 1 or len(self.features) != layers + 1:
            raise ValueError(
                f"{layers} layers of edges need {layers + 1} vertex counts and widths, "
                f"not {len(self.vertices)} and {len(self.features)}"
            )
        if min((*self.vertices, *self.edges, *self.features, self.bytes_per_value)) < 0:
            raise ValueError("sizes cannot be negative")

    @property
    def layers(self) -> int:
        return len(self.edges)

    @property
    def num_edges(self) -> float:
        """Sampled edges of all layers."""
        return sum(self.edges)

    @property
    def num_weights(self) -> int:
        """Sum over the layers of f_in^l f^l."""
        return sum(self.f_in(layer) * self.features[layer] for layer in range(1, self.layers + 1))

    def f_in(self, layer: int) -> int:
        """Width of what layer `layer` (1..L) multiplies: f^(l-1), twice that where it concatenates."""
        return self.features[layer - 1] * (2 if self.concat else 1)

    def scaled(self, factor: float) -> Workload:
        """The same with `factor` times as many vertices and edges."""
        return Workload(
            vertices=tuple(count * factor for count in self.vertices),
            edges=tuple(count * factor for count in self.edges),
            features=self.features,
            concat=self.concat,
            bytes_per_value=self.bytes_per_value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What an epoch of training asks of a platform.

    Parameters
    ----------
    at
        The expected workload of one trainer's mini-batch with that many targets.
    targets_per_epoch
        Training vertices.
    batch_size
        Targets of a step, summed over all trainers.
    batch_per_trainer
        What each trainer takes in the paper's form, where nothing is re-split; None for an equal part of `batch_size`.
    sample_s
        T_sample of a step with the threads it was measured with; None where it follows from the host's rate.
    model
        Kind of model, for the rates that were measured with it.

    Raises
    ------
    ValueError
        If a number is not above 0.
    """

    at: Callable[[float], Workload]
    targets_per_epoch: int
    batch_size: int
    batch_per_trainer: int | None = None
    sample_s: float | None = None
    model: str = ""

    def __post_init__(self) -> None:
        check_positive(
            "workload",
            targets_per_epoch=self.targets_per_epoch,
            batch_size=self.batch_size,
            batch_per_trainer=self.batch_per_trainer,
        )
        check_not_negative("workload", sample_s=self.sample_s)


def in_proportion(workload: Workload, targets: float) -> Callable[[float], Workload]:
    """Sizes that grow in proportion to the targets, from those of one mini-batch."""
    return lambda wanted: workload.scaled(wanted / targets)
