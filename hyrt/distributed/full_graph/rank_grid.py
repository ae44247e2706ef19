"""The ranks as a grid: which block of rows each one has, and whose rows it multiplies with."""

from __future__ import annotations

from dataclasses import dataclass

MOST_WAVES = 4
"""Into how many exchanges the rows of a product are divided, at most: each costs every rank a message to
every other, and what has arrived is multiplied while the next one travels."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """P / c x c ranks; each row of the grid has one block of the graph's vertices, c times (1.5D).

    Rank (i, j) adds up what the blocks of column j contribute to block i. With c = 1 those are all (1D).
    """

    num_ranks: int
    """P."""
    replication: int
    """c, which divides P."""
    rank: int
    """The number of this rank: i * c + j."""

    @property
    def num_blocks(self) -> int:
        """Rows of the grid, and blocks of vertices."""
        return self.num_ranks // self.replication

    @property
    def row(self) -> int:
        """i, the block of this rank."""
        return self.rank // self.replication

    @property
    def column(self) -> int:
        """J."""
        return self.rank % self.replication

    def home(self, block: int) -> int:
        """The rank that answers for a block: the first of those that have it."""
        return block * self.replication

    def column_of(self, block: int) -> int:
        """The column in which a block is multiplied with."""
        return block * self.replication // self.num_blocks

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks whose rows this rank multiplies with, ascending."""
        return tuple(k for k in range(self.num_blocks) if self.column_of(k) == self.column)

    @property
    def multiplies_own(self) -> bool:
        """Whether its own block is among them."""
        return self.column_of(self.row) == self.column

    @property
    def waves(self) -> tuple[tuple[int, ...], ...]:
        """The rows of the grid from which this one takes rows of `blocks`, for each exchange.

        In each of them it takes from the rows of the grid that follow at some distances, and gives to those
        that precede at the same.
        """
        found: list[list[int]] = [[] for _ in range(self.num_waves)]
        for distance in range(1, self.num_blocks):
            other = (self.row + distance) % self.num_blocks
            if self.column_of(other) == self.column:
                found[self._wave(distance)].append(other)
        return tuple(tuple(sorted(each)) for each in found)

    @property
    def takers(self) -> tuple[tuple[int, ...], ...]:
        """The rows of the grid that take rows of this one in each exchange."""
        found: list[list[int]] = [[] for _ in range(self.num_waves)]
        if self.multiplies_own:
            for distance in range(1, self.num_blocks):
                found[self._wave(distance)].append((self.row - distance) % self.num_blocks)
        return tuple(tuple(sorted(each)) for each in found)

    @property
    def num_waves(self) -> int:
        """Exchanges of a product."""
        return min(MOST_WAVES, self.num_blocks - 1)

    def _wave(self, distance: int) -> int:
        return (distance - 1) * self.num_waves // (self.num_blocks - 1)
