"""Settings of a run: one tree of sections, its YAML format, and command-line overrides."""

from __future__ import annotations

from hyrt.config.load import apply_overrides, build_config, load_settings, to_yaml
from hyrt.config.settings import Config

__all__ = ["Config", "apply_overrides", "build_config", "load_settings", "to_yaml"]
