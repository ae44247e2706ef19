"""Assignment of work to trainers and of CPU threads to pipeline stages."""

from __future__ import annotations

from dataclasses import asdict, dataclass

STAGES = ("sample", "load", "transfer", "propagate", "synchronize")
"""Names of the four pipeline stages in step order, then `synchronize`, which follows `propagate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """CPU threads per host stage."""

    sample: int
    load: int
    """`sample` and `load`: threads of the first two stages."""
    train: int
    """Threads of the CPU trainer; ignored if there is no CPU trainer."""

    def __post_init__(self) -> None:
        if min(self.sample, self.load, self.train) < 1:
            raise ValueError(f"every stage has at least 1 thread: {self}")

    def by_name(self) -> dict[str, int]:
        """Return thread counts by their names in settings and run records: `sample`, `load`, `train`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Split of a step's targets and threads of its stages."""

    split: tuple[int, ...]
    """Units (targets or subgraphs) per trainer in one step; the sum never changes."""
    threads: Threads
    """Threads per stage."""

    def __post_init__(self) -> None:
        if not self.split or min(self.split) < 0:
            raise ValueError(f"a split needs a number of at least 0 for each trainer, not {self.split}")
