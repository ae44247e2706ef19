"""What chunks of a whole graph ask of a device: layers, and the rows that are gathered along edges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheringLayer:
    """One layer of a model that gathers rows and multiplies what it has gathered."""

    gathered: int
    """Columns of the rows that are read along edges."""
    out: int
    """Columns of the result."""
    gathers_back: bool = True
    """Whether gradients go back along the edges; not in a layer that gathers the features as they are."""
    kept: bool = False
    """Whether what it gathers is kept on the host from epoch to epoch: of features that are not dropped."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Columns that each of its products takes and makes, one after the other; one product of `gathered` and
    `out` columns by default."""
    reads_own: bool = False
    """Whether vertices read their own rows, too."""
    scales_sources: bool = False
    """Whether rows are multiplied by a factor of their source; gradients always are, by one of their
    destination."""
    drops: bool = False
    """Whether results are dropped at random."""
    drops_read: bool = False
    """Whether rows that are read are dropped at random, each time that they come."""

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Columns that each product takes and makes."""
        return self.shapes or ((self.gathered, self.out),)

    @property
    def summed(self) -> int:
        """Columns of what a vertex has gathered: more than those of a row where its own row stands beside."""
        return self.products[0][0]

    @property
    def weights(self) -> int:
        """Numbers of the weights, and multiply-accumulates of a row forward."""
        return sum(taken * made for taken, made in self.products)

    def back_macs(self, *, wanted: bool) -> int:
        """Multiply-accumulates of a row backward: of the weights' gradients, and of the rows that each
        product took, the first one's only where they are wanted.
        """
        first, *others = (taken * made for taken, made in self.products)
        return self.weights + sum(others) + first * wanted

    @property
    def made(self) -> int:
        """Numbers that the products make of a row."""
        return sum(made for _, made in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkShape:
    """Rows that are gathered along the edges between two intervals."""

    edges: float
    """Edges, each of which reads a row."""
    rows: float
    """Rows that are added to: those with an edge."""
    width: int
    """Columns of a row."""
    read_rows: float
    """Rows of the interval that is read."""
    scaled: bool = False
    """Whether each row that is read is multiplied by a factor."""
