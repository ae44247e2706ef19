"""Settings of a run: one tree of sections, its YAML format, and command-line overrides."""

from __future__ import annotations

from hyrt.config.build import build_config
from hyrt.config.settings import Config
from hyrt.config.yaml_text import apply_overrides, load_settings, to_yaml

__all__ = ["Config", "apply_overrides", "build_config", "load_settings", "to_yaml"]
