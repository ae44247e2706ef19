"""Registry of partition methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hyrt.checks import show
from hyrt.errors import DataError, join_names
from hyrt.graph.partition.methods.block_parts import BlockParts
from hyrt.graph.partition.methods.method import PartitionMethod
from hyrt.graph.partition.methods.metis_parts import MetisParts
from hyrt.graph.partition.methods.random_parts import RandomParts
from hyrt.graph.partition.methods.volume_parts import VolumeParts

METHODS: Mapping[str, Callable[[], PartitionMethod]] = MappingProxyType(
    {"random": RandomParts, "block": BlockParts, "metis": MetisParts, "volume": VolumeParts}
)


def get_partition_method(name: str) -> PartitionMethod:
    """Return a partition method by name, after checking its dependencies.

    Raises DataError if the method does not exist, or one of its dependencies is missing.
    """
    if not isinstance(name, str) or name not in METHODS:
        word = name if isinstance(name, str) and name.isprintable() else show(name)
        raise DataError(f"--method {word}: give {join_names(METHODS, 'or')}")
    method = METHODS[name]()
    method.check_installed()
    return method
