"""Generated graphs: degree-corrected planted partition with class-informative features."""

from __future__ import annotations

from hyrt.graph.synthetic.planted import generate
from hyrt.graph.synthetic.spec import PRESETS, SyntheticSpec, parse_spec

__all__ = ["PRESETS", "SyntheticSpec", "generate", "parse_spec"]
