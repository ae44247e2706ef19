"""Published dataset sizes, degree distributions and neighborhood overlap, which determine batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSizes:
    """Published sizes of a dataset."""

    vertices: int
    edges: int
    """Number of stored directed edges; an undirected edge counts twice."""
    features: int
    classes: int
    targets: int
    """Number of training vertices."""
    symmetric: bool = False
    """Whether every edge is stored in both directions, which is not the case for citations."""
    value_bytes: int = 4
    """Bytes per stored feature value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHeteroSizes:
    """Published sizes of a heterogeneous dataset."""

    vertices: Mapping[str, int]
    edges: Mapping[tuple[str, str, str], int]
    """Number of edges by relation (source type, name, destination type)."""
    features: Mapping[str, int]
    """Number of feature columns of each type that has features."""
    target: str
    """Name of the vertex type with labels."""
    classes: int
    targets: int
    """Number of training vertices."""
    value_bytes: int = 4
    """Bytes per stored feature value."""


# Sources: Hu et al., "Open Graph Benchmark", 2020, and "OGB-LSC", 2021 (mag240m: only papers and their
# citations, with 16-bit features).
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

# The sources are those of `DATASETS`. Citations are stored in one direction.
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


Floats = NDArray[np.float64]

# Candidate ratios between degrees of adjacent classes. The first with few enough classes is used.
_RATIOS = (1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0, 3.0, 5.0)


@dataclass(frozen=True, slots=True, eq=False)
class DegreeClasses:
    """Degree class of each vertex of a graph."""

    class_of_vertex: NDArray[np.int64]
    """Class of each vertex: [V] int64."""
    in_degrees: NDArray[Any]
    out_degrees: NDArray[Any]
    """Out-degree of each vertex: [V] integers. `in_degrees` has the same form."""
    num_classes: int

    @classmethod
    def from_degrees(
        cls,
        in_degrees: NDArray[Any],
        out_degrees: NDArray[Any] | None = None,
        max_classes: int = 2000,
        kinds: NDArray[Any] | None = None,
    ) -> DegreeClasses:
        """Group vertices with similar degrees in classes, separately for each value of `kinds` [V].

        Raises ValueError if the arrays differ in length, contain negative degrees, or `max_classes` is too
        small.
        """
        ins = np.asarray(in_degrees)
        outs = ins if out_degrees is None else np.asarray(out_degrees)
        if ins.ndim != 1 or ins.shape != outs.shape:
            raise ValueError(
                f"degrees: in_degrees has shape {ins.shape} and out_degrees has shape {outs.shape}: pass one "
                "of each per vertex"
            )
        if max_classes < 16:
            raise ValueError(f"degrees: max_classes must be at least 16, got {max_classes}")
        if len(ins) == 0:
            return cls(np.zeros(0, np.int64), ins, outs, 0)
        if min(int(ins.min()), int(outs.min())) < 0:
            raise ValueError("degrees: every degree must be at least 0, but some are negative")
        same = outs is ins or bool(np.array_equal(ins, outs))
        for ratio in (1.0, *_RATIOS):
            key = _levels(ins, ratio)
            if not same:
                other = _levels(outs, ratio)
                key = key * (int(other.max()) + 1) + other
            if kinds is not None:
                key = key * (int(kinds.max()) + 1) + kinds
            classes, number = _renumbered(key)
            if number <= max_classes:
                break
        return cls(classes, ins, outs, number)

    @property
    def symmetric(self) -> bool:
        """Whether every vertex has as many incoming as outgoing edges."""
        return self.out_degrees is self.in_degrees or bool(np.array_equal(self.in_degrees, self.out_degrees))

    def sums(self, weights: NDArray[Any] | None = None) -> Floats:
        """Return the sum of `weights` [V] over each class's vertices, or the vertex counts: [C] float64."""
        return np.bincount(self.class_of_vertex, weights, self.num_classes).astype(np.float64)


def _levels(degrees: NDArray[Any], ratio: float) -> NDArray[np.int64]:
    """Map degrees to level numbers. Degrees share a level if their ratio is below `ratio`."""
    largest = int(degrees.max())
    if ratio == 1.0:
        return degrees.astype(np.int64)
    steps = int(np.log(max(largest, 1)) / np.log(ratio)) + 2
    starts = np.unique(np.floor(ratio ** np.arange(steps)).astype(np.int64))
    level = np.zeros(largest + 1, np.int64)
    level[starts[starts <= largest]] = 1
    levels: NDArray[np.int64] = np.cumsum(level)[degrees]
    return levels


def _renumbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each key among the distinct keys, and the number of distinct keys."""
    span = int(keys.max()) + 1
    if span > max(1 << 24, 4 * len(keys)):
        distinct, numbers = np.unique(keys, return_inverse=True)
        return numbers.reshape(-1).astype(np.int64), len(distinct)
    present = np.zeros(span, np.int64)
    present[keys] = 1
    numbers = np.cumsum(present) - 1
    return numbers[keys], int(numbers[-1]) + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OverlapSample:
    """Sample of paths u -> w -> z in a symmetric graph: z samples its neighbor w, which samples u."""

    first_degrees: Floats
    second_degrees: Floats
    """In-degrees of w: [n] float64. `first_degrees` contains those of z."""
    others: Floats
    other_degrees: Floats
    """Harmonic mean of the in-degrees of the middle vertices on other two-edge paths from u to z: [n]
    float64, arbitrary if there are no such paths. `others` is their number."""
    direct: NDArray[np.bool_]
    """Whether u is also an in-neighbor of z: [n] bool."""
    chance_others: Floats
    chance_degrees: Floats
    chance_direct: NDArray[np.bool_]
    """`chance_others`, `chance_degrees` and `chance_direct` are the same values for z and the u of another
    path, which show the overlap without clustering: [n]."""
    eligible: Floats
    """Number of u's out-neighbors that may be targets, or 0 if z may not: [n] float64."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__slots__}
        if len(lengths) != 1:
            raise ValueError(f"overlap: the arrays have lengths {sorted(lengths)}: pass one entry per path")
        if len(self.others) and min(self.others.min(), self.chance_others.min()) < 0:
            raise ValueError("overlap: others and chance_others must not be negative")

    def distinct_share(self, first: int, second: int, repeats: tuple[int, ...], drawn: float) -> float:
        """Return the share of two-edge paths to otherwise unreached vertices, relative to chance.

        `first` and `second` are the fan-outs of z and w, -1 for all neighbors. `repeats` are the fan-outs of
        further layers in which z samples, and thus reaches vertices without a two-edge path. `drawn` is the
        probability that a possible target is a target, because other targets may have reached u too. The
        result is between 0 and 1; it is 1 if paths do not meet more often than by chance, or if there are no
        paths.
        """
        first_share = _share(first, self.first_degrees)
        pick = first_share * _share(second, self.second_degrees)
        not_sampled = 1.0 - first_share
        for fanout in repeats:
            not_sampled = not_sampled * (1.0 - _share(fanout, self.first_degrees))
        weights = self.first_degrees * (self.second_degrees - 1.0) * pick
        if not weights.any():
            return 1.0
        missed = 1.0 - drawn * (1.0 - not_sampled)
        absent = np.exp(self.eligible * np.log(np.maximum(missed, 1e-12)))
        only_path = np.where(self.direct & (self.eligible > 0), absent / np.maximum(missed, 1e-12), absent)
        other = first_share * _share(second, self.other_degrees)
        reached = weights @ (
            _reached_per_pair(pick, self.others, other) * np.where(self.direct, not_sampled, 1.0) * only_path
        )
        other = first_share * _share(second, self.chance_degrees)
        reached_by_chance = _reached_per_pair(pick, self.chance_others, other) * np.where(
            self.chance_direct, not_sampled, 1.0
        )
        chance = weights @ (reached_by_chance * absent)
        return min(float(reached) / float(chance), 1.0) if chance > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighborOverlap:
    """Overlap of neighborhoods around targets, and around vertices that are reached over edges."""

    near: OverlapSample
    """Paths in which z is distributed as targets are."""
    far: OverlapSample
    """Paths in which z is distributed as reached vertices are, in proportion to their edges."""


def _reached_per_pair(pick: Floats, others: Floats, other: Floats) -> Floats:
    """Return the vertices reached per pair of paths: one with chance `pick`, `others` with chance `other`."""
    missed = np.exp(others * np.log1p(-np.minimum(other, 1.0 - 1e-12)))
    reached: Floats = (1.0 - (1.0 - pick) * missed) / (pick + others * other)
    return reached


def _share(fanout: int, degrees: Floats) -> Floats:
    """Return the fraction of neighbors that vertices of these degrees sample."""
    if fanout < 0:
        return np.ones_like(degrees)
    return np.minimum(fanout / np.maximum(degrees, 1.0), 1.0)


_ASSUMED_LEVELS = 400
_ASSUMED_PAIR_LEVELS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DegreeMixing:
    """Distribution of edges between groups of degree classes."""

    groups: NDArray[np.int64]
    """Group of each class: [C] int64."""
    shares: Floats
    """Shares of group g's outgoing edges that lead to group h: [G, G] float64. Rows add up to 1."""
    target_shares: Floats | None = None
    """Part of `shares` that leads to possible targets: [G, G] float64; None if these are typical."""

    def __post_init__(self) -> None:
        size = len(self.shares)
        if self.shares.shape != (size, size) or size == 0:
            raise ValueError(f"mixing: shares has shape {self.shares.shape}, expected a square matrix")
        if len(self.groups) and not 0 <= int(self.groups.min()) <= int(self.groups.max()) < size:
            raise ValueError(f"mixing: groups must be numbers from 0 to {size - 1}, the rows of shares")
        if self.shares.min() < 0 or not np.allclose(self.shares.sum(1), 1):
            raise ValueError("mixing: shares must not be negative, and each row must add up to 1")
        target_shares = self.target_shares
        if target_shares is not None and (
            target_shares.shape != (size, size) or (target_shares > self.shares + 1e-9).any()
        ):
            raise ValueError("mixing: target_shares must have the shape of shares, with no larger entry")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DegreeDistribution:
    """Degree distribution of a graph, as classes of vertices with (nearly) equal in- and out-degrees."""

    counts: Floats
    """Number of vertices in each class: [C] float64."""
    in_degrees: Floats
    out_degrees: Floats
    """Mean out-degree of each class: [C] float64. `in_degrees` contains the mean in-degrees."""
    num_vertices: int
    num_edges: int
    """Number of stored directed edges, E; `num_vertices` is V."""
    source: str
    """Origin of the degrees: `counted`, or `assumed: ...` with the assumptions."""
    target_counts: Floats | None = None
    """Number of possible targets in each class, [C] float64, or None if all vertices are possible targets."""
    reciprocity: float = 1.0
    """Share of edges whose reverse is also an edge, which is 1 for symmetric graphs."""
    mixing: DegreeMixing | None = None
    """Distribution of edges between degree groups, or None if edges do not depend on degrees."""
    overlap: NeighborOverlap | None = None
    """Overlap of the neighborhoods of neighbors, or None if these overlap only by chance."""

    def __post_init__(self) -> None:
        for name in ("counts", "in_degrees", "out_degrees", "target_counts"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != self.counts.shape or values.ndim != 1:
                raise ValueError(f"degrees: {name} has shape {values.shape}, expected one number per class")
            if not np.isfinite(values).all() or (len(values) and values.min() < 0):
                raise ValueError(f"degrees: {name} must contain only finite numbers of at least 0")
        if not 0 <= self.reciprocity <= 1:
            raise ValueError(f"degrees: reciprocity must be a number from 0 to 1, got {self.reciprocity!r}")
        if self.mixing is not None and len(self.mixing.groups) != len(self.counts):
            raise ValueError(
                f"degrees: mixing has groups for {len(self.mixing.groups)} classes, expected one for each "
                f"of the {len(self.counts)} classes"
            )

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @property
    def num_targets(self) -> float:
        return float((self.counts if self.target_counts is None else self.target_counts).sum())

    @classmethod
    def from_classes(
        cls,
        classes: DegreeClasses,
        *,
        targets: NDArray[Any] | None = None,
        reciprocity: float | None = None,
        mixing: DegreeMixing | None = None,
        overlap: NeighborOverlap | None = None,
    ) -> DegreeDistribution:
        """Return the degree distribution with the counts and mean degrees of the classes.

        `targets` contains the possible targets, [n] or bool [V]; None means all vertices. `reciprocity` is
        the share of edges whose reverse is an edge. By default, it is 1 if in- and out-degrees are equal,
        otherwise 0.
        """
        counts = classes.sums()
        in_degrees = classes.sums(classes.in_degrees) / counts
        return cls(
            counts=counts,
            in_degrees=in_degrees,
            out_degrees=in_degrees if classes.symmetric else classes.sums(classes.out_degrees) / counts,
            num_vertices=len(classes.class_of_vertex),
            num_edges=int(classes.in_degrees.sum(dtype=np.int64)),
            source="counted",
            target_counts=None
            if targets is None
            else np.bincount(classes.class_of_vertex[targets], minlength=classes.num_classes).astype(
                np.float64
            ),
            reciprocity=float(classes.symmetric) if reciprocity is None else reciprocity,
            mixing=mixing,
            overlap=overlap,
        )

    @classmethod
    def assumed(
        cls,
        num_vertices: int,
        num_edges: int,
        *,
        sigma: float = 1.2,
        reciprocity: float = 1.0,
        num_targets: int | None = None,
    ) -> DegreeDistribution:
        """Return log-normal degrees for a graph of known size.

        The mean of log-normal degrees is exp(sigma^2 / 2) times the median: 2.05 times with sigma 1.2, which
        is close to co-purchase and citation graphs. In- and out-degrees are equal in a symmetric graph
        (`reciprocity` 1) and independent otherwise. The `num_targets` possible targets (by default all
        vertices) are assumed to be typical vertices. Raises ValueError if a size is below 1 or `sigma` is
        negative.
        """
        if num_vertices < 1 or num_edges < 0:
            raise ValueError(
                f"degrees: num_vertices must be at least 1 and num_edges at least 0, got {num_vertices} and "
                f"{num_edges}"
            )
        if not sigma >= 0:
            raise ValueError(
                "degrees: sigma, the standard deviation of the logarithm of the degrees, must be at least "
                f"0, got {sigma!r}"
            )
        symmetric = reciprocity == 1
        degrees, shares = _log_normal(
            num_vertices,
            num_edges / num_vertices,
            sigma,
            num_vertices - 1,
            _ASSUMED_LEVELS if symmetric else _ASSUMED_PAIR_LEVELS,
        )
        ins, outs = degrees, degrees
        if not symmetric:
            ins, outs = (grid.ravel() for grid in np.meshgrid(degrees, degrees))
            shares = np.outer(shares, shares).ravel()
        counts = shares * num_vertices
        return cls(
            counts=counts,
            in_degrees=ins,
            out_degrees=outs,
            num_vertices=num_vertices,
            num_edges=num_edges,
            source=f"assumed: log-normal degrees, sigma {sigma:g}",
            target_counts=None if num_targets is None else counts * (num_targets / num_vertices),
            reciprocity=reciprocity,
        )


def _log_normal(
    num_vertices: int, mean: float, sigma: float, largest: float, levels: int
) -> tuple[Floats, Floats]:
    """Return degrees and shares of log-normal classes with a given mean, finer for large degrees."""
    if mean == 0:
        return np.zeros(1), np.ones(1)
    # Share of vertices above the start of each class, which decreases geometrically to one vertex.
    above = np.geomspace(1.0, 1.0 / num_vertices, levels)
    shares = np.append(-np.diff(above), above[-1])
    middles = above - shares / 2
    normal = NormalDist()
    degrees = np.exp(sigma * np.array([-normal.inv_cdf(p) if 0 < p < 1 else 0.0 for p in middles.tolist()]))
    for _ in range(50):
        degrees = np.minimum(degrees * (mean / float(degrees @ shares)), largest)
    return degrees, shares
