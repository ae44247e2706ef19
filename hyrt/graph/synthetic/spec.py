"""Specification of a generated graph: presets, and `synthetic:PRESET,key=value,...`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from hyrt.errors import DataError
from hyrt.graph.check import suggest_name

PREFIX = "synthetic:"
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """Specification of a graph to generate. Equal specifications give equal graphs on every machine."""

    name: str
    """Text that was parsed."""
    vertices: int
    edges: int
    """Number of stored (directed) edges, which is even: twice the number of undirected edges."""
    features: int
    classes: int
    """Number of classes. Class sizes are proportional to 1 / sqrt(rank)."""
    train: int
    val: int
    test: int
    """Number of vertices in the split `test`; `train`, `val` and `test` are disjoint."""
    homophily: float
    """Fraction (0 to 1) of edges that sample their second endpoint from the class of the first."""
    signal: float
    """Standard deviation of the class means, around which the noise has standard deviation 1."""
    dtype: str = "float32"
    """Dtype of the features, `float32` or `float16`."""
    seed: int = 0
    is_hetero: bool = False
    """Whether to generate papers, authors and fields. `features` and the splits then apply to papers only."""

    @property
    def type_counts(self) -> dict[str, int]:
        """Return the vertices per type in a heterogeneous graph: half are papers, a tenth are fields."""
        papers, fields = self.vertices // 2, self.vertices // 10
        return {"paper": papers, "author": self.vertices - papers - fields, "field": fields}

    @property
    def type_widths(self) -> dict[str, int]:
        """Return the feature width per type in a heterogeneous graph; 0 for types without features."""
        return {"paper": self.features, "author": max(1, self.features // 2), "field": 0}

    def __post_init__(self) -> None:
        max_pairs = self.vertices * (self.vertices - 1) // 4
        smallest = min(self.type_counts.values()) if self.is_hetero else self.vertices
        for key, low, high, reason in (
            ("vertices", 1, 2**31 - 1, ""),
            ("features", 1, 2**31 - 1, ""),
            (
                "classes",
                1,
                min(smallest, 32767),
                f", because each class needs a vertex{' of each type' * self.is_hetero}",
            ),
            ("edges", 0, 2 * max_pairs, ", because at most half of all pairs can be edges"),
            ("train", 0, self.vertices, ""),
            ("val", 0, self.vertices, ""),
            ("test", 0, self.vertices, ""),
            ("seed", 0, 2**64 - 1, ""),
            ("homophily", 0, 1, ""),
            ("signal", 0, 1000, ""),
        ):
            if not low <= (value := getattr(self, key)) <= high:
                raise DataError(
                    f"{self.name}: {key}={value:,} is out of range: use a number from {low} to "
                    f"{high:,}{reason}"
                )
        if self.edges % 2:
            raise DataError(
                f"{self.name}: edges={self.edges} is odd, but each edge is stored in both directions: "
                "use an even number"
            )
        labelled = self.type_counts["paper"] if self.is_hetero else self.vertices
        if self.train + self.val + self.test > labelled:
            unit = "papers" if self.is_hetero else "vertices"
            raise DataError(f"{self.name}: train + val + test exceed the {labelled:,} {unit}: lower them")
        if self.dtype not in ("float32", "float16"):
            raise DataError(f"{self.name}: dtype={self.dtype} is not supported: use float32 or float16")


PRESETS = {
    "community": SyntheticSpec(
        name="synthetic:community", vertices=100_000, edges=2_000_000, features=64, classes=16,
        train=60_000, val=10_000, test=30_000, homophily=0.5, signal=0.18,
    ),
    "tiny": SyntheticSpec(
        name="synthetic:tiny", vertices=2_000, edges=20_000, features=16, classes=4,
        train=1_200, val=400, test=400, homophily=0.6, signal=0.4,
    ),
    "products-s": SyntheticSpec(
        name="synthetic:products-s", vertices=612_000, edges=30_000_000, features=100, classes=47,
        train=49_000, val=10_000, test=50_000, homophily=0.6, signal=0.12,
    ),
    "papers-s": SyntheticSpec(
        name="synthetic:papers-s", vertices=2_000_000, edges=30_000_000, features=128, classes=172,
        train=24_000, val=10_000, test=50_000, homophily=0.6, signal=0.15,
    ),
    "hetero": SyntheticSpec(
        name="synthetic:hetero", vertices=100_000, edges=2_000_000, features=64, classes=16,
        train=25_000, val=5_000, test=20_000, homophily=0.5, signal=0.15, is_hetero=True,
    ),
}  # fmt: skip

_RENAMED_PRESETS = {"typed": "hetero"}
_COUNTS = ("vertices", "edges", "features", "classes", "train", "val", "test", "seed")
_REALS = ("homophily", "signal")
KEYS = tuple(field.name for field in fields(SyntheticSpec) if field.name not in ("name", "is_hetero"))


def parse_spec(text: str) -> SyntheticSpec:
    """Parse `synthetic:PRESET` or `synthetic:PRESET,key=value,...`.

    Counts may have the suffix k, M or G (`vertices=20M`). If `vertices` is set, counts that are not set
    (`edges`, `train`, `val`, `test`) are scaled in proportion. The default preset is `community`. Raises
    DataError if a preset or key is unknown, or a value is out of range.
    """
    parts = [part.strip() for part in text.removeprefix(PREFIX).split(",")]
    preset = "community" if not parts[0] or "=" in parts[0] else parts.pop(0)
    preset = _RENAMED_PRESETS.get(preset, preset)
    if preset not in PRESETS:
        raise DataError(
            f"{text}: unknown preset {preset!r}{suggest_name(preset, PRESETS)} (presets: "
            f"{', '.join(PRESETS)})"
        )
    values: dict[str, int | float | str] = {}
    for part in parts if parts != [""] else ():
        if not part:
            raise DataError(
                f"{text}: there is an empty entry between two commas or at an end: remove a comma"
            )
        key, equals, value = part.partition("=")
        if key in KEYS and not equals:
            raise DataError(f"{text}: {key} has no value: write {key}=...")
        if key not in KEYS:
            raise DataError(
                f"{text}: unknown parameter {key!r}{suggest_name(key, KEYS)} (write key=value; keys: "
                f"{', '.join(KEYS)})"
            )
        if key in values:
            raise DataError(f"{text}: {key} is set twice: set it only once")
        values[key] = _value(text, key, value)
    base = PRESETS[preset]
    vertices = values.get("vertices", base.vertices)
    assert isinstance(vertices, int)
    if vertices != base.vertices:
        for key in ("edges", "train", "val", "test"):
            share = getattr(base, key) * vertices // base.vertices
            values.setdefault(key, share - share % 2 if key == "edges" else share)
        if "edges" not in text:
            # A small graph cannot have the mean degree of a large one.
            values["edges"] = min(int(values["edges"]), vertices * (vertices - 1) // 16 * 2)
    smallest = vertices // 10 if base.is_hetero else vertices
    if smallest < base.classes:
        values.setdefault("classes", max(1, smallest))
    return replace(base, name=text, **values)  # type: ignore[arg-type]


def _value(text: str, key: str, value: str) -> int | float | str:
    if key in _COUNTS:
        # Every valid value has at most 20 characters. Converting long strings of digits would be slow.
        match = re.fullmatch(r"([0-9]+(?:_[0-9]+)*)(\.[0-9]+)?([kMG]?)", value) if len(value) < 21 else None
        number = float(match[1] + (match[2] or "")) * _SUFFIXES[match[3]] if match else 0.5
        if match and match[2] is None:
            return int(match[1]) * _SUFFIXES[match[3]]
        if number != int(number):
            raise DataError(
                f"{text}: {key}={value} is not a count: use digits, optionally followed by k, M or G"
            )
        return int(number)
    if key in _REALS:
        try:
            return float(value if value.isascii() else "")
        except ValueError as error:
            raise DataError(f"{text}: {key}={value} is not a number: use one such as 0.5") from error
    return value
