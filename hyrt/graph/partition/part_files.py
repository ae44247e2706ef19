"""The files of a graph in parts, opened only if they are what partition.json says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.recorded_npy import map_with_header
from hyrt.graph.formats.schema import OF_EDGES, SPARSE_KEYS
from hyrt.graph.names.data_names import DataNames, read_data_names, read_scalings
from hyrt.graph.partition.manifest import GRAPH, MANIFEST, PartitionManifest, part_folder, read_manifest
from hyrt.graph.reuse.scaling import Scaling, ScalingKind
from hyrt.graph.row_source import DenseFeatures, SparseFeatures

Array = NDArray[Any]

HOME = "home"
EDGE_KEYS = ("indices", *OF_EDGES)
"""Arrays that have an entry for each edge."""
VERTICES = "vertices"
_OTHER_PARTS = ", or of another partition"


@dataclass(frozen=True, slots=True)
class PartFiles:
    """The files of one partition; what is read is memory-mapped."""

    folder: Path
    """The folder that has partition.json."""
    name: str
    """The name of the folder, for messages."""
    manifest: PartitionManifest
    """What partition.json says."""

    @classmethod
    def of(cls, folder: Path, name: str) -> PartFiles:
        """Open the files of a folder; raises the errors of `read_manifest`."""
        return cls(folder, name, read_manifest(folder))

    def array(self, file: str, *, verify: bool = True) -> Array:
        """Map one file.

        Parameters
        ----------
        file
            Its path in the folder, without `.npy`.
        verify
            Compare all of it with its checksums; else only its dtype, shape and length with what was written.

        Raises
        ------
        DataError
            If it is missing, damaged, or of another partition.
        """
        path, where = f"{file}.npy", f"{self.name}: {file}.npy"
        record = self.manifest.files.get(path)
        if record is None:
            raise DataError(f"{where} is not in {MANIFEST}: partition again")
        array, header = map_with_header(self.folder / path, where)
        record.compare(header, where, MANIFEST, _OTHER_PARTS)
        if verify:
            record.verify(array, where, MANIFEST, _OTHER_PARTS)
        return array

    def shared_arrays(self) -> dict[str, Array]:
        """Return the arrays that every rank reads, by schema key, and `home`."""
        keys = [
            file[len(GRAPH) + 1 : -len(".npy")]
            for file in self.manifest.files
            if file.startswith(f"{GRAPH}/")
        ]
        return {key: self.array(f"{GRAPH}/{key}") for key in keys}

    def names(self) -> DataNames:
        """Read the names of the partitioned dataset."""
        return read_data_names(self.folder / GRAPH)

    def scaling(self) -> tuple[Scaling, ...]:
        """Return the applied scalings; earlier versions did not store the numbers of `standard`."""
        steps = read_scalings(self.folder / GRAPH).get("", ())
        kind = self.manifest.normalize
        if steps or kind == "none":
            return steps
        return (Scaling(cast(ScalingKind, kind)),)

    def part_array(self, number: int, key: str, *, verify: bool = True) -> Array:
        """Map one array of one part; see `array`."""
        return self.array(f"{part_folder(number)}/{key}", verify=verify)

    def part_edges(self, number: int) -> dict[str, Array]:
        """The edges into a part's vertices, of split topology: `indptr` and the keys of `EDGE_KEYS`."""
        keys = [key for key in EDGE_KEYS if f"{part_folder(number)}/{key}.npy" in self.manifest.files]
        return {key: self.part_array(number, key) for key in ("indptr", *keys)}

    def part_rows(self, number: int, *, verify: bool = True) -> DenseFeatures | SparseFeatures:
        """Map the feature rows of a part; see `array`."""
        form = self.manifest.features
        if form.kind == "dense":
            return DenseFeatures(self.part_array(number, "features", verify=verify))
        indptr, columns, values = (self.part_array(number, key, verify=verify) for key in SPARSE_KEYS[:3])
        return SparseFeatures(indptr, columns, values, form.width)
