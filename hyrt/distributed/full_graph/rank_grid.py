"""Two-dimensional grid of ranks: the block of rows of each rank and the blocks that it multiplies with."""

from __future__ import annotations

from dataclasses import dataclass

MOST_WAVES = 4
"""Maximum number of exchange rounds per product. Each round costs every rank one message to every other rank;
received rows are multiplied while the next round is being exchanged.
"""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Grid of P / c x c ranks; each row of the grid holds one block of vertices, replicated c times (1.5D).

    Rank (i, j) adds up the contributions of the blocks of column j to block i. With c = 1, these are all
    blocks
    (1D).
    """

    num_ranks: int
    """P, the number of ranks."""
    replication: int
    """c, the replication factor, a divisor of P."""
    rank: int
    """Number of this rank, i * c + j."""

    @property
    def num_blocks(self) -> int:
        """Number of grid rows, which is the number of vertex blocks."""
        return self.num_ranks // self.replication

    @property
    def row(self) -> int:
        """Grid row i, the block of this rank."""
        return self.rank // self.replication

    @property
    def column(self) -> int:
        """Grid column j of this rank."""
        return self.rank % self.replication

    def home(self, block: int) -> int:
        """Return the rank that represents a block: the first rank that has the block."""
        return block * self.replication

    def column_of(self, block: int) -> int:
        """Return the grid column that multiplies with a block."""
        return block * self.replication // self.num_blocks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that this rank multiplies with, ascending."""
        return tuple(k for k in range(self.num_blocks) if self.column_of(k) == self.column)

    @property
    def multiplies_own(self) -> bool:
        """Whether this rank multiplies with its own block."""
        return self.column_of(self.row) == self.column

    @property
    def waves(self) -> tuple[tuple[int, ...], ...]:
        """Grid rows from which this rank receives rows of `blocks`, per exchange round.

        In each round it receives from the grid rows that follow at certain distances, and sends to the grid
        rows that
        precede at the same distances.
        """
        waves: list[list[int]] = [[] for _ in range(self.num_waves)]
        for distance in range(1, self.num_blocks):
            other = (self.row + distance) % self.num_blocks
            if self.column_of(other) == self.column:
                waves[self._wave(distance)].append(other)
        return tuple(tuple(sorted(wave)) for wave in waves)

    @property
    def takers(self) -> tuple[tuple[int, ...], ...]:
        """Grid rows that receive rows of this rank, per exchange round."""
        waves: list[list[int]] = [[] for _ in range(self.num_waves)]
        if self.multiplies_own:
            for distance in range(1, self.num_blocks):
                waves[self._wave(distance)].append((self.row - distance) % self.num_blocks)
        return tuple(tuple(sorted(wave)) for wave in waves)

    @property
    def num_waves(self) -> int:
        """Number of exchange rounds of a product."""
        return min(MOST_WAVES, self.num_blocks - 1)

    def _wave(self, distance: int) -> int:
        return (distance - 1) * self.num_waves // (self.num_blocks - 1)
