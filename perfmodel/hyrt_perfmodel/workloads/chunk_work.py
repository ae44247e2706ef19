"""Work of full-graph chunks on a device: layers, and rows gathered along edges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheringLayer:
    """One layer that gathers rows and multiplies the gathered result."""

    gathered: int
    """Columns of the rows that are read along edges."""
    out: int
    """Columns of the result."""
    gathers_back: bool = True
    """Whether gradients are propagated along the edges; False for a layer that gathers the raw features."""
    kept: bool = False
    """Whether the gathered result is cached on the host across epochs: for features without dropout."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Input and output columns of each of its products, in order; by default one product of `gathered` and
    `out` columns."""
    reads_own: bool = False
    """Whether vertices also read their own rows."""
    scales_sources: bool = False
    """Whether rows are scaled by a factor of their source; gradients are always scaled by a factor of their
    destination."""
    drops: bool = False
    """Whether dropout is applied to the results."""
    drops_read: bool = False
    """Whether dropout is applied to source rows, each time they are uploaded."""

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Input and output columns of each product."""
        return self.shapes or ((self.gathered, self.out),)

    @property
    def summed(self) -> int:
        """Columns of a vertex's gathered result: more than a row's if its own row is concatenated."""
        return self.products[0][0]

    @property
    def weights(self) -> int:
        """Number of weights, which is also the multiply-accumulates per row of the forward pass."""
        return sum(taken * made for taken, made in self.products)

    def back_macs(self, *, wanted: bool) -> int:
        """Return the multiply-accumulates per row of the backward pass.

        These are for the weight gradients and for the gradient of each product's input, the first product's
        only if `wanted`.
        """
        first, *others = (taken * made for taken, made in self.products)
        return self.weights + sum(others) + first * wanted

    @property
    def made(self) -> int:
        """Result values of all products per row."""
        return sum(made for _, made in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkShape:
    """Rows gathered along the edges between two intervals."""

    edges: float
    """Edges, each of which reads one row."""
    rows: float
    """Destination rows with at least one edge."""
    width: int
    """Columns of a row."""
    read_rows: float
    """Rows of the source interval."""
    scaled: bool = False
    """Whether each source row is scaled by a factor."""
