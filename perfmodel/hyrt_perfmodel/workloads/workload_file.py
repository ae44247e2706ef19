"""YAML files that specify a workload directly, instead of a dataset and a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hyrt_perfmodel.checks import Number, Truth, Whole
from hyrt_perfmodel.file_content import made_of, read_yaml
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload, in_proportion


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Keys of a workload file."""

    vertices: tuple[Number, ...]
    edges: tuple[Number, ...]
    features: tuple[Whole, ...]
    concat: Truth
    bytes_per_value: Whole = 4
    targets_per_epoch: Whole
    batch_per_trainer: Whole
    sample_s: Number | None = None


def load_workload(path: str | Path) -> TrainingWorkload:
    """Read a workload file.

    Its sizes are those of one trainer's mini-batch with `batch_per_trainer` targets and are scaled in
    proportion for other numbers of targets. The last entry of `vertices` may differ from `batch_per_trainer`,
    for example if sizes are means over mini-batches of which the last of an epoch is smaller: the last layer
    computes that many vertices, and the epoch is divided by `batch_per_trainer`. `batch_size` is set to
    `batch_per_trainer`; the caller multiplies it by the platform's trainers.

    Parameters
    ----------
    path
        A file with `vertices` [V0 .. VL], `edges` [E1 .. EL], `features` [f0 .. fL], `concat`,
        `bytes_per_value`, `targets_per_epoch`, `batch_per_trainer` and `sample_s`.

    Raises
    ------
    ValueError
        Naming file and key, if a key is missing or unknown, a value is not a number, or the lengths of the
        lists do not match.
    """
    location = str(path)
    content = made_of(_Content, read_yaml(Path(path)), location)
    try:
        if not content.edges:
            raise ValueError("edges is empty: give one number per layer")
        if content.batch_per_trainer < 1:
            raise ValueError(
                f"batch_per_trainer is {content.batch_per_trainer}: give a whole number of at least 1"
            )
        if min([content.bytes_per_value, *content.features]) < 1:
            raise ValueError("bytes_per_value and features: give numbers of at least 1")
        work = Workload(
            vertices=content.vertices,
            edges=content.edges,
            features=content.features,
            concat=content.concat,
            bytes_per_value=content.bytes_per_value,
        )
        if 0 in content.vertices:
            raise ValueError("vertices has a 0: give numbers above 0, because every mini-batch has targets")
        return TrainingWorkload(
            at=in_proportion(work, content.batch_per_trainer),
            targets_per_epoch=content.targets_per_epoch,
            batch_size=content.batch_per_trainer,
            batch_per_trainer=content.batch_per_trainer,
            sample_s=content.sample_s or 0.0,
        )
    except ValueError as problem:
        raise ValueError(f"{location}: {problem}") from problem
