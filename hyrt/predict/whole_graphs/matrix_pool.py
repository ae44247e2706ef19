"""`RecycledMatrices` of sizes alone: which matrices a step takes, and in whose memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from hyrt.fullgraph.recycled_matrices import smallest_that_fits


@dataclass(slots=True)
class PooledMatrix:
    """A matrix in use, in memory that others had before or will have."""

    name: str
    num_bytes: int
    memory: int = -1


@dataclass(slots=True)
class MatrixPool:
    """`RecycledMatrices` of sizes alone, without a limit to what they take in memory."""

    events: list[tuple[str, int]] = field(default_factory=list)
    """What was done, in order: `take` or `give`, and bytes; of a matrix given back, of all its memory."""
    arrays: dict[str, float] = field(default_factory=dict)
    """Bytes by the name of the first matrix that had them."""
    _sizes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, name: str, rows: int, width: int, itemsize: int) -> PooledMatrix:
        """A matrix."""
        found = PooledMatrix(name, rows * width * itemsize)
        self.events.append(("take", found.num_bytes))
        at = smallest_that_fits([(False, self._sizes[memory]) for memory in self._free], found.num_bytes)
        if at is not None:
            found.memory = self._free.pop(at)
            return found
        self._sizes.append(found.num_bytes)
        found.memory = len(self._sizes) - 1
        self.arrays[name] = self.arrays.get(name, 0.0) + found.num_bytes
        return found

    def give(self, matrix: PooledMatrix) -> None:
        """Take a matrix back."""
        self.events.append(("give", self._sizes[matrix.memory]))
        self._free.append(matrix.memory)
