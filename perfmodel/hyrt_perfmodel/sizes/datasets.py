"""Published sizes of datasets by name, so that prediction needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSizes:
    """Published sizes of a dataset."""

    vertices: int
    edges: int
    """Number of directed edges as stored: an undirected edge counts twice."""
    features: int
    classes: int
    targets: int
    """Number of training vertices."""
    symmetric: bool = False
    """Whether every edge is stored in both directions; False for citations."""
    value_bytes: int = 4
    """Bytes per stored feature value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHeteroSizes:
    """Published sizes of a heterogeneous dataset."""

    vertices: Mapping[str, int]
    edges: Mapping[tuple[str, str, str], int]
    """Number of edges per relation (source type, name, destination type)."""
    features: Mapping[str, int]
    """Feature columns per type that has features."""
    target: str
    """Vertex type with labels."""
    classes: int
    targets: int
    """Number of training vertices."""
    value_bytes: int = 4
    """Bytes per stored feature value."""


# Hu et al., "Open Graph Benchmark", 2020, and "OGB-LSC", 2021 (mag240m: its papers and their citations,
# features in 16 bits).
DATASETS = {
    "ogbn-arxiv": PublishedSizes(vertices=169_343, edges=1_166_243, features=128, classes=40, targets=90_941),
    "ogbn-products": PublishedSizes(
        vertices=2_449_029, edges=123_718_280, features=100, classes=47, targets=196_615, symmetric=True
    ),
    "ogbn-papers100M": PublishedSizes(
        vertices=111_059_956, edges=1_615_685_872, features=128, classes=172, targets=1_207_179
    ),
    "mag240m": PublishedSizes(
        vertices=121_751_666, edges=1_297_748_926, features=768, classes=153, targets=1_112_392, value_bytes=2
    ),
}

# The same sources; citations are stored in one direction.
HETERO_DATASETS = {
    "ogbn-mag": PublishedHeteroSizes(
        vertices={"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389},
        edges={
            ("author", "affiliated_with", "institution"): 1_043_998,
            ("author", "writes", "paper"): 7_145_660,
            ("paper", "cites", "paper"): 5_416_271,
            ("paper", "has_topic", "field_of_study"): 7_505_078,
        },
        features={"paper": 128},
        target="paper",
        classes=349,
        targets=629_571,
    ),
    "mag240m:typed": PublishedHeteroSizes(
        vertices={"paper": 121_751_666, "author": 122_383_112, "institution": 25_721},
        edges={
            ("author", "affiliated_with", "institution"): 44_592_586,
            ("author", "writes", "paper"): 386_022_720,
            ("paper", "cites", "paper"): 1_297_748_926,
        },
        features={"paper": 768},
        target="paper",
        classes=153,
        targets=1_112_392,
        value_bytes=2,
    ),
}
