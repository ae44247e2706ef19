"""Who does what in a step: the split and the threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass

STAGES = ("sample", "load", "transfer", "propagate", "synchronize")
"""The four stages of the pipeline, and `synchronize`, which follows `propagate`, in the order of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """CPU threads of each stage that runs on the host."""

    sample: int
    load: int
    """`sample` and `load`: threads of the first two stages."""
    train: int
    """Threads of the CPU trainer; kept, and without effect, where there is none."""

    def __post_init__(self) -> None:
        if min(self.sample, self.load, self.train) < 1:
            raise ValueError(f"every stage has at least 1 thread: {self}")

    def by_name(self) -> dict[str, int]:
        """The threads as the settings and the records of a run name them: `sample`, `load`, `train`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The split and the threads."""

    split: tuple[int, ...]
    """Units (targets, or subgraphs) of a step for each trainer; the sum never changes."""
    threads: Threads
    """The threads of each stage."""

    def __post_init__(self) -> None:
        if not self.split or min(self.split) < 0:
            raise ValueError(f"a split needs a number of at least 0 for each trainer, not {self.split}")
