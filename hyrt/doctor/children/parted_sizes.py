"""Size of a partitioned graph, from partition.json and file headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hyrt_perfmodel.sizes.degrees import DegreeDistribution

from hyrt.errors import DataError
from hyrt.graph.labels.label_kind import num_outputs
from hyrt.graph.partition.manifest import GRAPH
from hyrt.graph.partition.part_files import EDGE_KEYS, PartFiles
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.quantities import counted


def parted_sizes(path: Path, source: str, split: int, normalize: str) -> DatasetSizes:
    """Return the sizes of a partitioned dataset as opened by one process; each of several ranks needs less.

    Parameters
    ----------
    path, source
        The folder, and its name in messages.
    split, normalize
        The settings `data.split` and `data.normalize`.

    Raises
    ------
    DataError
        If a file is missing, has the wrong length or belongs to another partition, or the split does not
        exist.
    """
    files = PartFiles.of(path, source)
    manifest, stored_bytes = files.manifest, dict.fromkeys(("features", "edges"), 0)
    for file in manifest.files:
        array = files.array(file.removesuffix(".npy"), verify=False)
        key = Path(file).stem
        if key.startswith("feat"):
            stored_bytes["features"] += array.nbytes
        elif key in (*EDGE_KEYS, "indptr"):
            stored_bytes["edges"] += array.nbytes
    mask = files.array(f"{GRAPH}/train_mask", verify=False)
    if mask.ndim == 2:
        if split >= mask.shape[1]:
            raise DataError(
                f"{source}: data.split={split}: the dataset has {counted(mask.shape[1], 'split')}, "
                "numbered from 0"
            )
        mask = mask[:, split]
    form, is_whole = manifest.features, manifest.topology == "replicated"
    sparse = form.kind == "sparse"
    scales = not sparse and normalize not in ("none", "auto", manifest.normalize)
    in_memory = float(manifest.vertices) * form.width * 4 if scales else stored_bytes["features"] * sparse
    entries = sum(files.manifest.files[file].shape[0] for file in manifest.files if "feat_values" in file)
    return DatasetSizes(
        found=f"{path}, {manifest.vertices:,} vertices, {manifest.edges:,} edges in "
        f"{counted(manifest.num_parts, 'part')}",
        degrees=DegreeDistribution.assumed(manifest.vertices, manifest.edges, num_targets=None),
        features=form.width,
        classes=num_outputs(files.array(f"{GRAPH}/labels", verify=False)),
        targets=int(np.count_nonzero(mask)),
        value_bytes=np.dtype(form.dtype).itemsize,
        feature_bytes=float(in_memory),
        graph_bytes=0.0 if is_whole else float(stored_bytes["edges"]),
        mapped_bytes=float(
            (0 if sparse or scales else stored_bytes["features"]) + stored_bytes["edges"] * is_whole
        ),
        row_entries=entries / manifest.vertices if sparse else None,
    )
