"""Generated graphs: degree-corrected planted partitions with class-informative features."""

from __future__ import annotations

from hyrt.graph.synthetic.planted import generate
from hyrt.graph.synthetic.spec import PRESETS, SyntheticSpec, parse_spec
from hyrt.graph.synthetic.typed_planted import generate_typed

__all__ = ["PRESETS", "SyntheticSpec", "generate", "generate_typed", "parse_spec"]
