"""Settings: the one tree, its YAML form, and how the command line's words become it."""

from __future__ import annotations

from hyrt.config.build import build_config
from hyrt.config.settings import Config
from hyrt.config.yaml_text import apply_overrides, load_settings, to_yaml

__all__ = ["Config", "apply_overrides", "build_config", "load_settings", "to_yaml"]
