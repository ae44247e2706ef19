"""Settings: the one tree, its YAML form, and how the command line's words become it."""

from __future__ import annotations

from hyrt.config.tree import Config, apply_overrides, build_config, load_settings, to_yaml

__all__ = ["Config", "apply_overrides", "build_config", "load_settings", "to_yaml"]
