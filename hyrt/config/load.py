"""Reading of settings from YAML files, nested mappings and `key.path=value` overrides, writing of YAML, and a
list of settings without effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import yaml
from hyrt_perfmodel.suggestions import nearest_name
from hyrt_perfmodel.validation import StrictDumper, StrictYaml, yaml_problem

from hyrt.config.compatibility import check_compatibility, list_components, list_features
from hyrt.config.settings import CUSTOM_MODEL_CONTEXT, Config, ModelConfig
from hyrt.config.validation import LENIENT_CONTEXT, RENAMED_SETTINGS, known_keys, rename_old_settings
from hyrt.errors import ConfigError, HyrtError, SettingWarning, join_names, system_error_text, warn_user
from hyrt.nn.models.model_kind import MODELS, find_model

SectionMapping = Mapping[str, Any]


class ConfigSections(TypedDict, total=False):
    """Keyword arguments of `hyrt.train`: the keys of `hyrt.config.Config` except `model`."""

    seed: int
    data: SectionMapping
    sampler: SectionMapping
    train: SectionMapping
    links: SectionMapping
    evaluate: SectionMapping
    devices: str | Sequence[str]
    split: Sequence[int] | str | None
    runtime: SectionMapping
    fullgraph: SectionMapping
    balance: SectionMapping
    distributed: SectionMapping
    checkpoint: SectionMapping
    loggers: str | Sequence[str]


_NAMES = ("data.source", "links.relation", "links.split", "links.times", "distributed.network")
"""Settings whose values are names, mostly of files, which may contain any characters."""
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"


class TextYaml(StrictYaml):
    """YAML loader that reads every plain value except null as text, for example `no`, `on`, 007 and 1e3."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag in (_NULL, _MERGE)]
        for first, forms in StrictYaml.yaml_implicit_resolvers.items()
    }


def _read_yaml(text: str) -> Any:
    return yaml.load(text, Loader=StrictYaml)


def quote_yaml(text: str) -> str:
    """Return a text in double quotes for YAML, with all special characters escaped."""
    escaped = (
        letter if " " <= letter <= "~" and letter not in '"\\' else f"\\U{ord(letter):08X}" for letter in text
    )
    return f'"{"".join(escaped)}"'


def load_settings(path: Path, loader: type[StrictYaml] = StrictYaml) -> dict[str, Any]:
    """Read a YAML file of settings as a nested dict, without validation."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {system_error_text(error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    return parse_settings(text, str(path), loader)


def parse_settings(text: str, where: str, loader: type[StrictYaml] = StrictYaml) -> dict[str, Any]:
    """Parse a YAML text as a nested dict, without validation; `where` names the source in messages."""
    try:
        loaded = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {yaml_problem(error)}") from None
    except (RecursionError, ValueError, OverflowError) as error:
        # The value is nested too deeply, or a number has too many digits.
        raise ConfigError(f"{where} cannot be read as YAML: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        content = "plain text" if isinstance(loaded, str) else f"only the value {loaded!r}"
        content = "a list" if isinstance(loaded, list) else content
        raise ConfigError(f"{where} must contain settings as `key: value`, but contains {content}")
    return loaded


def apply_overrides(settings: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `key.path=value` overrides to a nested dict. Values are parsed as YAML.

    The last value counts, and a warning names settings that are set twice. Raises ConfigError for an entry
    without `=`, a value that is not YAML, or a path through a plain value.
    """
    recorded: dict[str, Any] = {}
    settings |= rename_old_settings(settings)
    for entry in overrides:
        path, equals, text = entry.partition("=")
        path = RENAMED_SETTINGS.get(path, path)
        if not equals or not path:
            raise ConfigError(f"{entry!r} is not a setting: write settings as key.path=value")
        if not text.strip():
            # The value is probably an empty shell variable, which must not undo a setting of the file.
            raise ConfigError(
                f"{entry} has no value: write {path}=null for the default, {path}='\"\"' for an empty string"
            )
        try:
            value = _read_name(text) if path in _NAMES else _read_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"the value of {entry!r} cannot be read as YAML: {yaml_problem(error)}"
            ) from None
        except (RecursionError, ValueError, OverflowError) as error:
            raise ConfigError(f"the value of {entry!r} cannot be read as YAML: {error}") from None
        _record_override(recorded, path, value)
        *parents, leaf = path.split(".")
        node = settings
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"{path!r} cannot be set, because {parent!r} is set to {node!r}: remove one of "
                    "the two settings"
                )
        node[leaf] = value
    return settings


def _read_name(text: str) -> Any:
    """Read an unquoted name literally, whereas YAML would read 007 as 7, and `a: b` as a mapping."""
    text = text.strip()
    return _read_yaml(text) if text[0] in "'\"" or text in ("null", "~") else text


def _record_override(recorded: dict[str, Any], path: str, value: Any) -> None:
    """Record an override, and warn if it replaces an earlier override."""
    new = dict(flatten_settings({path: value}))
    for key, before in recorded.items():
        if key in new and new[key] != before:
            warn_user(f"{key} is set twice: using {_text(new[key])}, not {_text(before)}", SettingWarning)
        if key.startswith(f"{path}.") and key not in new:
            warn_user(
                f"{path}={_text(value)} replaces {key}={_text(before)}, which is also set",
                SettingWarning,
            )
    recorded |= new


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of a nested mapping. An empty mapping is a value, too."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_yaml(config: Config) -> str:
    """Return all settings as YAML that `hyrt run` reads as an equal config.

    Raises ConfigError if a value, such as a function, cannot be stored in a file.
    """
    try:
        return yaml.dump(config.model_dump(), Dumper=StrictDumper, sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise ConfigError(
            f"the settings contain {error.args[-1]!r:.100}, which cannot be saved to a file "
            "or a checkpoint: use only numbers, strings, lists and mappings, or do not pass "
            "folder"
        ) from None


def format_setting(name: str, value: Any) -> str:
    """Return a setting as one line of YAML, with lists and mappings in brackets."""
    is_flow = isinstance(value, list | dict)
    # A plain value alone would be a YAML document, which ends with a marker, so dump it in a mapping.
    text = yaml.dump(
        value if is_flow else {name: value}, Dumper=StrictDumper, default_flow_style=is_flow, width=10**6
    ).rstrip("\n")
    return f"{name}: {text}" if is_flow else text


# Names of settings in other programs, and the corresponding settings.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "batch": "batch_size",
    "bs": "batch_size",
    "fanouts": "fanout",
    "num_neighbors": "fanout",
    "neighbors": "fanout",
    "width": "hidden",
}


def nearest_setting(name: str) -> str | None:
    """Return the setting that a name probably means, such as train.epochs for `num_epochs`, or None.

    The name may include sections, and its words are joined by `_`.
    """
    known = known_keys(Config)
    leaves = [key for key in known if not any(other.startswith(f"{key}.") for other in known)]
    if name in leaves:
        return name
    # The name of a section stands for its kind: `sampler` means sampler.kind.
    by_leaf = {key.removesuffix(".kind"): key for key in leaves if key.endswith(".kind")}
    for key in leaves:
        by_leaf.setdefault(key.rsplit(".", 1)[-1], key)
    name = name.rsplit(".", 1)[-1].lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in by_leaf:
        # In `num_epochs` or `hidden_dim`, one word is the name of the setting.
        part = next((part for part in name.split("_") if part in by_leaf), None)
        near = part or nearest_name(name, by_leaf, 0.7)
        return None if near is None else by_leaf[near]
    return by_leaf[name]


def build_config(settings: Mapping[str, Any], *, lenient: bool = False, custom_model: bool = False) -> Config:
    """Create the settings from a nested mapping of settings that are not at their defaults.

    `lenient` drops keys of other kinds, which have no effect: for the settings of an existing run, possibly
    from an earlier version. `custom_model` ignores the defaults of `model.kind`, because a user-defined
    module is trained. Raises ConfigError for the first wrong key, with the nearest known key if it is
    unknown, and for settings that cannot be combined.
    """
    context = LENIENT_CONTEXT if lenient else CUSTOM_MODEL_CONTEXT if custom_model else None
    config: Config = Config.model_validate(settings, context=context)
    if not lenient:
        check_compatibility(list_components(config), list_features(config))
    return config


def change_config(config: Config, overrides: Iterable[str], *, custom_model: bool = False) -> Config:
    """Apply `key=value` overrides to the settings of an existing run, which were built with `lenient`.

    Settings of an earlier version are valid even if this version rejects them in a new run. `custom_model`
    says whether the run trains a user-defined module.
    """
    settings = config.model_dump()
    try:
        build_config(settings, custom_model=custom_model)
    except ConfigError:
        return build_config(apply_overrides(settings, overrides), lenient=True)
    return build_config(apply_overrides(settings, overrides), custom_model=custom_model)


_KIND_SETTINGS = ("aggregate", "heads", "attention_dropout")
# Settings of the hidden layers, and of operations between two layers.
_HIDDEN_SETTINGS = ("hidden", "dropout", "norm", "residual")


def find_unused_settings(config: Config, num_processes: int, *, custom_model: bool = False) -> list[str]:
    """Return a sentence for each model setting and each distributed setting that has no effect.

    Settings at their default, or at the default of the model kind, are ignored. With `custom_model`, a
    user-defined module is trained, whatever `config.model` contains.
    """
    sentences = [] if custom_model else list(_unused_model_settings(config.model))
    if num_processes == 1:
        if names := _non_defaults(config, "distributed"):
            sentences.append(
                f"{join_names(names)} {_verb_has(names)} no effect in a single process: start "
                f"several with torchrun, or remove {_pronoun(names)}"
            )
    return sentences


def find_settings_without_effect(
    config: Config, *, has_folder: bool, rounds_products: bool, evaluates_by_layers: bool
) -> list[str]:
    """Return a sentence for each setting of training, evaluation and checkpoints that has no effect.

    Settings at their default are ignored. `has_folder` says whether this process, or the process that writes
    for it, has a checkpoint folder. `rounds_products` says whether a layer multiplies in the configured
    precision.
    """
    sentences = []
    if not has_folder and (names := _non_defaults(config, "checkpoint")):
        sentences.append(
            f"{join_names(names)} {_verb_has(names)} no effect without a folder for "
            'checkpoints: call hyrt.train(..., folder="runs/name"), or remove '
            f"{_pronoun(names)}"
        )
    if config.train.precision != "fp32" and not rounds_products:
        sentences.append(
            f"train.precision={config.train.precision} has no effect on this model, which "
            "always computes its products in float32: remove train.precision"
        )
    if config.train.patience and config.evaluate.every == 0:
        sentences.append(
            f"train.patience={config.train.patience} has no effect with evaluate.every=0, "
            "which evaluates only at the end: set evaluate.every=1, or remove train.patience"
        )
    if not evaluates_by_layers and (names := _non_defaults(config, "evaluate", "memory_gib")):
        sentences.append(
            f"{names[0]} has no effect, because this run does not evaluate layer by layer "
            "(evaluate.mode=sampled, or a custom module): remove it"
        )
    if not config.runtime.trace and (names := _non_defaults(config, "runtime", "trace_events")):
        sentences.append(
            f"{names[0]} has no effect without runtime.trace=true: set runtime.trace=true, or "
            "remove runtime.trace_events"
        )
    return sentences


def _non_defaults(config: Config, section: str, *names: str) -> list[str]:
    """Return the settings of a section that are not at their defaults, as `section.name=value` texts."""
    values = getattr(config, section)
    return [
        f"{section}.{name}={getattr(values, name)}"
        for name, field in type(values).model_fields.items()
        if (not names or name in names) and getattr(values, name) != field.default
    ]


def _verb_has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _pronoun(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _unused_model_settings(model: ModelConfig) -> Iterator[str]:
    kind = find_model(model.kind)
    if kind.reads is None:
        return
    for name, field in ModelConfig.model_fields.items():
        value = getattr(model, name)
        if name in kind.reads or value == kind.defaults.get(f"model.{name}", field.default):
            continue
        if name in _KIND_SETTINGS:
            yield (
                f"model.{name}={value} has no effect on {model.kind}: only "
                f"{join_names(_readers(name))} {'uses' if len(_readers(name)) == 1 else 'use'} it"
            )
        elif name in _HIDDEN_SETTINGS and model.layers == 1:
            yield (
                f"model.{name}={value} has no effect with model.layers=1, because there is no hidden layer: "
                f"remove model.{name}"
            )


def _readers(name: str) -> list[str]:
    """Return the model kinds that use a setting."""
    kinds = []
    for kind in sorted(MODELS.entries_by_name()):
        try:
            reads = find_model(kind).reads
        except HyrtError:
            continue  # A broken kind is reported when it is used.
        if reads is not None and name in reads:
            kinds.append(kind)
    return kinds
