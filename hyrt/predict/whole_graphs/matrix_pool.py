"""Size-only model of `RecycledMatrices`: the matrices of a step, and the memory that they reuse."""

from __future__ import annotations

from dataclasses import dataclass, field

from hyrt.fullgraph.recycled_matrices import smallest_that_fits


@dataclass(slots=True)
class PooledMatrix:
    """A matrix in use, in memory that may be shared with earlier and later matrices."""

    name: str
    num_bytes: int
    memory: int = -1


@dataclass(slots=True)
class MatrixPool:
    """Size-only model of `RecycledMatrices`, without a memory limit."""

    events: list[tuple[str, int]] = field(default_factory=list)
    """`take` and `give` operations in order, with bytes; for a released matrix, all of its memory."""
    arrays: dict[str, float] = field(default_factory=dict)
    """Bytes by the name of the first matrix in each memory block."""
    _sizes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, name: str, rows: int, width: int, itemsize: int) -> PooledMatrix:
        """Allocate a matrix."""
        matrix = PooledMatrix(name, rows * width * itemsize)
        self.events.append(("take", matrix.num_bytes))
        index = smallest_that_fits([(False, self._sizes[memory]) for memory in self._free], matrix.num_bytes)
        if index is not None:
            matrix.memory = self._free.pop(index)
            return matrix
        self._sizes.append(matrix.num_bytes)
        matrix.memory = len(self._sizes) - 1
        self.arrays[name] = self.arrays.get(name, 0.0) + matrix.num_bytes
        return matrix

    def give(self, matrix: PooledMatrix) -> None:
        """Release a matrix."""
        self.events.append(("give", self._sizes[matrix.memory]))
        self._free.append(matrix.memory)
