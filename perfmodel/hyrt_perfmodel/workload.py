"""The sizes a training step has."""

from __future__ import annotations

from dataclasses import dataclass


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

    def f_in(self, layer: int) -> int:
        """Width of what layer `layer` (1..L) multiplies: f^(l-1), twice that where it concatenates."""
        return self.features[layer - 1] * (2 if self.concat else 1)
