"""A workload given in full as YAML, instead of a dataset and a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hyrt_perfmodel.checks import Number, Truth, Whole
from hyrt_perfmodel.file_content import made_of, read_yaml
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload, in_proportion


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The keys of a file."""

    vertices: tuple[Number, ...]
    edges: tuple[Number, ...]
    features: tuple[Whole, ...]
    concat: Truth
    bytes_per_value: Whole = 4
    targets_per_epoch: Whole
    batch_per_trainer: Whole
    sample_s: Number | None = None


def load_workload(path: str | Path) -> TrainingWorkload:
    """Read a workload.

    Its sizes are those of one trainer's mini-batch of `batch_per_trainer` targets; for other numbers of
    targets they are taken in proportion. The last of `vertices` need not be `batch_per_trainer` (it may be a
    mean of mini-batches of which the last of an epoch are smaller): it is what the last layer computes, and
    `batch_per_trainer` what the epoch is divided by. `batch_size` is `batch_per_trainer`: who predicts
    multiplies it by the platform's trainers.

    Parameters
    ----------
    path
        A file with `vertices` [V0 .. VL], `edges` [E1 .. EL], `features` [f0 .. fL], `concat`,
        `bytes_per_value`, `targets_per_epoch`, `batch_per_trainer` and `sample_s`.

    Raises
    ------
    ValueError
        Naming file and key, if one is missing, unknown or no number, or the lists' lengths do not go
        together.
    """
    where = str(path)
    given = made_of(_Content, read_yaml(Path(path)), where)
    try:
        if not given.edges:
            raise ValueError("edges is empty: give one number per layer")
        if given.batch_per_trainer < 1:
            raise ValueError(
                f"batch_per_trainer is {given.batch_per_trainer}: give a whole number of at least 1"
            )
        if min([given.bytes_per_value, *given.features]) < 1:
            raise ValueError("bytes_per_value and features: give numbers of at least 1")
        work = Workload(
            vertices=given.vertices,
            edges=given.edges,
            features=given.features,
            concat=given.concat,
            bytes_per_value=given.bytes_per_value,
        )
        if 0 in given.vertices:
            raise ValueError("vertices has a 0: give numbers above 0, because every mini-batch has targets")
        return TrainingWorkload(
            at=in_proportion(work, given.batch_per_trainer),
            targets_per_epoch=given.targets_per_epoch,
            batch_size=given.batch_per_trainer,
            batch_per_trainer=given.batch_per_trainer,
            sample_s=given.sample_s or 0.0,
        )
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from problem
