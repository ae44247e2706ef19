"""A workload given in full as YAML, instead of a dataset and a model."""

from __future__ import annotations

from pathlib import Path

from hyrt_perfmodel.file_content import listed, number, only_keys, read_yaml, truth, whole
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload, in_proportion

_KEYS = (
    "vertices",
    "edges",
    "features",
    "concat",
    "bytes_per_value",
    "targets_per_epoch",
    "batch_per_trainer",
    "sample_s",
)


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
        Of a file with `vertices` [V0 .. VL], `edges` [E1 .. EL], `features` [f0 .. fL], `concat`,
        `bytes_per_value`, `targets_per_epoch`, `batch_per_trainer` and `sample_s`.

    Raises
    ------
    ValueError
        Naming file and key, if one is missing, unknown or no number, or the lists' lengths do not go
        together.
    """
    where = str(path)
    content = read_yaml(Path(path))
    required = [key for key in _KEYS if key not in ("bytes_per_value", "sample_s")]
    only_keys(content, _KEYS, required, where)
    lists = {key: listed(content[key], f"{where}: {key}") for key in ("vertices", "edges", "features")}
    vertices = [number(v, f"{where}: vertices[{i}]") for i, v in enumerate(lists["vertices"])]
    edges = [number(e, f"{where}: edges[{i}]") for i, e in enumerate(lists["edges"])]
    features = [whole(f, f"{where}: features[{i}]") for i, f in enumerate(lists["features"])]
    batch = whole(content["batch_per_trainer"], f"{where}: batch_per_trainer")
    targets = whole(content["targets_per_epoch"], f"{where}: targets_per_epoch")
    concat = truth(content["concat"], f"{where}: concat")
    given = content.get("sample_s")
    sample_s = 0.0 if given is None else number(given, f"{where}: sample_s")
    size = whole(content.get("bytes_per_value", 4), f"{where}: bytes_per_value")
    try:
        if not edges:
            raise ValueError("edges is empty: give one number per layer")
        if min([size, *features]) < 1:
            raise ValueError("bytes_per_value and features: give numbers of at least 1")
        work = Workload(
            vertices=tuple(vertices),
            edges=tuple(edges),
            features=tuple(features),
            concat=concat,
            bytes_per_value=size,
        )
        if 0 in vertices:
            raise ValueError("vertices has a 0: give numbers above 0, because every mini-batch has targets")
        return TrainingWorkload(
            at=in_proportion(work, batch),
            targets_per_epoch=targets,
            batch_size=batch,
            batch_per_trainer=batch,
            sample_s=sample_s,
        )
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from problem
