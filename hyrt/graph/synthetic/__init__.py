"""Generated graphs: degree-corrected planted partitions with features that depend on the class."""

from __future__ import annotations

from hyrt.graph.synthetic.planted_partition import generate, generate_hetero
from hyrt.graph.synthetic.spec import PRESETS, SyntheticSpec, parse_spec

__all__ = ["PRESETS", "SyntheticSpec", "generate", "generate_hetero", "parse_spec"]
