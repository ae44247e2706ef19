"""Settings as YAML text, and `key.path=value` overrides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hyrt_perfmodel.file_content import StrictDumper, StrictYaml, yaml_problem

from hyrt.config.settings import Config
from hyrt.errors import ConfigError, SettingWarning, told_of_system, warn_user

_NAMES = ("data.source", "links.relation", "links.split", "links.times", "distributed.network")
"""Settings that are names, mostly of files, which may contain any characters."""
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"


class TextYaml(StrictYaml):
    """YAML loader that reads every plain value except null as text, such as `no`, `on`, 007 and 1e3."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag in (_NULL, _MERGE)]
        for first, forms in StrictYaml.yaml_implicit_resolvers.items()
    }


def _read_yaml(text: str) -> Any:
    return yaml.load(text, Loader=StrictYaml)


def quoted_text(text: str) -> str:
    """Return a text in double quotes for YAML, with all special characters escaped."""
    escaped = (
        letter if " " <= letter <= "~" and letter not in '"\\' else f"\\U{ord(letter):08X}" for letter in text
    )
    return f'"{"".join(escaped)}"'


def load_settings(path: Path, loader: type[StrictYaml] = StrictYaml) -> dict[str, Any]:
    """Read a YAML file of settings as a nested dict (not yet validated)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {told_of_system(error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text: save it as UTF-8") from None
    return settings_of(text, str(path), loader)


def settings_of(text: str, where: str, loader: type[StrictYaml] = StrictYaml) -> dict[str, Any]:
    """Parse a YAML text of settings to a nested dict (not yet validated); `where` names the source in
    messages.
    """
    try:
        loaded = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {yaml_problem(error)}") from None
    except (RecursionError, ValueError, OverflowError) as error:
        # Too deeply nested, or a number with too many digits.
        raise ConfigError(f"{where}: not readable as YAML: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        content = "plain text" if isinstance(loaded, str) else f"the plain value {loaded!r}"
        content = "a list" if isinstance(loaded, list) else content
        raise ConfigError(f"{where}: expected settings as `key: value`, found {content}")
    return loaded


def apply_overrides(settings: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Set `key.path=value` entries in a nested dict; values are parsed as YAML.

    The last value counts; a warning names settings that are set twice.

    Raises
    ------
    ConfigError
        For an entry without `=`, a value that is not YAML, or a path through a plain value.
    """
    recorded: dict[str, Any] = {}
    for entry in overrides:
        path, equals, text = entry.partition("=")
        if not equals or not path:
            raise ConfigError(f"cannot read {entry!r}: write a setting as key.path=value")
        if not text.strip():
            # Most likely an empty shell variable, which must not undo a setting of a file.
            raise ConfigError(
                f"{entry} has no value: write {path}=null for the default, {path}='\"\"' for no text"
            )
        try:
            value = _read_name(text) if path in _NAMES else _read_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"cannot read the value of {entry!r} as YAML: {yaml_problem(error)}") from None
        except (RecursionError, ValueError, OverflowError) as error:
            raise ConfigError(f"cannot read the value of {entry!r} as YAML: {error}") from None
        _record_override(recorded, path, value)
        *parents, leaf = path.split(".")
        node = settings
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"cannot set {path!r}, because {parent!r} is set to {node!r}: remove one of them"
                )
        node[leaf] = value
    return settings


def _read_name(text: str) -> Any:
    """Read an unquoted name literally: YAML would read 007 as 7, and `a: b` as a mapping."""
    text = text.strip()
    return _read_yaml(text) if text[0] in "'\"" or text in ("null", "~") else text


def _record_override(recorded: dict[str, Any], path: str, value: Any) -> None:
    """Record an override, and warn if it replaces an earlier one."""
    new = dict(leaves({path: value}))
    for key, before in recorded.items():
        if key in new and new[key] != before:
            warn_user(f"{key} is given twice: {_text(new[key])} counts, not {_text(before)}", SettingWarning)
        if key.startswith(f"{path}.") and key not in new:
            warn_user(
                f"{path}={_text(value)} takes the place of {key}={_text(before)}, which is given too",
                SettingWarning,
            )
    recorded |= new


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and values of a nested mapping; an empty mapping is a leaf, to differ from an absent
    one.
    """
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_yaml(config: Config) -> str:
    """Return the resolved settings as YAML that `hyrt run` reads as an equal config.

    Raises
    ------
    ConfigError
        If a value cannot be stored in a file, such as a function.
    """
    try:
        return yaml.dump(config.model_dump(), Dumper=StrictDumper, sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise ConfigError(
            f"the settings have {error.args[-1]!r:.100}, which cannot be saved in a file, nor "
            "in a checkpoint: give numbers, texts, lists and mappings, or omit folder"
        ) from None


def setting_line(name: str, value: Any) -> str:
    """Return a setting as one line of YAML, with lists and mappings in brackets."""
    is_flow = isinstance(value, list | dict)
    # A plain value alone is a YAML document, which ends with a marker; a value in a mapping has none.
    text = yaml.dump(
        value if is_flow else {name: value}, Dumper=StrictDumper, default_flow_style=is_flow, width=10**6
    ).rstrip("\n")
    return f"{name}: {text}" if is_flow else text
